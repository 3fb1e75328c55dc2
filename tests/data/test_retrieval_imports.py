"""Import of folders in the layout of BEIR: splits, counts, what is stored."""

import random

import pytest

from beir_files import DOCUMENTS, JUDGMENTS, QUERIES, write_beir, write_judgments
from corpus_files import ignore
from longspan.data.own_splits import SPLITS
from longspan.errors import DataError
from longspan.tasks.ranking.imports import BeirDescription, import_collection, load_collection


def run_import(tmp_path, folder, name="owls", replace=False, **shares):
    held_out = {SPLITS.index(split): share for split, share in shares.items()}
    return import_collection(tmp_path / "cache", name, folder, held_out, ignore, replace=replace)


def stored(tmp_path, name="owls"):
    folder = tmp_path / "cache" / "retrieval" / name
    return load_collection(folder, BeirDescription.load(folder), tmp_path / f"scratch-{name}")


def texts(queries):
    return [text.decode() for text in queries.texts]


def test_documents_and_queries_are_in_the_order_of_their_ids(tmp_path):
    # The order of the files has no effect.
    backwards = {x: DOCUMENTS[x] for x in reversed(DOCUMENTS)}
    queries = {x: QUERIES[x] for x in reversed(QUERIES)}
    described = run_import(tmp_path, write_beir(tmp_path / "set", backwards, queries))
    found = stored(tmp_path)
    expected = [" ".join(filter(None, DOCUMENTS[x])) for x in sorted(DOCUMENTS)]
    assert [text.tobytes().decode() for text in found.documents] == expected
    train = found.queries["train"]
    assert texts(train) == [QUERIES[x] for x in ("q1", "q2", "q5", "q6")]
    assert train.judged == [{0: 1}, {1: 2, 2: 0}, {2: 1}, {3: 1}]
    assert found.queries["validation"].judged == [{3: 2, 4: 1}]
    assert texts(found.queries["test"]) == [QUERIES["q4"]]
    assert described.sizes == {"train": 4, "validation": 1, "test": 1}
    assert described.splits == {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
    assert not any(described.counts.values())


def test_query_is_the_document_of_its_id_unless_that_answers_it(tmp_path):
    documents = {**DOCUMENTS, "q1": ("", "a query"), "q2": ("", "another one")}
    rows = {**JUDGMENTS, "train": [*JUDGMENTS["train"], ("q2", "q2", 1)]}
    run_import(tmp_path, write_beir(tmp_path / "set", documents, judgments=rows))
    assert stored(tmp_path).queries["train"].self_documents == [5, -1, -1, -1]


def test_missing_documents_leave_no_query_out_silently(tmp_path):
    """Scores of 1 or more are of relevant documents; each query is kept or counted."""
    rows = {
        **JUDGMENTS,
        "dev": [*JUDGMENTS["dev"], ("q3", "gone", 2), ("q3", "away", 0)],
        "test": [*JUDGMENTS["test"], ("q5", "gone", 1), ("q6", "away", 0)],
    }
    described = run_import(tmp_path, write_beir(tmp_path / "set", judgments=rows))
    assert described.counts["judgments_of_unknown_documents"] == 4
    assert described.counts["missing_relevant_documents"] == 2
    assert described.counts["without_relevant_documents"] == 2
    judged = {split: {query for query, *_ in found} for split, found in rows.items()}
    kept = sum(described.sizes.values()) + described.counts["without_relevant_documents"]
    assert kept == sum(map(len, judged.values()))
    assert stored(tmp_path).queries["validation"].judged == [{3: 2, 4: 1}]


def test_training_queries_with_a_held_out_text_are_left_out(tmp_path):
    queries = {**QUERIES, "q1": QUERIES["q4"]}
    rows = {**JUDGMENTS, "train": [*JUDGMENTS["train"], ("q3", "d1", 1)]}
    described = run_import(tmp_path, write_beir(tmp_path / "set", queries=queries, judgments=rows))
    assert described.counts["in_another_split"] == 2
    found = stored(tmp_path)
    assert texts(found.queries["train"]) == [QUERIES[x] for x in ("q2", "q5", "q6")]
    assert found.facts["in_two_splits"]["train and test"]["queries"] == 0


def many(seed=0, count=60):
    """Return queries, some with equal texts, and judgments of all of them."""
    draws = random.Random(seed)
    queries = {f"q{n}": f"question {n // 2 if n < 20 else n}" for n in range(count)}
    return queries, [(x, draws.choice(list(DOCUMENTS)), 1) for x in queries]


@pytest.mark.parametrize("name", ["train", "test", "dev"])
def test_splits_without_judgments_are_held_out_by_text(tmp_path, name):
    queries, rows = many()
    folder = write_beir(tmp_path / "set", queries=queries, judgments={name: rows})
    described = run_import(tmp_path, folder)
    held_out = f"0.1 of the queries of {name}.tsv"
    assert described.splits == {
        "train": f"{name}.tsv", "validation": held_out, "test": held_out,
    }  # fmt: skip
    found = stored(tmp_path)
    assert sum(map(len, found.queries.values())) == 60
    assert all(not x["queries"] for x in found.facts["in_two_splits"].values())
    # 50 different texts: 5 of them in each held-out split.
    assert [len(set(texts(found.queries[x]))) for x in ("train", "validation", "test")] == [
        40,
        5,
        5,
    ]


def test_training_queries_are_those_of_dev_where_there_is_no_train(tmp_path):
    queries, rows = many()
    folder = write_beir(
        tmp_path / "set", queries=queries, judgments={"dev": rows[:50], "test": rows[50:]}
    )
    described = run_import(tmp_path, folder, validation=0.25)
    assert described.splits == {
        "train": "dev.tsv", "test": "test.tsv", "validation": "0.25 of the queries of dev.tsv",
    }  # fmt: skip
    assert described.sizes["test"] == 10


def test_folder_without_a_relevant_document_is_refused(tmp_path):
    rows = {"train": [("q1", "d9", 1)]}
    with pytest.raises(
        DataError, match=r"no query has a document of score 1 or more; the first unk"
    ):
        run_import(tmp_path, write_beir(tmp_path / "set", judgments=rows))
    assert BeirDescription.find(tmp_path / "cache") == []


def test_judgments_without_a_header_are_read(tmp_path):
    folder = write_beir(tmp_path / "set")
    write_judgments(folder / "qrels" / "test.tsv", JUDGMENTS["test"], header=False)
    assert run_import(tmp_path, folder).sizes["test"] == 1
