"""JSON of users at every door: keys that are twice in an object, and text that has no encoding."""

import json

import pytest

from longspan.cli.parsing import parse_changes
from longspan.data.json_files import load_json
from longspan.data.sources.documents import CorpusSource
from longspan.data.sources.table import read_table
from longspan.data.sources.text import FileFormat, ReadingReport
from longspan.errors import DataError, OptionError
from longspan.files import parse_json, read_json
from longspan.tasks.ranking.beir_files import read_texts

DOORS = {
    "record": read_json,
    "--set": lambda path: parse_changes([f"x={path.read_text()}"]),
    "published data": load_json,
    "own table": read_table,
    "collection": lambda path: list(read_texts(path)),
    "corpus": lambda path: list(CorpusSource(path=str(path)).read(FileFormat(), ReadingReport())),
}


@pytest.mark.parametrize("door", DOORS)
def test_key_that_is_twice_is_refused(tmp_path, door):
    path = tmp_path / "x.jsonl"
    path.write_text('{"_id": "1", "text": "a", "text": "b"}')
    assert json.loads(path.read_text())["text"] == "b"  # without a word
    with pytest.raises((DataError, OptionError), match="key 'text' is there twice"):
        DOORS[door](path)
    path.write_text('{"_id": "1", "text": "a", "b": {"text": "b"}}')
    DOORS[door](path)


def test_key_that_is_twice_is_found_at_any_depth():
    with pytest.raises(ValueError, match="key 'b' is there twice"):
        parse_json('[{"a": {"b": 1, "c": {}, "b": 1}}]')


@pytest.mark.parametrize(
    "half", [r"\ud83d", r"\uDE00", r"\uD83D x", r"\ude00\ud83d", r"\\ud83d\ude00"]
)
@pytest.mark.parametrize("door", ["published data", "own table", "collection"])
def test_half_of_a_surrogate_pair_is_refused(tmp_path, door, half):
    """No tokenizer encodes it; a whole pair is an emoji, and a backslash before it is text."""
    path = tmp_path / "x.jsonl"
    path.write_text(rf'{{"_id": "1", "text": "a {half}"}}')
    with pytest.raises(DataError, match="half of a surrogate pair"):
        DOORS[door](path)
    path.write_text(r'{"_id": "1", "text": "\ud83d\ude00 \\ud83d"}')
    DOORS[door](path)
