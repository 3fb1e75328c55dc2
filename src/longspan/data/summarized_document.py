"""A document with its summary, as sentences."""

import dataclasses
import re
from collections.abc import Sequence

from longspan.words import count_words

_ENDS = ".!?\u0964\u0965\u06d4\u061f"  # the last four in Hindi, Urdu and Arabic
_WIDE_ENDS = "\u3002\uff01\uff1f\uff61"  # in Chinese and Japanese, which put no space behind
_CLOSING = "\u300d\u300f\u201d\u2019\uff09"
_END = re.compile(
    rf"(?<=[{_ENDS}])\s+|(?<=[{_WIDE_ENDS}])(?![{_WIDE_ENDS}{_CLOSING}])\s*"
    rf"|(?<=[{_WIDE_ENDS}][{_CLOSING}])\s*"
)


@dataclasses.dataclass(frozen=True)
class SummarizedDocument:
    """A document and its summary.

    Attributes:
        id: identifier in the source; empty: none.
        where: file and place in it.
        document: sentences of the document.
        summary: sentences of the summary.
    """

    id: str
    where: str
    document: tuple[str, ...]
    summary: tuple[str, ...]

    @property
    def text(self) -> str:
        """The document as one text."""
        return " ".join(self.document)

    @property
    def summary_text(self) -> str:
        """The summary as one text."""
        return " ".join(self.summary)


def split_sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of a text: its parts after a period, question or exclamation mark.

    Marks are those of Latin, Cyrillic, Arabic, Devanagari, Chinese and Japanese. Line breaks
    separate sentences too. White space is collapsed.
    """
    parts = (part for line in text.splitlines() for part in _END.split(line))
    return tuple(sentence for part in parts if (sentence := " ".join(part.split())))


def leading_sentences(sentences: Sequence[str], num_words: float) -> tuple[str, ...]:
    """Return the first sentences until they have so many words; at least one.

    Characters of scripts without spaces are words.
    """
    selection, count = [], 0
    for sentence in sentences:
        selection.append(sentence)
        count += count_words(sentence)
        if count >= num_words:
            break
    return tuple(selection)
