"""Reader of folders in the layout of BEIR: contents, and messages with file and line."""

import json
import re

import pytest

from beir_files import write_beir, write_judgments, write_lines
from longspan.errors import DataError
from longspan.tasks.ranking.beir_files import find_beir, read_judgments, read_texts


def texts_of(tmp_path, *lines):
    return list(read_texts(write_lines(tmp_path / "corpus.jsonl", lines)))


def judged(tmp_path, *rows, header=True):
    return list(read_judgments(write_judgments(tmp_path / "train.tsv", rows, header)))


def test_documents_have_their_title_before_their_text(tmp_path):
    rows = (
        '{"_id": "a", "title": " Owls ", "text": "hunt mice ", "metadata": {"x": [1]}}',
        "",
        '{"_id": 7, "text": "café"}',
        '{"_id": "b", "title": null, "text": null}',
    )
    found = texts_of(tmp_path, *rows)
    assert found == [("a", "Owls hunt mice"), ("7", "café"), ("b", "")]


def test_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"_id": "a", "text": "x"}\r\n')
    assert list(read_texts(path)) == [("a", "x")]


GOOD = '{"_id": "a", "text": "x"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON ("),
        ('["a"]', "line 2: not a JSON object but a list, expected one"),
        ('{"text": "x"}', "line 2 has no _id; its keys are text"),
        ('{"title": "x"}', "line 2 has no _id and no text; its keys are title"),
        ('{"_id": "", "text": "x"}', "line 2 has the _id ''; expected text that is not empty"),
        ('{"_id": true, "text": "x"}', "line 2 has the _id True"),
        ('{"_id": "b", "text": 3}', "line 2: text is a int, expected text"),
        ('{"_id": "b", "text": "x", "title": []}', "line 2: title is a list, expected text"),
        ('{"_id": "b", "text": "\\ud800"}', "line 2: half of a surrogate pair"),
        (GOOD, "line 2 has the _id 'a' of line 1; ids must differ"),
        ("[" * 100_000, "line 2: nested too deeply; expected"),
    ],
)
def test_malformed_texts_are_refused_with_file_and_line(tmp_path, line, message):
    with pytest.raises(DataError, match=re.escape(f"corpus.jsonl, {message}")):
        texts_of(tmp_path, GOOD, line)


def test_text_of_another_encoding_is_refused_with_its_line(tmp_path):
    path = tmp_path / "queries.jsonl"
    path.write_bytes(b'{"_id": "a", "text": "x"}\n{"_id": "b", "text": "caf\xe9"}\n')
    with pytest.raises(DataError, match=r"queries.jsonl, line 2, is not utf-8 text; pass"):
        list(read_texts(path))


@pytest.mark.parametrize("header", [True, False])
def test_judgments_have_a_header_or_none(tmp_path, header):
    found = judged(tmp_path, ("q1", "d 1", 1), ("q2", "d2", -1), ("q1", "d 1", 1), header=header)
    assert [(x.query, x.document, x.grade) for x in found] == [("q1", "d 1", 1), ("q2", "d2", -1)]
    assert found[1].place.endswith(f"train.tsv, line {2 + header}")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("q", "d"), "line 3 has 2 columns; expected query-id, corpus-id and score, separated by"),
        (("q", "0", "d", 1), "line 3 has 4 columns"),
        (("q", "d", "yes"), "line 3 has the score 'yes'; expected an integer of 16 bits"),
        (("q", "d", "1.5"), "line 3 has the score '1.5'"),
        (("q", "d", "99999"), "line 3 has the score '99999'"),
        (("a", "b", 0), "line 3 has score 0 for query 'a' and document 'b', line 2 has 1"),
    ],
)
def test_malformed_judgments_are_refused_with_file_and_line(tmp_path, row, message):
    with pytest.raises(DataError, match=re.escape(f"train.tsv, {message}")):
        judged(tmp_path, ("a", "b", 1), row)


def test_files_of_the_splits_are_found(tmp_path):
    folder = write_beir(tmp_path / "set")
    found = find_beir(folder).judgments
    assert {x: path.name for x, path in found.items()} == {
        "train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv",
    }  # fmt: skip


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing is not a folder; expected one with corpus"):
        find_beir(tmp_path / "nothing")
    folder = write_beir(tmp_path / "set", judgments={})
    (folder / "queries.jsonl").unlink()
    expected = "set lacks queries.jsonl and qrels/train.tsv, qrels/dev.tsv or qrels/test.tsv"
    with pytest.raises(DataError, match=expected):
        find_beir(folder)


def test_two_files_of_one_split_are_refused(tmp_path):
    folder = write_beir(tmp_path / "set")
    write_judgments(folder / "qrels" / "validation.tsv", [("q1", "d1", 1)])
    with pytest.raises(DataError, match=r"dev.tsv and .*validation.tsv both judge the validation"):
        find_beir(folder)


def test_files_read_as_they_were_written(tmp_path):
    folder = write_beir(tmp_path / "set")
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    found = list(read_texts(folder / "corpus.jsonl"))
    assert [name for name, _ in found] == [row["_id"] for row in rows]
