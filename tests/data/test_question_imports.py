"""Import of questions of one's own: files of SQuAD's format and tables, splits without leaks."""

import csv
import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longspan.data.own_splits import TEST, VALIDATION
from longspan.data.sources.text import FileFormat
from longspan.errors import DataError, OptionError
from longspan.tasks import build, register_imported
from longspan.tasks.questions.imports import QuestionColumns, QuestionsDescription, import_questions
from longspan.tasks.source_report import Report
from question_files import squad_article, write_squad

pytestmark = pytest.mark.usefixtures("no_imports")
SPLITS = ("train", "validation", "test")
COLUMNS = ("question", "context", "answer")
ROWS = [
    row
    for n in range(12)
    for row in (
        (f"Who lives in house {n}?", f"In house {n} lives Ann{n}, a painter.", f"Ann{n}"),
        (f"What is Ann{n}?", f"In house {n} lives Ann{n}, a painter.", "a painter"),
    )
]


def write_table(path, rows, header=COLUMNS):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def run_import(folder, source, name="faq", *, replace=False, **options):
    held_out = {VALIDATION: options.pop("validation", None), TEST: options.pop("test", None)}
    columns = QuestionColumns(**{**dict(zip(COLUMNS, COLUMNS, strict=True)), **options})
    cache = folder / "cache"
    return import_questions(cache, name, source, held_out, columns, FileFormat(), replace=replace)


def read_splits(folder, name="faq"):
    """Return the stored questions of each split."""
    register_imported(folder / "cache")
    questions = list(build(name, {}).read(None, {split: Report() for split in SPLITS}))
    return {split: [q for s, q in questions if s == split] for split in SPLITS}


def test_questions_about_one_document_are_in_one_split(tmp_path):
    described = run_import(tmp_path, write_table(tmp_path / "faq.csv", ROWS))
    splits = read_splits(tmp_path)
    assert {split: len(x) for split, x in splits.items()} == described.sizes
    assert sum(described.sizes.values()) == len(ROWS)
    contexts = {split: {q.context for q in x} for split, x in splits.items()}
    assert all(contexts.values())
    assert not any(a & b for a, b in itertools.combinations(contexts.values(), 2))
    for question in itertools.chain(*splits.values()):
        texts = {question.context[start:end] for start, end in question.spans}
        assert texts == set(question.references)


def test_splits_depend_on_neither_format_nor_order(tmp_path):
    run_import(tmp_path, write_table(tmp_path / "faq.csv", ROWS))
    lines = [json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in reversed(ROWS)]
    (tmp_path / "faq.jsonl").write_text("\n".join(lines), encoding="utf-8")
    run_import(tmp_path, tmp_path / "faq.jsonl", "other")
    one, two = (
        {s: {q.text for q in x} for s, x in read_splits(tmp_path, name).items()}
        for name in ("faq", "other")
    )
    assert one == two


def test_documents_of_a_held_out_file_are_left_out_of_training(tmp_path):
    rows = write_table(tmp_path / "all.csv", ROWS)
    test = write_table(tmp_path / "test.csv", ROWS[:6])
    described = run_import(tmp_path, rows, test=test)
    assert described.counts["in_another_split"] == 6
    splits = read_splits(tmp_path)
    assert {q.text for q in splits["test"]} == {row[0] for row in ROWS[:6]}
    held_out = {q.context for q in splits["test"]}
    assert not held_out & {q.context for q in (*splits["train"], *splits["validation"])}


@pytest.mark.parametrize("has_titles", [True, False])
def test_files_of_squads_format_are_split_by_article(tmp_path, has_titles):
    articles = [squad_article(f"T{n}") for n in range(20)]
    for n, article in enumerate(articles):
        for paragraph in article["paragraphs"]:
            paragraph["context"] += f" Number {n % 10}."  # each article is there twice
        article["title"] = f"T{n % 10}"
        if not has_titles:
            del article["title"]
    described = run_import(tmp_path, write_squad(tmp_path / "faq.json", articles))
    assert sum(described.sizes.values()) == 40
    splits = read_splits(tmp_path)
    contexts = [{q.context for q in x} for x in splits.values()]
    assert not any(a & b for a, b in itertools.combinations(contexts, 2))


def test_paragraphs_of_a_held_out_file_are_left_out_under_other_titles(tmp_path):
    """A table has no titles, and an article may have another one in another file."""
    articles = [squad_article(f"T{n}") for n in range(6)]
    for n, article in enumerate(articles):
        for paragraph in article["paragraphs"]:
            paragraph["context"] += f" Number {n}."
    context = articles[3]["paragraphs"][0]["context"]
    test = write_table(tmp_path / "test.csv", [("Who met him?", context, "Ada Lovelace")])
    described = run_import(tmp_path, write_squad(tmp_path / "faq.json", articles), test=test)
    assert described.counts["in_another_split"] == 2
    splits = read_splits(tmp_path)
    assert context not in {q.context for x in ("train", "validation") for q in splits[x]}
    assert [q.context for q in splits["test"]] == [context]


@pytest.mark.parametrize("files", [(), ("test",), ("validation", "test")])
def test_no_paragraph_is_in_two_splits_under_other_titles(tmp_path, files):
    """Of 20 articles every two have a paragraph in common; each file has one of the two."""
    articles = [squad_article(f"T{n}") for n in range(20)]
    for n, article in enumerate(articles):
        for number, paragraph in enumerate(article["paragraphs"]):
            paragraph["context"] += f" Number {n // 2 if number else n}."
    parts = [articles[1::2], articles[:4:2], articles[8:12:2]]
    train, validation, test = (
        write_squad(tmp_path / f"{n}.json", each) for n, each in enumerate(parts)
    )
    sources = {x: y for x, y in (("validation", validation), ("test", test)) if x in files}
    whole = write_squad(tmp_path / "all.json", articles)
    described = run_import(tmp_path, train if sources else whole, **sources)
    splits = read_splits(tmp_path)
    assert sum(map(len, splits.values())) == (20 if sources else 40)
    assert described.counts["in_another_split"] == {0: 0, 1: 4, 2: 8}[len(files)]
    contexts = [{q.context for q in x} for x in splits.values()]
    assert not any(a & b for a, b in itertools.combinations(contexts, 2))


def test_an_object_a_line_is_a_table_in_a_json_file(tmp_path):
    lines = [json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in ROWS]
    (tmp_path / "faq.json").write_text("\n".join(lines), encoding="utf-8")
    assert sum(run_import(tmp_path, tmp_path / "faq.json").sizes.values()) == len(ROWS)


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        ("ann", ["Ann", "ann"]),  # words, in any case, and no part of Hannah
        ("nnah", ["nnah"]),  # no word of its own
        ("Bob", []),
        ("an der Spree", ["an der Spree", "der Spree"]),  # "an" is no article in German
        ("A", ["A"]),  # a word without a letter beside its article
        ("\u0930\u093e\u092e", ["\u0930\u093e\u092e"]),  # no part of a word that adds a mark
        ("\u5317\u4eac", ["\u5317\u4eac"] * 2),
    ],
)
def test_answers_of_tables_are_marked_where_they_stand(tmp_path, answer, texts):
    context = "Hannah met Ann, and ann left. An Apple A; an der Spree, der Spree. "
    context += "\u0930\u093e\u092e\u093e, \u0930\u093e\u092e. "
    context += "\u5317\u4eac\uff0c\u6211\u5728\u5317\u4eac\u4f4f"
    row = ("Who?", context, answer)
    described = run_import(tmp_path, write_table(tmp_path / "faq.csv", [*ROWS, row]))
    assert described.counts["answers_misplaced"] == (not texts)
    (question,) = [q for x in read_splits(tmp_path).values() for q in x if q.text == "Who?"]
    assert [question.context[start:end] for start, end in question.spans] == texts
    assert question.references == tuple(dict.fromkeys(texts or [answer]))


def write_hub(path, numbers, **changes):
    """Write questions as parquet with the features that SQuAD has on the hub."""
    rows = [
        {
            "id": f"{path.stem} {n}",
            "title": f"T{n // 2}",
            "context": f" In house {n} lives Ann{n}; Ann{n} is a painter.",
            "question": f"Who lives in house {n}?",
            "answers": {"text": [f"Ann{n}"], "answer_start": [len(f" In house {n} lives ")]},
            **changes,
        }
        for n in numbers
    ]
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_rows_with_squads_features_are_marked_at_their_places(tmp_path):
    """A folder of the hub keeps its splits; an article of both is left out of training."""
    folder = tmp_path / "plain_text"
    write_hub(folder / "train-00000-of-00001.parquet", range(40))
    write_hub(folder / "validation-00000-of-00001.parquet", range(36, 44))
    described = run_import(tmp_path, folder)
    assert described.files["validation"] == "validation-00000-of-00001.parquet"
    assert described.counts["in_another_split"] == 4
    splits = read_splits(tmp_path)
    assert {q.text for q in splits["validation"]} == {
        f"Who lives in house {n}?" for n in range(36, 44)
    }
    for question in itertools.chain(*splits.values()):
        (name,) = question.references
        (span,) = question.spans  # the first of two places
        assert span == (question.context.index(name), question.context.index(name) + len(name))


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ("Ann", "column 'answers' must have an object with the lists 'text' and 'answer_start'"),
        ({"text": ["Ann"]}, "answer_start"),
        ({"text": ["Ann"], "answer_start": [1, 2]}, "row 0"),
    ],
)
def test_objects_of_other_fields_are_refused(tmp_path, answers, message):
    path = write_hub(tmp_path / "hub" / "mine.parquet", range(20), answers=answers)
    with pytest.raises(DataError, match=message):
        run_import(tmp_path, path)
    assert not (tmp_path / "cache").exists()


def test_other_columns_identifiers_and_rows_without_answer(tmp_path):
    rows = [(f"q{n:03}", *row) for n, row in enumerate(ROWS)]
    rows += [("q900", "Why?", ROWS[0][1], ""), ("q901", "", ROWS[0][1], "Ann0")]
    table = write_table(tmp_path / "faq.csv", rows, ("id", "asked", "page", "reply"))
    described = run_import(tmp_path, table, question="asked", context="page", answer="reply")
    assert (described.counts["without_answer"], described.counts["empty"]) == (1, 1)
    ids = {q.id for x in read_splits(tmp_path).values() for q in x}
    assert ids == {row[0] for row in rows[:-2]}


@pytest.mark.parametrize("has_ids", [True, False])
def test_rows_of_one_question_are_its_answers(tmp_path, has_ids):
    """Each was a question of its own, and no prediction could be right for both."""
    first = ROWS[0]
    more = [(*first[:2], x) for x in ("a painter", "Ann0", "the artist", "")]
    rows = [(f"q{n % 24}" if has_ids else f"{n}", *row) for n, row in enumerate([*ROWS, *more[:1]])]
    rows += [("q0" if has_ids else f"9{n}", *row) for n, row in enumerate(more[1:])]
    described = run_import(tmp_path, write_table(tmp_path / "faq.csv", rows, ("id", *COLUMNS)))
    assert (described.counts["without_answer"], described.counts["answers_misplaced"]) == (0, 1)
    questions = [q for x in read_splits(tmp_path).values() for q in x]
    assert len(questions) == len(ROWS)
    (question,) = [q for q in questions if q.text == first[0]]
    assert set(question.references) == {"Ann0", "a painter", "the artist"}
    assert {question.context[a:b] for a, b in question.spans} == {"Ann0", "a painter"}
    assert question.id == rows[0][0]


REFUSED = {
    "no column 'answer'": lambda p: write_table(p, ROWS, ("question", "context", "reply")),
    "column 'id' has 'a' for two questions": lambda p: write_table(
        p, [("a", *row) for row in ROWS], ("id", *COLUMNS)
    ),
    "1 different text cannot fill 3 splits": lambda p: write_table(p, ROWS[:2]),
    "no question with an answer is left": lambda p: write_table(p, [(*x[:2], "") for x in ROWS]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_tables_are_refused_and_nothing_is_stored(tmp_path, message):
    with pytest.raises(DataError, match=message):
        run_import(tmp_path, REFUSED[message](tmp_path / "faq.csv"))
    assert not QuestionsDescription.find(tmp_path / "cache")


def test_another_import_of_a_name_is_refused(tmp_path):
    run_import(tmp_path, write_table(tmp_path / "faq.csv", ROWS))
    run_import(tmp_path, tmp_path / "faq.csv")
    other = write_table(tmp_path / "more.csv", ROWS[2:])
    with pytest.raises(OptionError, match="name of another set of questions"):
        run_import(tmp_path, other)
    assert run_import(tmp_path, other, replace=True).sizes != {}


def test_files_of_squad_that_share_articles_are_refused(tmp_path):
    articles = [squad_article(f"T{n}") for n in range(5)]
    write_squad(tmp_path / "train-v1.1.json", articles)
    write_squad(tmp_path / "dev-v1.1.json", articles[4:])
    reports = {split: Report() for split in SPLITS}
    with pytest.raises(DataError, match=r"share 1 article, such as 'T4'.*data import questions"):
        list(build("squad", {}).read(tmp_path, reports))
