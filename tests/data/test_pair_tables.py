"""Import of tables of queries and documents: what is stored, splits, refusals."""

import csv

import numpy as np
import pytest

from corpus_files import ignore
from longspan.data.own_splits import SPLITS
from longspan.data.sources.text import FileFormat
from longspan.errors import DataError
from longspan.tasks.ranking.imports import BeirDescription, import_collection, load_collection
from longspan.tasks.ranking.pair_table import read_pairs

# Every third query has a second document, which answers another query too.
PAIRS = [(f"what hunts at {n}", f"owl {n} hunts") for n in range(20)]
PAIRS += [(f"what hunts at {n}", f"owl {n + 1} hunts") for n in range(0, 18, 3)]


def write_pairs(path, rows, header=("query", "document")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def run_import(folder, path, query="query", document="document"):
    table = read_pairs(path, query, document, FileFormat())
    return import_collection(folder / "cache", "owls", table, {}, ignore)


def stored(folder):
    home = folder / "cache" / "retrieval" / "owls"
    return load_collection(home, BeirDescription.load(home), folder / "scratch")


def test_every_pair_is_a_relevant_document(tmp_path):
    described = run_import(tmp_path, write_pairs(tmp_path / "a.csv", [*PAIRS, PAIRS[0]]))
    assert sum(described.sizes.values()) == 20
    assert min(described.sizes.values()) > 0
    assert not any(described.counts.values())
    collection = stored(tmp_path)
    documents = [np.asarray(x).tobytes().decode() for x in collection.documents]
    assert sorted(documents) == sorted({document for _, document in PAIRS})
    pairs = {
        (text.decode(), documents[number])
        for split in SPLITS
        for text, grades in zip(
            collection.queries[split].texts, collection.queries[split].judged, strict=True
        )
        for number in grades
    }
    assert pairs == set(PAIRS)
    # No query is a document of the collection.
    assert all(x == -1 for split in SPLITS for x in collection.queries[split].self_documents)


def test_rows_without_a_query_or_document_are_counted(tmp_path):
    rows = [*PAIRS, ("", "owl 1 hunts"), ("who sings", "")]
    described = run_import(tmp_path, write_pairs(tmp_path / "a.csv", rows))
    assert sum(described.sizes.values()) == 20
    assert described.counts["empty_queries"] == described.counts["empty_documents"] == 1
    assert described.counts["unjudged_queries"] == 1
    assert sum(described.counts.values()) == 3


def test_other_columns_are_named(tmp_path):
    path = write_pairs(tmp_path / "a.csv", PAIRS, ("asked", "page"))
    with pytest.raises(DataError, match="no column 'query'; its columns are asked, page"):
        run_import(tmp_path, path)
    assert run_import(tmp_path, path, "asked", "page").documents == 20
