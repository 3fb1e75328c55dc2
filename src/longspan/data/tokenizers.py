"""Text as token ids: its bytes, or the characters that are frequent in the texts trained on.

Bytes as in Long Range Arena (Tay et al. 2021): a byte is its value plus one. Characters as in the
recipes that followed S4 (Gu et al. 2022; state-spaces/s4, src/dataloaders/lra.py): those that
occur a minimum number of times in the training texts, by falling frequency, ties by code point.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

PADDING, UNKNOWN, END = range(3)
_FIRST = END + 1  # the id of the most frequent character


class Bytes:
    """Ids of UTF-8 bytes: the byte plus one, since 0 is padding."""

    size: ClassVar[int] = 257

    @property
    def facts(self) -> dict[str, Any]:
        """What a manifest keeps: nothing, since the rule says it all."""
        return {}

    def encode(self, text: bytes, length: int) -> np.ndarray:
        """The ids (uint8) of the first `length` bytes of a UTF-8 text."""
        # UTF-8 has no byte above 0xF4, so that a byte plus one is a byte
        return np.frombuffer(text[:length], np.uint8) + np.uint8(1)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids without padding; a character that was cut is U+FFFD."""
        return (ids - 1).astype(np.uint8).tobytes().decode("utf-8", errors="replace")


@dataclass(frozen=True)
class Characters:
    """Ids of characters: 0 padding, 1 unknown, 2 the end symbol, then by falling frequency.

    There are always 256 ids, so that a model's size does not depend on the texts; those that no
    character needs stay unused, and characters for which none is left are unknown.
    """

    size: ClassVar[int] = 256

    characters: str  # in the order of their ids, from 3 on
    end: bool = field(kw_only=True)  # whether the end symbol closes each text
    left_out: int = field(default=0, kw_only=True)  # different characters learnt from but unknown

    @classmethod
    def learn(
        cls, texts: Iterable[tuple[bytes, int]], *, length: int, minimum: int, end: bool
    ) -> "Characters":
        """Choose the characters from the UTF-8 texts that are trained on.

        Args:
            texts: and how often each occurs; only what `encode` keeps of them counts.
            length: the most ids of a text.
            minimum: a character that occurs less often is unknown.
            end: close each text with the end symbol, within its length.
        """
        counts = np.zeros(sys.maxunicode + 1, np.int64)
        for text, repeats in texts:
            found, times = np.unique(_codes(text, length - end), return_counts=True)
            counts[found] += times * repeats
        frequent = np.flatnonzero(counts >= minimum)
        # a stable order keeps characters of one frequency in the order of their code points
        order = frequent[np.argsort(-counts[frequent], kind="stable")][: cls.size - _FIRST]
        chosen = "".join(map(chr, order))
        return cls(chosen, end=end, left_out=int(np.count_nonzero(counts)) - len(chosen))

    @property
    def facts(self) -> dict[str, Any]:
        """What a manifest keeps: the characters in order of their ids, and how many have none."""
        return {"characters": self.characters, "characters_left_out": self.left_out}

    def encode(self, text: bytes, length: int) -> np.ndarray:
        """At most `length` ids (uint8) of a UTF-8 text, the end symbol included."""
        ids = self._ids[_codes(text, length - self.end)]
        return np.append(ids, np.uint8(END)) if self.end else ids

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids; U+FFFD stands for what is unknown."""
        symbols = ("", "\ufffd", "", *self.characters)
        return "".join(symbols[token] for token in ids)

    @cached_property
    def _ids(self) -> np.ndarray:
        """The id of every code point."""
        ids = np.full(sys.maxunicode + 1, UNKNOWN, np.uint8)
        ids[_codes(self.characters.encode(), len(self.characters))] = np.arange(
            _FIRST, _FIRST + len(self.characters)
        )
        return ids


SIZES = {"bytes": Bytes.size, "characters": Characters.size}


def _codes(text: bytes, length: int) -> np.ndarray:
    """The code points of the first `length` characters of a UTF-8 text."""
    return np.frombuffer(text.decode()[:length].encode("utf-32-le"), "<u4")
