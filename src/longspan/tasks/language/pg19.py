"""PG-19: whole books, as bytes; predict the next one.

Rae et al., "Compressive Transformers", 2020 (https://arxiv.org/abs/1911.05507): books of
Project Gutenberg that were published before 1919. A copy is the published folder: train, validation
and test, in each a file ID.txt for each book. Bytes are read as they are, their line ends included.
metadata.csv (titles and years) is not read.
"""

import codecs
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from longspan.data import archives
from longspan.data.cache import BuildOutput
from longspan.data.document_rows import DocumentWriter
from longspan.data.source_files import SourceFiles, format_paths, search_paths, usual_folders
from longspan.data.stream_vocabularies import BLANKS, ByteVocabulary
from longspan.errors import DataError, MissingSourceError
from longspan.tasks.base import ProgressCallback
from longspan.tasks.info import TaskInfo, published_scores
from longspan.tasks.language.streams import StreamTask
from longspan.tasks.registry import register
from longspan.tasks.task_data import SPLITS

URL = "https://github.com/google-deepmind/pg19"
BOOKS = {"train": 28_602, "validation": 50, "test": 100}
_LIMITS = archives.Limits(member=1 << 30, total=1 << 36)
_BLANKS = np.frombuffer(BLANKS.encode(), np.uint8)


def find(data: Path | None, expected: Mapping[str, int]) -> SourceFiles:
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


def _check_books(folder: Path, expected: Mapping[str, int]) -> SourceFiles:
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
    return SourceFiles(form="folder", path=folder, files=books)


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


@register
class PG19(StreamTask):
    """Next bytes of books."""

    vocabulary = ByteVocabulary()
    books: ClassVar[Mapping[str, int]] = BOOKS
    info = TaskInfo(
        name="pg19",
        title="PG-19 (bytes)",
        summary="Predict the next byte of a book.",
        source=f"PG-19, Rae et al. 2020, {URL}",
        license="Apache-2.0 (the collection); the books are in the public domain in the US",
        vocab_size=vocabulary.size,
        num_classes=vocabulary.size,
        metrics=("bits_per_byte", "word_perplexity"),
        head="causal_lm",
        published=published_scores("pg19"),
        notes=(
            "Documents are the books, split as published: 28,602, 50 and 100. Bytes are those of "
            "the files, line ends included. The first byte of a book is not predicted, nor is its "
            "end. Perplexity per word is that of all bytes, divided by the words, runs of "
            "characters between ASCII white space; the first word of a book does not count. The "
            "paper counts 1,973,136,207 words in training, 3,007,061 in validation and 6,966,499 "
            "in the test split; the data card has the counts of the files that were read. "
            "held_out_tokens limits what is scored of each held-out book. A part of the set, or "
            "other books, become a task by `longspan data import corpus FOLDER --objective "
            "next`."
        ),
    )

    def find_source(self, data: Path | None) -> SourceFiles:
        """Return the copy of the set."""
        return find(data, self.books)

    def identify_source(self, data: Path | None) -> dict[str, Any]:
        """Return the number of books and the bytes of each split."""
        source = self.find_source(data)
        sizes = {x: sum(book.stat().st_size for book in y) for x, y in source.files.items()}
        books = {split: len(paths) for split, paths in source.files.items()}
        return {"form": source.form, "books": books, **sizes}

    def build_splits(
        self, data: Path | None, scratch: Path, progress: ProgressCallback
    ) -> BuildOutput:
        """Read the books, in constant memory."""
        copy = self.find_source(data)
        total = sum(self.books.values())
        writers: dict[str, DocumentWriter] = {}
        words: dict[str, int] = {}
        for split in SPLITS:
            progress(f"reading {split}", sum(x.num_documents for x in writers.values()), total)
            writers[split] = DocumentWriter(scratch / f"{split}.tokens", np.uint8, min_length=2)
            words[split] = read_split(copy.files[split], writers[split])
        splits = {split: writer.examples() for split, writer in writers.items()}
        return BuildOutput(
            splits=splits,
            source=f"PG-19, {sum(x.num_documents for x in writers.values()):,} books",
            facts={
                "books": {split: x.num_documents for split, x in writers.items()},
                "too_short": {split: x.num_short for split, x in writers.items()},
                "words": words,
                "tokens": {name: len(part.tokens.values) for name, part in splits.items()},
            },
        )
