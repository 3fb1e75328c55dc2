"""PG-19 against a plain reading of its books; other folders are refused."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from longspan.data.document_rows import DocumentWriter
from longspan.errors import DataError
from longspan.tasks import build
from longspan.tasks.language import pg19
from longspan.tasks.language.pg19 import find, read_split
from text_sources import BOOKS, documents_of, write_books

COUNTS = {split: len(texts) for split, texts in BOOKS.items()}


pytestmark = pytest.mark.usefixtures("nowhere")


def read(tmp_path, copy, split):
    writer = DocumentWriter(tmp_path / "scratch" / split, np.uint8, min_length=2)
    words = read_split(copy.files[split], writer)
    return writer, words


@pytest.mark.parametrize("block", [1, 5, 1 << 20])
def test_books_are_their_bytes_sorted_by_name(tmp_path, monkeypatch, block):
    monkeypatch.setattr(pg19.archives, "_BLOCK", block)
    folder = write_books(tmp_path / "pg19")
    for data in (folder, tmp_path):
        copy = find(data, COUNTS)
        assert copy.path == folder
    for split in BOOKS:
        paths = sorted((folder / split).iterdir(), key=lambda path: path.name)
        contents = [path.read_bytes() for path in paths]
        writer, words = read(tmp_path, copy, split)
        found = [(x - 1).astype(np.uint8).tobytes() for x in documents_of(writer.examples())]
        assert found == [x for x in contents if len(x) > 1]
        assert words == sum(len(x.split()) for x in contents)
        assert writer.num_documents == len(found)
        assert writer.num_short == sum(len(x) == 1 for x in contents)


def test_the_identity_has_the_books_and_bytes_of_each_split(tmp_path, monkeypatch):
    monkeypatch.setattr(pg19.PG19, "books", COUNTS)
    identify = build("pg19").identify_source
    one = identify(write_books(tmp_path / "one"))
    assert one["books"] == COUNTS
    assert one == identify(write_books(tmp_path / "two"))
    (tmp_path / "two" / "test" / "2.txt").write_text("the END!")
    assert one != identify(tmp_path / "two")


def test_a_part_of_the_books_is_refused(tmp_path):
    folder = write_books(tmp_path)
    with pytest.raises(
        DataError,
        match=r"is not the whole PG-19: books, train has 2 of 28,602, validation has 1 of 50, test "
        r"has 3 of 100; download .*refused; .*import corpus \S+ --objective next",
    ):
        find(folder, pg19.BOOKS)


def test_a_folder_of_texts_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "novel.txt").write_text("a book")
    with pytest.raises(
        DataError, match=r"has no folders train, validation, test.*import corpus \S+ --obj"
    ):
        find(tmp_path, pg19.BOOKS)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", r"12\.txt is empty"),
        (b"a\0b", r"12\.txt is binary \(a zero byte\)"),
        (b"caf\xe9 noir", r"12\.txt is not UTF-8 text"),
        ("café".encode()[:-1], r"12\.txt ends inside a character"),
    ],
)
def test_empty_binary_and_undecodable_books_are_refused(tmp_path, content, reason):
    books = {**BOOKS, "train": {**BOOKS["train"], "12": content}}
    copy = find(write_books(tmp_path / "pg19", books), COUNTS)
    with pytest.raises(DataError, match=reason):
        read(tmp_path, copy, "train")


def test_real_books_are_read_byte_by_byte(tmp_path):
    """Three books of PG-19 as published."""
    source = Path(os.environ.get("LONGSPAN_TEST_DATA", ""))
    samples = next(source.glob("format_samples/*.tar.gz"), None)
    if samples is None:
        pytest.skip("LONGSPAN_TEST_DATA has no format_samples")
    with tarfile.open(samples) as archive:
        members = [x for x in archive.getmembers() if "pg19" in x.name]
        contents = {x.name: archive.extractfile(x).read() for x in members if x.isfile()}
    zips = [zipfile.ZipFile(io.BytesIO(x)) for name, x in contents.items() if ".zip" in name]
    texts = [x for name, x in contents.items() if name.endswith(".txt")]
    texts += [books.read(x) for books in zips for x in books.namelist() if x.endswith(".txt")]
    texts = [x for x in texts if len(x) > 1]
    made = {str(number): text for number, text in enumerate(texts)}
    copy = find(
        write_books(tmp_path / "pg19", dict.fromkeys(COUNTS, made)),
        dict.fromkeys(COUNTS, len(made)),
    )
    writer, words = read(tmp_path, copy, "test")
    found = documents_of(writer.examples())
    assert [(x - 1).astype(np.uint8).tobytes() for x in found] == texts
    assert words == sum(len(text.split()) for text in texts)
