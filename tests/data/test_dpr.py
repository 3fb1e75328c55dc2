"""Folders in the layout of DPR: articles of passages, judgments, and malformed files."""

import random
import re

import pytest

from beir_files import write_beir
from corpus_files import ignore
from dpr_files import DOCUMENTS, PASSAGES, QUESTIONS, question, write_dpr
from longspan.data.own_splits import SPLITS
from longspan.errors import DataError
from longspan.tasks.ranking.dpr_files import find_dpr
from longspan.tasks.ranking.imports import BeirDescription, import_collection, load_collection


def run_import(tmp_path, folder, name="wiki", layout="dpr", **shares):
    held_out = {SPLITS.index(split): share for split, share in shares.items()}
    return import_collection(tmp_path / "cache", name, folder, held_out, ignore, layout=layout)


def stored(tmp_path, name="wiki"):
    folder = tmp_path / "cache" / "retrieval" / name
    found = load_collection(folder, BeirDescription.load(folder), tmp_path / f"scratch-{name}")
    texts = [x.tobytes().decode() for x in found.documents]
    rows = {
        split: [
            (query.decode(), {texts[number]: grade for number, grade in judged.items()})
            for query, judged in zip(x.texts, x.judged, strict=True)
        ]
        for split, x in found.queries.items()
    }
    return texts, rows


@pytest.mark.parametrize("packed", [False, True])
def test_passages_of_a_title_are_one_document(tmp_path, packed):
    folder = write_dpr(tmp_path / "set", packed=packed, stem="biencoder-nq-" if packed else "nq-")
    # Articles in one piece come first.
    assert list(find_dpr(folder).read_documents()) == list(DOCUMENTS.items())


def test_documents_of_shuffled_passages_have_the_same_passages(tmp_path):
    draws = random.Random(0)
    passages = [(n, f"word{n}", f"Title {draws.randrange(9)}") for n in range(60)]
    folder = write_dpr(tmp_path / "set", passages)
    found = dict(find_dpr(folder).read_documents())
    titles = {title for *_, title in passages}
    assert found == {
        x: " ".join([x, *(text for _, text, title in passages if title == x)]) for x in titles
    }


def test_collection_equals_the_one_in_the_layout_of_beir(tmp_path):
    """Positive passages answer; hard negatives are judged to be wrong; drawn ones are not read."""
    shares = {"validation": None, "test": 0.3}
    described = run_import(tmp_path, write_dpr(tmp_path / "set"), **shares)
    judged = {
        "train": [
            *(("q1", "Owls", 1), ("q1", "Milk", 0)),
            *(("q2", "Milk", 1), ("q2", "Cow song", 0)),
            ("q3", "Milk", 1),
            *(("q4", "Cow song", 1), ("q4", "Milk", 0)),
        ],
        "dev": [("q5", "Owls", 1)],
    }
    records = [x for rows in QUESTIONS.values() for x in rows]
    queries = {f"q{n}": x["question"] for n, x in enumerate(records, 1)}
    documents = {name: ("", text) for name, text in DOCUMENTS.items()}
    other = write_beir(tmp_path / "other", documents, queries, judged)
    same = run_import(tmp_path, other, "other", "beir", **shares)
    assert stored(tmp_path) == stored(tmp_path, "other")
    assert described.sizes == same.sizes == {"train": 3, "validation": 1, "test": 1}
    assert described.documents == same.documents == 3
    assert described.splits["test"] == "0.3 of the queries of nq-train.json"
    assert not any(described.counts.values())
    assert list(described.files) == ["psgs_w100.tsv", "nq-train.json", "nq-dev.json"]


def test_one_file_of_questions_is_divided(tmp_path):
    rows = {"dev": [question(f"question {n}", ["Owls", "Milk"][n % 2 :][:1]) for n in range(20)]}
    described = run_import(tmp_path, write_dpr(tmp_path / "set", questions=rows))
    assert described.sizes == {"train": 16, "validation": 2, "test": 2}
    assert list(described.files) == ["psgs_w100.tsv", "nq-dev.json"]


def test_question_with_the_words_of_a_title_may_have_that_article(tmp_path):
    rows = {**QUESTIONS, "dev": [question("Owls", ["Milk"])]}
    run_import(tmp_path, write_dpr(tmp_path / "set", questions=rows))
    folder = tmp_path / "cache" / "retrieval" / "wiki"
    found = load_collection(folder, BeirDescription.load(folder), tmp_path / "scratch")
    assert found.queries["validation"].self_documents == [-1]


def test_quotes_that_are_not_doubled_are_no_error(tmp_path):
    folder = write_dpr(tmp_path / "set")
    path = folder / "wikipedia_split" / "psgs_w100.tsv"
    path.write_text('id\ttext\ttitle\n1\t"A ""song"" of"\t"Weird Al" Yankovic\n')
    ((name, text),) = find_dpr(folder).read_documents()
    assert (name, text) == ("Weird Al Yankovic", 'Weird Al Yankovic A "song" of')


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ((6, "A text", " "), "line 7 has a passage of no document: expected its title, by which"),
        ((6, "A text", '""'), "line 7 has a passage of no document"),
        ((6, "A text"), "line 7 has 2 columns; expected id, text and title, separated by tabs"),
    ],
)
def test_malformed_passages_are_refused_with_file_and_line(tmp_path, line, message):
    folder = write_dpr(tmp_path / "set", [*PASSAGES, line])
    with pytest.raises(DataError, match=re.escape(f"psgs_w100.tsv, {message}")):
        run_import(tmp_path, folder)
    assert not list((tmp_path / "cache" / "retrieval").glob("wiki"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": None}, "field 'question' must be of type str, got NoneType"),
        ({"positive_ctxs": "x"}, "field 'positive_ctxs' must be of type list, got str"),
        ({"positive_ctxs": [{"text": "x"}]}, "positive_ctxs has no field 'title'"),
        ({"hard_negative_ctxs": [3]}, "hard_negative_ctxs: expected an object, got int"),
    ],
)
def test_malformed_questions_are_refused_with_file_and_line(tmp_path, changes, message):
    rows = {"train": [question("who", ["Owls"], **changes)]}
    folder = write_dpr(tmp_path / "set", questions=rows)
    with pytest.raises(DataError, match=rf"nq-train.json, line 2.*{re.escape(message)}"):
        run_import(tmp_path, folder)


def test_files_of_other_layouts_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere is not a folder; expected one with psgs_w100"):
        run_import(tmp_path, tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"set lacks psgs_w100.tsv; expected the layout of DPR"):
        run_import(tmp_path, write_beir(tmp_path / "set"))
    folder = write_dpr(tmp_path / "passages", questions={})
    with pytest.raises(DataError, match=r"lacks nq-train.json or a file like it"):
        run_import(tmp_path, folder)
    write_dpr(folder)
    write_dpr(folder, stem="trivia-")
    with pytest.raises(DataError, match=r"nq-train.json and .*trivia-train.json are both"):
        run_import(tmp_path, folder)
    path = write_dpr(tmp_path / "bare") / "wikipedia_split" / "psgs_w100.tsv"
    path.write_text("1\tA text\tOwls\n")
    with pytest.raises(DataError, match=r"line 1: expected the header id, text and title, .*A tex"):
        run_import(tmp_path, tmp_path / "bare")


def test_questions_about_other_passages_are_refused_in_one_sentence(tmp_path):
    rows = {"train": [question("who", ["Elsewhere"]), question("why", ["Nowhere"])]}
    expected = (
        r"no query has a document of score 1 or more; .*Elsewhere.; use judgments of .* in psgs_w"
    )
    with pytest.raises(DataError, match=expected):
        run_import(tmp_path, write_dpr(tmp_path / "set", questions=rows))
