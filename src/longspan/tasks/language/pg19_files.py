"""Reader of PG-19 (Rae et al. 2020) from a copy on this machine, never the network.

A copy is the published folder: train, validation and test, in each a file ID.txt for each book.
Bytes are read as they are, their line ends included. metadata.csv (titles and years) is not read.
"""

import codecs
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data import archives
from longspan.data.document_rows import DocumentWriter
from longspan.data.source_files import SourceFiles, format_paths, search_paths, usual_folders
from longspan.data.stream_vocabularies import BLANKS
from longspan.errors import DataError, MissingSourceError

URL = "https://github.com/google-deepmind/pg19"
BOOKS = {"train": 28_602, "validation": 50, "test": 100}
WORDS = {"train": 1_973_136_207, "validation": 3_007_061, "test": 6_966_499}  # as published
_LIMITS = archives.Limits(member=1 << 30, total=1 << 36)
_BLANKS = np.frombuffer(BLANKS.encode(), np.uint8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BookFiles(SourceFiles):
    """One copy: the folder, and the files of the books of each split, sorted."""

    @property
    def origin(self) -> dict[str, Any]:
        """Number of books and bytes of each split."""
        sizes = {x: sum(book.stat().st_size for book in books) for x, books in self.files.items()}
        return {"form": self.form, "books": {x: len(y) for x, y in self.files.items()}, **sizes}


def find(data: Path | None, expected: Mapping[str, int]) -> BookFiles:
    """Find the published folder.

    Args:
        data: the folder, or one above its folder pg19. None: $LONGSPAN_DATA, then
            $LONGSPAN_TEST_DATA.
        expected: number of books of each split.

    Raises:
        DataError: there is no copy (the message says how to get one), or it lacks books.
    """
    paths = search_paths(data, "the folder of PG-19")
    for path in paths:
        folders = usual_folders(path, "pg19")[0 if data is not None else 1 :]
        for folder in folders:
            if any((folder / split).is_dir() for split in expected):
                return _check_books(folder, expected)
    if data is not None and (data.suffix == ".txt" or any(data.glob("*.txt"))):
        raise DataError(
            f"{data} has no folders {', '.join(expected)}, as PG-19 has; books of your own become "
            f"a task by `longspan data import corpus {data} --objective next`"
        )
    raise MissingSourceError(
        f"PG-19 is not here (searched {format_paths(paths)}); download {URL} to FOLDER and run "
        "`longspan data build pg19 --data FOLDER`"
    )


def _check_books(folder: Path, expected: Mapping[str, int]) -> BookFiles:
    books = {split: tuple(sorted((folder / split).glob("*.txt"))) for split in expected}
    counts = {split: len(names) for split, names in books.items()}
    if counts != dict(expected):
        differences = [
            f"{x} has {counts[x]:,} of {n:,}" for x, n in expected.items() if counts[x] != n
        ]
        raise DataError(
            f"{folder} is not the whole PG-19: books, {', '.join(differences)}; download {URL} "
            "again. As official data, a part of it is refused; it becomes a task, with its splits, "
            f"by `longspan data import corpus {folder} --objective next`"
        )
    return BookFiles(form="folder", path=folder, files=books)


def read_split(books: Iterable[Path], writer: DocumentWriter) -> int:
    """Write the tokens of the books of a split, read in blocks; return the number of words.

    Words are runs of bytes that are no ASCII white space. A book of one byte is left out.

    Raises:
        DataError: a book is empty, binary or no UTF-8 text; the message names its file.
        RunError: the disk is full.
    """
    words = 0
    for book in books:
        words += _read_book(book, writer)
        writer.end_document()
    return words


def _read_book(path: Path, writer: DocumentWriter) -> int:
    """Add a book to its split; return its number of words."""
    decoder, words, was_blank, size = codecs.getincrementaldecoder("utf-8")(), 0, True, 0
    with archives.open_member(path.parent, path.name, _LIMITS) as member:
        for block in member.blocks():
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path} is not UTF-8 text ({error.reason}); fetch it again"
                ) from error
            if b"\0" in block:
                raise DataError(f"{path} is binary (a zero byte); fetch it again")
            values = np.frombuffer(block, np.uint8)
            blank = np.isin(values, _BLANKS)
            words += int((~blank & np.append(was_blank, blank[:-1])).sum())
            was_blank, size = bool(blank[-1]), size + len(block)
            writer.add(values + np.uint8(1))
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} ends inside a character; fetch it again") from error
    if not size:
        raise DataError(f"{path} is empty; fetch it again")
    return words
