"""Reader of SQuAD's format: small files, and all of XQuAD in English."""

import gzip

import pytest

from longspan.errors import DataError
from longspan.tasks.questions.squad import read_squad
from longspan.tasks.source_report import Report
from question_files import PARAGRAPHS, squad_article, squad_question, write_squad, xquad_file


def read(path, extent="paragraph"):
    report = Report()
    return read_squad(path, report, extent), report.counts


def answers_in(question):
    return [question.context[start:end] for start, end in question.spans]


@pytest.mark.parametrize("extent", ["paragraph", "article"])
def test_spans_are_the_answers(tmp_path, extent):
    questions, counts = read(write_squad(tmp_path / "a.json", [squad_article()]), extent)
    assert [answers_in(x) for x in questions] == [["Ada Lovelace"], ["Analytical Engine"]]
    joined = "\n".join(PARAGRAPHS)
    contexts = [joined, joined] if extent == "article" else list(PARAGRAPHS)
    assert [x.context for x in questions] == contexts
    assert counts == {"without_answer": 0, "answers_misplaced": 0}


@pytest.mark.parametrize("extent", ["paragraph", "article"])
def test_all_spans_of_xquad_are_answers(extent):
    questions, counts = read(xquad_file(), extent)
    # 1,190 questions on 48 articles, as published.
    assert len(questions) == 1190
    assert len({x.document for x in questions}) == 48
    assert counts == {"without_answer": 0, "answers_misplaced": 0}
    for question in questions:
        assert answers_in(question)
        assert set(answers_in(question)) == set(question.references)


def test_equal_answers_are_marked_once(tmp_path):
    article = squad_article()
    question = article["paragraphs"][0]["qas"][0]
    question["answers"] = 2 * question["answers"] + [{"text": "Lovelace", "answer_start": 4}]
    (first, _), _ = read(write_squad(tmp_path / "a.json", [article]))
    assert first.spans == ((0, 12), (4, 12))
    assert first.references == ("Ada Lovelace", "Lovelace")


def test_misplaced_answers_are_counted_and_stay_references(tmp_path):
    path = write_squad(tmp_path / "a.json", [squad_article(shift=1), squad_article("Other")])
    questions, counts = read(path)
    assert [x.spans for x in questions[:2]] == [(), ()]
    assert questions[0].references == ("Ada Lovelace",)
    assert counts["answers_misplaced"] == 2


def test_negative_places_are_misplaced(tmp_path):
    # A negative place would count from the end.
    article = squad_article(shift=-len("in 1833.") - len("Ada Lovelace"))
    (question, _), _ = read(write_squad(tmp_path / "a.json", [article]))
    assert question.spans == ()


def test_questions_without_answer_are_left_out_and_counted(tmp_path):
    article = squad_article()
    article["paragraphs"][0]["qas"].append({"id": "no", "question": "Why?", "answers": []})
    questions, counts = read(write_squad(tmp_path / "a.json", [article]))
    assert len(questions) == 2
    assert counts["without_answer"] == 1


def test_gzip_and_plain_files_are_equal(tmp_path):
    plain = write_squad(tmp_path / "a.json", [squad_article()])
    packed = tmp_path / "b.json"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(packed)[0] == read(plain)[0]


def without(name, *path):
    """Return an article without a field."""
    article = squad_article()
    record = article
    for key in path:
        record = record[key]
    del record[name]
    return article


MALFORMED = {
    "no paragraphs": ([without("paragraphs")], r"article 0 has no field 'paragraphs'"),
    "no context": (
        [without("context", "paragraphs", 1)],
        r"article 0, paragraph 1 has no field 'context'",
    ),
    "no question": (
        [squad_article("One"), without("question", "paragraphs", 0, "qas", 0)],
        r"article 1, paragraph 0, question 0 has no field 'question'; its fields are id, answers",
    ),
    "no place": (
        [without("answer_start", "paragraphs", 0, "qas", 0, "answers", 0)],
        r"question 0 has no field 'answer_start'",
    ),
    "text as place": (
        [{"paragraphs": [{"context": "It is.", "qas": [squad_question("x", "What?", "It", "0")]}]}],
        r"field 'answer_start' must be of type int, got str",
    ),
    "a list as article": ([[]], r"article 0: expected an object, got list"),
    "no question at all": ([], r"a\.json has no question with an answer"),
    "ids twice": ([squad_article(), squad_article()], r"2 ids of several questions, such as 'who-"),
}


@pytest.mark.parametrize(("articles", "message"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_files_are_refused_with_their_place(tmp_path, articles, message):
    path = write_squad(tmp_path / "a.json", articles)
    with pytest.raises(DataError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a\.json is not JSON \(line 1"),
        (b'{"data": [}', r"a\.json is not JSON \(line 1"),
        (b"\xff\xfe{}", r"a\.json is not UTF-8 text \(byte 0\)"),
        (b"[]", r"a\.json: expected an object, got list"),
        (gzip.compress(b'{"data": []}', mtime=0)[:-9], r"a\.json is truncated or damaged"),
    ],
)
def test_files_that_are_no_json_are_refused(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"a\.json cannot be read \(No such file"):
        read(tmp_path / "a.json")
