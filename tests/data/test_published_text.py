"""text8 and enwik8 against a plain reading of their bytes; other files are refused."""

import dataclasses
import hashlib
import tracemalloc

import numpy as np
import pytest

from longspan.errors import DataError
from longspan.tasks.language import hutter_prize
from longspan.tasks.language.hutter_prize import Enwik8, Text8, find, read_splits
from text_sources import SIZES, documents_of, letters, markup, small, write_text

CASES = {"text8": (Text8.text, Text8, letters), "enwik8": (Enwik8.text, Enwik8, markup)}


pytestmark = pytest.mark.usefixtures("nowhere")


def make(name):
    """Return the miniature of a published text, its content and the ids of its bytes."""
    text, cls, content_of = CASES[name]
    content = content_of(sum(SIZES.values()))
    return small(text, content), content, cls().byte_ids


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", ["file", "zip"])
def test_splits_are_the_bytes_of_the_file_in_order(tmp_path, monkeypatch, name, form):
    monkeypatch.setattr(hutter_prize.archives, "_BLOCK", 7)
    text, content, ids = make(name)
    path = write_text(tmp_path / name, name, content, form)
    for data in (path, path.parent, tmp_path):
        copy = find(text, data)
        assert (copy.path, copy.form) == (path, form)
    splits = read_splits(text, copy, ids, tmp_path / "scratch")
    vocabulary = CASES[name][1]().vocabulary
    first = 0
    for split, size in SIZES.items():
        (tokens,) = documents_of(splits[split])
        part = content[first : first + size]
        assert vocabulary.decode(tokens) == part.decode(errors="replace")
        symbols = sorted(set(content))
        order = {byte: n for n, byte in enumerate(symbols)}
        # ids keep the order of the bytes, and 0 is padding
        assert (np.argsort(np.unique(ids[symbols])) == np.arange(len(order))).all()
        np.testing.assert_array_equal(tokens, ids[np.frombuffer(part, np.uint8)])
        first += size
    assert first == len(content)


def test_the_environment_names_folders(tmp_path, monkeypatch):
    text, content, _ = make("text8")
    path = write_text(tmp_path / "text8", "text8", content, "file")
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))
    assert find(text, None).path == path


def test_an_unpacked_file_of_the_right_size_is_preferred_to_a_truncated_one(tmp_path):
    text, content, _ = make("text8")
    write_text(tmp_path, "text8", content[:-1], "file")
    path = write_text(tmp_path, "text8", content, "zip")
    assert find(text, tmp_path).path == path


@pytest.mark.parametrize("form", ["file", "zip"])
@pytest.mark.parametrize("size", [0, 100, 10_002])
def test_a_file_of_another_size_is_refused(tmp_path, form, size):
    text, content, _ = make("enwik8")
    write_text(tmp_path, "enwik8", (content * 2)[:size], form)
    with pytest.raises(
        DataError,
        match=rf"enwik8 has 10,001 bytes, but .*enwik8\S* has {size:,}; fetch .*a part of it is "
        r"refused; another text .*import corpus PATH --objective next",
    ):
        find(text, tmp_path)


def test_a_zip_with_another_file_or_a_damaged_one_is_refused(tmp_path):
    text, content, ids = make("text8")
    path = write_text(tmp_path, "other", content, "zip")
    path.rename(tmp_path / "text8.zip")
    with pytest.raises(DataError, match=r"text8\.zip has 0; fetch"):
        find(text, tmp_path)
    path = write_text(tmp_path, "text8", content, "zip")
    damaged = bytearray(path.read_bytes())
    damaged[200] ^= 255
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="truncated, damaged or no archive"):
        read_splits(text, find(text, tmp_path), ids, tmp_path / "scratch")


def test_a_byte_that_the_file_lacks_is_refused_with_its_place(tmp_path):
    text, content, ids = make("text8")
    changed = content[:9_100] + b"A" + content[9_101:]
    copy = find(text, write_text(tmp_path, "text8", changed, "file"))
    with pytest.raises(DataError, match="byte 9,100 is b'A', which text8 lacks"):
        read_splits(text, copy, ids, tmp_path / "scratch")
    text, content, ids = make("enwik8")
    copy = find(text, write_text(tmp_path, "enwik8", b"\xff" + content[1:], "file"))
    with pytest.raises(DataError, match=r"byte 0 is b'\\xff', which enwik8 lacks"):
        read_splits(text, copy, ids, tmp_path / "scratch")


def test_another_content_of_the_same_size_is_refused(tmp_path):
    text, content, ids = make("enwik8")
    right = hashlib.sha256(content).hexdigest()
    text = small(text, content, right)
    path = write_text(tmp_path, "enwik8", content, "file")
    assert read_splits(text, find(text, path), ids, tmp_path / "scratch")
    path.write_bytes(content[::-1].replace(b"\xff", b"x"))
    with pytest.raises(DataError, match=rf"not the published enwik8: .* sha256 {right}, got"):
        read_splits(text, find(text, path), ids, tmp_path / "scratch")


@pytest.mark.parametrize("form", ["file", "zip"])
def test_a_file_is_read_in_constant_memory(tmp_path, monkeypatch, form):
    monkeypatch.setattr(hutter_prize.archives, "_BLOCK", 1 << 14)
    _, content, ids = make("enwik8")
    content *= 400
    text = dataclasses.replace(Enwik8.text, sizes={"train": len(content)}, sha256=None)
    copy = find(text, write_text(tmp_path, "enwik8", content, form))
    tracemalloc.start()
    try:
        read_splits(text, copy, ids, tmp_path / "scratch")
        assert tracemalloc.get_traced_memory()[1] < len(content) / 4
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", [Text8.text, Enwik8.text], ids=lambda text: text.name)
def test_published_sizes_are_ninety_five_and_five_percent(text):
    assert list(text.sizes.values()) == [90_000_000, 5_000_000, 5_000_000]
    assert list(text.sizes) == ["train", "validation", "test"]
