"""Documents of a corpus: sources, and texts that are read piece by piece."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from longspan.data.own_splits import SPLITS, TRAIN
from longspan.data.sources.folders import ARROW, SUFFIXES, find_files, table_suffix
from longspan.data.sources.rows import HUB, Row, has_surrogate, read_hub, read_rows
from longspan.data.sources.text import FileFormat, ReadingReport, read_units, unpacked_path

PART = 1 << 16  # characters of a part of a document
# Lists of paragraphs or sentences are one document.
_JOINT = "\n"


@dataclasses.dataclass(frozen=True)
class Document:
    """A document: its place, for messages, and its text in parts.

    The parts are read from the file as they are iterated, once and before the next document.
    """

    where: str
    parts: Iterator[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusSource:
    """A folder, a file, a pattern of files or a data set, read as a whole.

    Attributes:
        path: path, or "hf:NAME" for a data set of the `datasets` library.
        split: split of its documents; those of "train" are split further.
    """

    path: str
    split: str = SPLITS[TRAIN]

    @property
    def is_dataset(self) -> bool:
        """True for a data set of the `datasets` library."""
        return self.path.startswith(HUB)

    def read(self, form: FileFormat, report: ReadingReport) -> Iterator[Document]:
        """Yield the documents in the order of the sorted paths, up to the limit of the format.

        Raises:
            DataError: there is no such path, it has no files, or one is unusable.
            OptionError: an encoding or the name of a data set is invalid.
        """
        if self.is_dataset:
            documents = _convert_rows(self.path, read_hub(self.path), form, report)
        else:
            files = find_files(Path(self.path))
            documents = itertools.chain.from_iterable(_read_file(x, form, report) for x in files)
        return itertools.islice(documents, form.limit)


def _read_file(path: Path, form: FileFormat, report: ReadingReport) -> Iterator[Document]:
    """Yield the documents of a file: rows of a table by its suffix, else text."""
    if unpacked_path(path).suffix.lower() in ARROW and table_suffix(path) not in ARROW:
        report.add_bad(str(path), "expected plain parquet or Arrow, got a packed file; unpack it")
    elif table_suffix(path) in SUFFIXES:
        yield from _convert_rows(str(path), read_rows(path, form, report, form.text), form, report)
    else:
        for where, blocks in read_units(path, form, report):
            yield Document(where, split_parts(blocks))


def _convert_rows(
    name: str, rows: Iterable[Row], form: FileFormat, report: ReadingReport
) -> Iterator[Document]:
    """Yield a document for each row, from the column of the format; report rows without text."""
    for place, values in rows:
        where = f"{name}, {place}"
        try:
            text = _field_text(values, form.text)
        except ValueError as error:
            report.add_bad(where, str(error))
            continue
        yield Document(where, split_parts([text]))


def _field_text(values: dict[str, Any], field: str) -> str:
    """Return a string, or a list of strings joined by line ends; null is empty.

    Raises:
        ValueError: there is no such field, or it has something else.
    """
    if field not in values:
        raise ValueError(f"no field {field!r}, there are {', '.join(map(str, values))} (--text)")
    value = values[field]
    if value is None:
        return ""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(f"field {field!r} contains {type(parts[0]).__name__}, expected text")
    text = _JOINT.join(parts)
    if has_surrogate(text):
        raise ValueError(f"field {field!r} contains half of a surrogate pair, no character")
    return text


def split_parts(blocks: Iterable[str]) -> Iterator[str]:
    """Yield a text in parts of up to `PART` characters, cut before white space.

    Tokenizers that separate words at white space give the same ids for the parts as for the whole.
    A longer text without white space is cut anywhere.
    """
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > PART:
            cut = _last_break(rest)
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _last_break(text: str) -> int:
    """Return the last place in the first `PART` characters where a word has ended.

    A space is preferred to other white space, before which some tokenizers would add one.
    """
    for mark in (" ", "\n"):
        place = text.rfind(mark, 1, PART)
        while place > 0 and text[place - 1].isspace():
            place = text.rfind(mark, 1, place)
        if place > 0:
            return place
    return PART
