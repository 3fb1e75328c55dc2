"""Reader of TriviaQA: the published sample, its official predictions, and broken copies."""

import json
import shutil
from collections import Counter

import pytest

from longspan.errors import DataError
from longspan.metrics.answers import exact_match, normalize_triviaqa_answer, token_f1
from longspan.tasks import build
from longspan.tasks.questions import triviaqa
from longspan.tasks.questions.mentions import find_mentions
from longspan.tasks.source_report import Report
from question_files import extract_triviaqa, published, write_triviaqa


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return extract_triviaqa(tmp_path_factory.mktemp("triviaqa"))


@pytest.fixture
def copy(sample, tmp_path):
    """A copy that a test may break."""
    return shutil.copytree(sample, tmp_path / "triviaqa")


def read(root, domain, part="train"):
    report = Report()
    files = triviaqa.find(root, domain)
    records = enumerate(triviaqa.load_records(files, domain, part))
    read_question = triviaqa.read_question
    found = [
        x
        for number, one in records
        for x in read_question(files, domain, one, f"record {number}", report)
    ]
    return found, report


def test_official_sample_prediction_is_right():
    """The official evaluation gives this prediction an exact match and an F1 of 100."""
    (record,) = json.loads(published("qa/triviaqa_sample.json").read_text())["Data"]
    predictions = json.loads(published("qa/triviaqa_sample_predictions.json").read_text())
    references = triviaqa.references_of(record["Answer"], "sample")
    documents = [x["Filename"] for x in record["EntityPages"]]
    assert list(predictions) == [f"{record['QuestionId']}--{documents[0]}"]
    for answer in predictions.values():
        assert exact_match(answer, references, normalize_triviaqa_answer) == 1
        assert token_f1(answer, references, normalize_triviaqa_answer) == 1


def test_documents_of_a_question_are_joined_in_domain_wikipedia(sample):
    (question,), report = read(sample, "wikipedia")
    assert question.id == question.document == "tc_3"
    texts = [
        (sample / "evidence/wikipedia" / name).read_text().strip()
        for name in ("England.txt", "Judi_Dench.txt")
    ]
    assert question.context == "\n\n".join(texts)
    assert question.spans is None
    assert "york" in question.references
    assert not report.counts.total()


def test_documents_are_questions_of_their_own_in_domain_web(sample):
    questions, _ = read(sample, "web")
    ids = [
        *("tc_1--46/46_46.txt", "tc_1--194/194_50.txt"),
        *("tc_3--England.txt", "tc_3--Judi_Dench.txt"),
        *("tc_3--100/100_1957043.txt", "tc_3--109/109_2592361.txt"),
        "tc_15--Integrated_Services_Digital_Network.txt",
    ]
    assert [x.id for x in questions] == ids
    assert {x.document for x in questions} == {"tc_1", "tc_3", "tc_15"}
    sinclair = questions[0]
    assert [sinclair.context[a:b] for a, b in find_mentions(sinclair.context, sinclair.references)]


def test_references_are_aliases_and_human_answers():
    answer = {"NormalizedAliases": ["big apple"], "HumanAnswers": ["The Big Apple", "New-York"]}
    assert triviaqa.references_of(answer, "here") == ("big apple", "new york")


def test_missing_documents_are_counted(copy):
    (copy / "evidence/wikipedia/England.txt").unlink()
    (question,), report = read(copy, "wikipedia")
    assert question.context == (copy / "evidence/wikipedia/Judi_Dench.txt").read_text().strip()
    assert report.counts == Counter({"documents_missing": 1})
    (copy / "evidence/wikipedia/Judi_Dench.txt").write_text(" \n")
    questions, report = read(copy, "wikipedia")
    assert not questions
    assert report.counts == Counter({"documents_missing": 1, "without_document": 1})


def test_bytes_that_are_not_utf8_are_counted(copy):
    path = copy / "evidence/wikipedia/England.txt"
    path.write_bytes(b"caf\xe9 " + path.read_bytes())
    (question,), report = read(copy, "wikipedia")
    assert question.context.startswith("caf\ufffd ")
    assert report.counts == Counter({"documents_not_utf8": 1})


def test_verified_files_keep_verified_questions_and_documents(copy):
    path = copy / "qa/wikipedia-dev.json"
    content = json.loads(path.read_text())
    (record,) = content["Data"]
    content["VerifiedEval"] = True
    record["EntityPages"] += [{"Filename": "England.txt", "DocPartOfVerifiedEval": True}]
    content["Data"] = [{**record, "QuestionPartOfVerifiedEval": x} for x in (False, True)]
    path.write_text(json.dumps(content))
    (question,), _ = read(copy, "wikipedia", "dev")
    assert question.context == (copy / "evidence/wikipedia/England.txt").read_text().strip()


@pytest.mark.parametrize(
    ("path", "domains"),
    [
        ("evidence/wikipedia/England.txt", ["wikipedia", "web"]),
        ("evidence/web/46/46_46.txt", ["web"]),
    ],
)
def test_other_documents_are_another_source(copy, path, domains):
    """A copy whose documents were unpacked in part is not taken for the whole one."""
    tasks = {x: build("triviaqa", {"domain": x}) for x in ("wikipedia", "web")}
    before = {x: tasks[x].identify_source(copy) for x in tasks}
    (copy / path).write_bytes((copy / path).read_bytes() + b" more")
    longer = {x: tasks[x].identify_source(copy) for x in before}
    assert [x for x in before if before[x] != longer[x]] == domains
    (copy / path).unlink()
    fewer = {x: tasks[x].identify_source(copy) for x in before}
    assert [x for x in before if fewer[x] not in (before[x], longer[x])] == domains


def test_other_documents_are_encoded_again(tmp_path):
    root = write_triviaqa(tmp_path / "triviaqa")
    task = build("triviaqa", {"length": 128, "question_length": 24})
    checksums = []
    for text in ("It is color5, not color6.", "Color5 is next to color6, a hue."):
        (root / "evidence/wikipedia/Doc_5.txt").write_text(text)
        task.open(tmp_path / "cache", root)
        checksums.append(task.dataset.manifest.checksum)
    assert len(set(checksums)) == 2


def test_a_copy_without_documents_is_not_here(copy):
    shutil.rmtree(copy / "evidence")
    with pytest.raises(DataError, match=r"TriviaQA \(wikipedia\) is not here"):
        triviaqa.find(copy, "wikipedia")


def test_a_file_name_may_not_lead_outside(copy):
    path = copy / "qa/wikipedia-dev.json"
    path.write_text(path.read_text().replace("Andrew_Lloyd_Webber.txt", "../../qa/web-dev.json"))
    with pytest.raises(DataError, match=r"record 0: file name .* leads outside"):
        read(copy, "wikipedia", "dev")


def test_a_missing_copy_names_the_remedy(tmp_path):
    with pytest.raises(
        DataError, match=r"TriviaQA \(web\) is not here .*download https.*--data FILE"
    ):
        triviaqa.find(tmp_path, "web")


def test_a_question_without_aliases_is_refused_with_its_place(copy):
    path = copy / "qa/wikipedia-dev.json"
    path.write_text(path.read_text().replace("NormalizedAliases", "Normalised"))
    with pytest.raises(DataError, match=r"record 0 has no field 'NormalizedAliases'"):
        read(copy, "wikipedia", "dev")


@pytest.mark.parametrize("is_verified", [False, True])
@pytest.mark.parametrize(
    ("names", "value"),
    [
        ((), "text"),
        (("QuestionId",), 7),
        (("Question",), None),
        (("EntityPages",), None),
        (("EntityPages", 0), "England.txt"),
        (("EntityPages", 0, "Filename"), 7),
        (("Answer",), "England"),
        (("Answer", "NormalizedAliases"), "england"),
        (("Answer", "NormalizedAliases", 0), None),
        (("Answer", "HumanAnswers"), 7),
        (("Answer", "HumanAnswers"), [7]),
    ],
)
def test_a_field_of_another_type_is_refused_with_its_place(copy, names, value, is_verified):
    path = copy / "qa/wikipedia-dev.json"
    content = json.loads(path.read_text())
    content["VerifiedEval"] = is_verified
    (record,) = content["Data"]
    record["QuestionPartOfVerifiedEval"] = True
    for page in record["EntityPages"]:
        page["DocPartOfVerifiedEval"] = True
    *outer, last = ("Data", 0, *names)
    part = content
    for name in outer:
        part = part[name]
    part[last] = value
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"(record|question) 0"):
        read(copy, "wikipedia", "dev")
