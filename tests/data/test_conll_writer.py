"""Writer of CoNLL-2012: the columns of known documents, and the way back for drawn ones."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conll_files import column_document
from longspan.errors import InputError
from longspan.tasks.documents.conll import Document, format_document, read_documents


def document(words, *clusters, id="nw/made/00/made_0001_12", ends=()):
    """Return a document; sentences end behind the given words and at the last one."""
    bounds = [0, *(end + 1 for end in ends), len(words)]
    sentences = [tuple(words[a:b]) for a, b in itertools.pairwise(bounds)]
    return Document(
        id=id, sentences=tuple(sentences), speakers=("-",) * len(words), clusters=tuple(clusters)
    )


def read(path, text):
    path.write_text(text, encoding="utf-8")
    return list(read_documents(path))


def marks(text):
    """Return the last column of each word."""
    return [line.split()[-1] for line in text.splitlines() if line and not line.startswith("#")]


def test_columns_are_those_of_the_shared_task():
    made = document(["Ada", "met", "her", "son", "."], ((0, 0), (2, 2)), ((2, 3),), ends=(1,))
    lines = format_document(made).split("\n")
    assert lines[0] == "#begin document (nw/made/00/made_0001); part 012"
    assert lines[-2:] == ["#end document", ""]
    assert [line for line in lines[1:-2] if not line] == ["", ""]  # one behind each sentence
    rows = [line.split() for line in lines[1:-2] if line]
    assert {tuple(row[:2]) for row in rows} == {("nw/made/00/made_0001", "12")}
    assert [row[2] for row in rows] == ["0", "1", "0", "1", "2"]  # of the sentence
    assert [row[3] for row in rows] == ["Ada", "met", "her", "son", "."]
    assert {len(row) for row in rows} == {12}
    assert [row[-1] for row in rows] == ["(0)", "-", "(0)|(1", "1)", "-"]


def test_an_annotated_document_keeps_words_sentences_speakers_and_clusters(tmp_path):
    text = column_document() + column_document(part=7)
    documents = read(tmp_path / "key", text)
    written = "".join(map(format_document, documents))
    assert read(tmp_path / "response", written) == documents
    assert marks(written) == marks(text)


def test_mentions_of_one_cluster_may_meet_in_a_word(tmp_path):
    """A reader that matches the last open mention needs ends before beginnings."""
    made = document("abcde", ((0, 2), (1, 2), (2, 2), (2, 4)))
    text = format_document(made)
    assert marks(text) == ["(0", "(0", "0)|0)|(0)|(0", "-", "0)"]
    assert read(tmp_path / "file", text) == [made]


def test_repeated_mentions_are_written_once():
    assert marks(format_document(document("ab", ((0, 0), (0, 0), (1, 1))))) == ["(0)", "(0)"]


spans = st.tuples(st.integers(0, 11), st.integers(0, 11)).map(lambda x: (min(x), max(x)))


@st.composite
def partitions(draw):
    """Draw clusters of different spans, without two of one cluster that cross."""
    found = [set() for _ in range(4)]
    for span in draw(st.lists(spans, unique=True, max_size=14)):
        own = found[draw(st.integers(0, 3))]
        words = set(range(span[0], span[1] + 1))
        others = [set(range(a, b + 1)) for a, b in own]
        if all(not words & x or words <= x or x <= words for x in others):
            own.add(span)
    return tuple(tuple(sorted(x)) for x in found if x)


@settings(max_examples=200, deadline=None)
@given(partitions(), st.sets(st.integers(0, 10)))
def test_drawn_clusters_come_back(tmp_path_factory, clusters, ends):
    made = document("abcdefghijkl", *clusters, ends=sorted(ends))
    path = tmp_path_factory.getbasetemp() / "drawn"
    (found,) = read(path, format_document(made))
    assert set(found.clusters) == set(clusters)
    assert dataclasses.replace(found, clusters=made.clusters) == made


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (document("ab", id="made"), "'made' has no part"),
        (document(["a b"]), "without white space, got 'a b'"),
        (document(["a", ""]), "without white space, got ''"),
        (document("ab", ((0, 2),)), r"mention \(0, 2\) of cluster 0 is not within the 2 words"),
        (document("ab", ((-1, 0),)), r"mention \(-1, 0\) of cluster 0 is not within"),
        (document("abcd", (), ((0, 2), (1, 3))), r"\(0, 2\) and \(1, 3\) of cluster 1 cross"),
        (
            dataclasses.replace(document("ab"), speakers=("-",)),
            "one speaker for each of 2 words, got 1",
        ),
    ],
    ids=["id", "space", "empty", "behind", "before", "crossing", "speakers"],
)
def test_documents_that_columns_cannot_say_are_refused(made, message):
    with pytest.raises(InputError, match=message):
        format_document(made)
