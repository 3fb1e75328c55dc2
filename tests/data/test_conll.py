"""Reader of CoNLL-2012: documents, nested mentions, layouts of files, malformed ones."""

import pytest

from conll_files import column_document, write_conll
from longspan.errors import DataError
from longspan.tasks import build
from longspan.tasks.documents.conll import checksums, find, read_documents


def read(tmp_path, text):
    path = tmp_path / "one.v4_gold_conll"
    path.write_text(text)
    return list(read_documents(path))


def test_documents_have_sentences_speakers_and_nested_mentions(tmp_path):
    first, second = read(tmp_path, column_document() + column_document(part=1))
    assert (first.id, second.id) == ("nw/made/00/made_0001_0", "nw/made/00/made_0001_1")
    assert first.genre == "nw"
    assert first.sentences[1] == ("He", "thanked", "her", ".")
    assert first.speakers == ("-",) * 8 + ("B",) * 4
    assert first.clusters == (((0, 0), (5, 5), (10, 10)), ((2, 6), (8, 8)))


def test_mentions_of_one_cluster_may_be_nested_and_share_words(tmp_path):
    rows = (("a", "(3|(3"), ("b", "3)"), ("c", "3)|(4)|(5"), ("d", "5)"), None)
    (found,) = read(tmp_path, column_document(rows=rows))
    assert found.clusters == (((0, 1), (0, 2)), ((2, 2),), ((2, 3),))


def test_a_sentence_ends_with_the_document_too(tmp_path):
    (found,) = read(tmp_path, column_document(rows=(("a", "-"), None, ("b", "(0)"))))
    assert found.sentences == (("a",), ("b",))


def test_both_layouts_of_files_are_found(tmp_path):
    (tmp_path / "joined").mkdir()
    joined = write_conll(tmp_path / "joined")
    tree = tmp_path / "conll-2012" / "v4" / "data"
    for part, name in (("train", "train"), ("development", "dev"), ("test", "test")):
        folder = tree / part / "data" / "english" / "annotations" / "nw" / "made"
        folder.mkdir(parents=True)
        for number in range(2):
            text = column_document(f"nw/made/{name}_{number}")
            (folder / f"{name}_{number}.v4_gold_conll").write_text(text)
    assert [len(x) for x in find(joined).files.values()] == [1, 1, 1]
    for place in (tree, tmp_path):
        found = find(place)
        assert [len(x) for x in found.files.values()] == [2, 2, 2]
        identity = build("coreference").identify_source(place)
        assert identity["files"] == {"train": 2, "development": 2, "test": 2}
    before = checksums(found)
    (folder / "test_0.v4_gold_conll").write_text(column_document("nw/other"))
    assert {x for x, y in checksums(found).items() if y != before[x]} == {"test"}
    with pytest.raises(DataError, match=r"CoNLL-2012 \(chinese\) is not here .*LDC2013T19"):
        find(tmp_path, "chinese")


WORD = "x 0 0 word NN * - - - - * {}"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("word",), "line 1: expected '#begin document"),
        (("#begin document (a); part 000", "#begin document (b); part 000"), "line 2: a document"),
        (("#begin document (a); part 000", "a b c"), "line 2: expected 12 columns or more, got 3"),
        (("#begin document (a); part 000", WORD.format("(x)")), r"coreference '\(x\)' is none of"),
        (("#begin document (a); part 000", WORD.format("7")), "coreference '7' is none of"),
        (("#begin document (a); part 000", WORD.format("7)")), r"line 2: '7\)' closes a mention"),
        (
            ("#begin document (a); part 000", WORD.format("(7"), "#end document"),
            "line 3: a mention of cluster 7 of a_0 is not closed",
        ),
        (("#begin document (a); part 000", "#end document"), "line 2: document a_0 has no words"),
        (("#begin document (a); part 000", WORD.format("-")), "ends within document a_0"),
    ],
)
def test_malformed_files_are_refused(tmp_path, lines, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, "\n".join(lines) + "\n")
