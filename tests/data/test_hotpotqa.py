"""Reader of HotpotQA: paragraphs, sentences and answers, of small files and a published sample."""

import json

import pytest

from longspan.errors import DataError
from longspan.tasks.questions.hotpotqa import (
    load_records,
    read_question,
    read_selection,
    select_paragraphs,
)
from longspan.tasks.source_report import Report, count_cases
from question_files import hotpotqa_record, published, write_hotpotqa


def read(record, where="here"):
    report = Report()
    return read_question(record, where, report), report


def texts_of(question, spans):
    return [question.context[first:last] for first, last in spans]


def test_paragraphs_are_joined_behind_their_titles():
    question, report = read(hotpotqa_record(3))
    assert question.context == (
        "Other 3\nNobody likes Color3. It is far.\n\n"
        "City 3\nCity 3 is old. Its coat is Color3. \n\n"
        "Mayor 3\nMayor 3 runs City 3. She sings.\n\n"
        "River 3\nIt flows."
    )
    titles = [one.title for one in question.paragraphs]
    assert titles == ["Other 3", "City 3", "Mayor 3", "River 3"]
    for title, first in zip(titles, question.passages, strict=True):
        assert question.context.startswith(f"{title}\n", first)
    assert question.facts == (("Mayor 3", 0), ("City 3", 1))
    (mayor, city) = texts_of(question, [question.sentences[fact] for fact in question.facts])
    assert (mayor, city) == ("Mayor 3 runs City 3.", " Its coat is Color3.")
    assert not report.counts.total()


def test_answers_are_marked_in_supporting_sentences_alone():
    question, _ = read(hotpotqa_record(3))
    assert texts_of(question, question.spans) == ["Color3"]
    assert question.spans[0][0] > question.context.index("Its coat")
    record = hotpotqa_record(3)
    record["context"][1][1][0] = "City 3 is Color3."
    question, _ = read(record)
    assert [question.context[first - 12 : last] for first, last in question.spans] == [
        "Its coat is Color3"
    ]
    # without a mention there, the other sentences of its paragraphs count
    near, _ = read(hotpotqa_record(3, "old"))
    assert texts_of(near, near.spans) == ["old"]
    # and no others
    assert read(hotpotqa_record(3, "Nobody"))[0].spans == ()
    # a mention is no part of a word, and its case does not matter
    assert read(hotpotqa_record(3, "Colo"))[0].spans == ()
    assert texts_of(read(hotpotqa_record(3, "COAT"))[0], [(0, 0)]) == [""]
    assert len(read(hotpotqa_record(3, "COAT"))[0].spans) == 1


@pytest.mark.parametrize(
    ("answer", "kind"), [("yes", "yes"), (" No ", "no"), ("Color3", "span"), ("nobody", "span")]
)
def test_type_of_the_answer(answer, kind):
    question, _ = read(hotpotqa_record(3, answer))
    assert question.answer_type == kind
    assert question.has_span == (kind == "span")
    assert question.references == (answer.strip(),)


def test_all_answers_and_facts_of_the_sample_are_found():
    """Of the 100 published questions, 8 are of the types yes and no."""
    path = published("qa/hotpot_dev_distractor_100.json.gz")
    report, found = Report(), []
    records = load_records(path)
    for number, record in enumerate(records.values()):
        question = read_question(record, f"question {number}", report)
        found.append(question)
        sentences = {
            (title, i): text for title, texts in record["context"] for i, text in enumerate(texts)
        }
        for fact, (first, last) in question.sentences.items():
            assert question.context[first:last] == sentences[fact]
        assert set(question.facts) == {tuple(fact) for fact in record["supporting_facts"]}
        for text in texts_of(question, question.spans):
            assert text.lower() == record["answer"].lower()
    assert len(found) == 100
    assert sum(not x.has_span for x in found) == 8
    assert sum(bool(x.spans) for x in found) == 91
    assert report.counts["without_answer"] == report.counts["without_paragraph"] == 0


def test_selected_paragraphs_alone_are_joined():
    question, _ = read(hotpotqa_record(3))
    chosen = select_paragraphs(question, {"River 3", "City 3", "elsewhere"})
    assert chosen.context == "City 3\nCity 3 is old. Its coat is Color3. \n\nRiver 3\nIt flows."
    assert texts_of(chosen, chosen.spans) == ["Color3"]
    assert texts_of(chosen, [chosen.sentences["River 3", 0]]) == ["It flows."]
    assert chosen.facts == question.facts
    assert (chosen.id, chosen.text) == (question.id, question.text)


def test_what_is_wrong_is_counted_with_its_place():
    record = hotpotqa_record(3)
    record["supporting_facts"] += [["City 3", 9], ["Nowhere", 0]]
    record["context"].append(["City 3", ["Another one."]])
    _, report = read(record, "file: question 7")
    assert count_cases({"train": report}) == {"facts_missing": 2, "titles_repeated": 1}
    assert [case.where for case in report.cases] == [
        "file: question 7, paragraph 5",
        "file: question 7, 'City 3' 9",
        "file: question 7, 'Nowhere' 0",
    ]
    without_answer = {name: x for name, x in record.items() if name != "answer"}
    for change, reason in (
        (without_answer, "without_answer"),
        (record | {"answer": " "}, "without_answer"),
        (record | {"context": []}, "without_paragraph"),
        (record | {"context": [["City 3", [" ", ""]]]}, "without_paragraph"),
    ):
        question, report = read(change)
        assert question is None
        assert count_cases({"train": report})[reason] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": [["City 3"]]}, "here, paragraph 0: expected a title and a list"),
        ({"context": [[3, ["x"]]]}, "here, paragraph 0: expected a title and a list"),
        ({"context": [["City 3", ["x", 4]]]}, "here, paragraph 0: sentences must be texts"),
        ({"supporting_facts": [["City 3", "1"]]}, "here, fact 0: expected a title and a int"),
        ({"supporting_facts": None}, "here: field 'supporting_facts' must be of type list"),
        ({"question": 5}, "here: field 'question' must be of type str"),
    ],
)
def test_malformed_records_are_refused_with_their_place(change, message):
    with pytest.raises(DataError, match=message):
        read(hotpotqa_record(3) | change)


def test_files_are_lists_of_distinct_ids(tmp_path):
    write_hotpotqa(tmp_path, [hotpotqa_record(1), hotpotqa_record(1)], {"data": []})
    with pytest.raises(DataError, match="question 1 has the id of an earlier one, 'h_1'"):
        load_records(tmp_path / "hotpot_train_v1.1.json")
    with pytest.raises(DataError, match="expected a list of questions, got dict"):
        load_records(tmp_path / "hotpot_dev_distractor_v1.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected an object, got list"),
        ({"answer": {}}, "has no field 'paragraphs'"),
        ({"paragraphs": {"h_1": "City"}}, "field 'h_1' must be of type list"),
        ({"paragraphs": {"h_1": [4]}}, "'h_1' must have a list of titles"),
    ],
)
def test_malformed_selections_are_refused(tmp_path, content, message):
    path = tmp_path / "ranked.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        read_selection(path)
