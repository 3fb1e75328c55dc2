"""Documents of a corpus, read piece by piece, and the report of what was left out."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from longspan.errors import DataError

DocumentUnit = Literal["file", "line", "paragraph"]
UTF8 = "utf-8"
PART = 1 << 16  # characters of a part of a document
LONGEST = 1 << 26  # characters of a line, paragraph, field or object that is read whole
SKIP_REMEDY = "correct it, or pass --skip-bad to leave such documents out and count them"
_SHOWN = 5  # reasons that are kept for the report


@dataclasses.dataclass(frozen=True)
class Document:
    """A document: its place, for messages, and its text in parts.

    The parts are read from the file as they are iterated, once and before the next document.
    """

    where: str
    parts: Iterator[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusFormat:
    """Reading of the files of a corpus.

    Attributes:
        text: column, or field, of the texts in JSONL, parquet and data sets.
        document: the text of a text file that is one document.
        encodings: encodings of text files; the first one that decodes the whole file counts.
        limit: most documents of a path; None: all.
        skip_bad: leave unreadable documents out, and count them, in place of an error.
    """

    text: str = "text"
    document: DocumentUnit = "file"
    encodings: tuple[str, ...] = (UTF8,)
    limit: int | None = None
    skip_bad: bool = False


class ReadingReport:
    """Documents that were left out, with the first reasons, and the encodings that were found."""

    def __init__(self, *, skip_bad: bool):
        """Start without any; `skip_bad` is that of the format."""
        self.skip_bad = skip_bad
        self.num_bad, self.num_empty = 0, 0
        self.reasons: list[str] = []
        self.empty: list[str] = []  # places of the first empty documents
        self.encodings: Counter[str] = Counter()

    def add_bad(self, where: str, reason: str) -> None:
        """Count a document that cannot be read.

        Raises:
            DataError: such documents are not to be left out; the message has the place.
        """
        if not self.skip_bad:
            raise DataError(f"{where}: {reason}; {SKIP_REMEDY}")
        self.num_bad += 1
        self.reasons += [f"{where}: {reason}"][: _SHOWN - len(self.reasons)]

    def add_empty(self, where: str) -> None:
        """Count a document without text."""
        self.num_empty += 1
        self.empty += [where][: _SHOWN - len(self.empty)]

    def left_out(self) -> str:
        """Return what was left out, with the first places, in brackets; empty if nothing was."""
        counts = {"empty": (self.num_empty, self.empty), "unreadable": (self.num_bad, self.reasons)}
        found = [
            f"{number:,} {what}: {'; '.join(places)}{', ...' if number > len(places) else ''}"
            for what, (number, places) in counts.items()
            if number
        ]
        return f" (left out: {'; '.join(found)})" if found else ""


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
