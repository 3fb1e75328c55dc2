"""Tokenizers of texts: bytes, or the frequent characters or words of the training texts.

Tokenizers of the Hugging Face libraries are in `longspan.data.word_pieces`.

Bytes as in Long Range Arena (Tay et al. 2021): the id of a byte is its value plus one. Characters
as in the recipes that followed S4 (Gu et al. 2022; state-spaces/s4, src/dataloaders/lra.py): those
that occur a minimum number of times in the training texts, by decreasing frequency, ties by code
point. Words as in the alternative to bytes of Long Range Arena's code (google-research/
long-range-arena, lra_benchmarks/text_classification/input_pipeline.py, `get_tc_datasets` with
another `tokenizer` than "char"): runs of letters, digits and underscores. Differences: words are in
lower case and keep the marks of their letters, such as the vowel signs of Hindi, and the most
frequent ones have an id; there case is kept, marks separate words, and every word has an id.
"""

import functools
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from longspan.data.word_pieces import WordPieceTokenizer
from longspan.words import mark_ranges

PADDING, UNKNOWN, END = range(3)
_FIRST = END + 1  # the id of the most frequent character
_FIRST_WORD = UNKNOWN + 1
_NO_TEXT = "\ufffd"  # of unknown ids, unused ids and parts of characters


class ByteTokenizer:
    """Tokenizer of UTF-8 bytes: an id is the byte plus one, since 0 is padding."""

    vocab_size: ClassVar[int] = 257
    dtype: ClassVar[type[np.unsignedinteger]] = np.uint8
    symbols: ClassVar[tuple[str, ...]] = (  # text of each id
        _NO_TEXT,
        *(bytes([byte]).decode(errors="replace") for byte in range(256)),
    )

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of a manifest that describe the tokenizer: none."""
        return {}

    def encode(self, text: bytes, length: int) -> np.ndarray:
        """Return the ids (uint8) of the first `length` bytes of a UTF-8 text."""
        # UTF-8 has no byte above 0xF4, so a byte plus one fits into uint8
        return np.frombuffer(text[:length], np.uint8) + np.uint8(1)

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids without padding; a truncated character is U+FFFD."""
        return (ids - 1).astype(np.uint8).tobytes().decode("utf-8", errors="replace")


@dataclass(frozen=True)
class CharacterTokenizer:
    """Tokenizer of characters: 0 padding, 1 unknown, 2 end symbol, then by decreasing frequency.

    The vocabulary always has 256 ids, so the size of a model does not depend on the texts. Ids
    without a character stay unused; characters without an id are unknown.
    """

    vocab_size: ClassVar[int] = 256
    dtype: ClassVar[type[np.unsignedinteger]] = np.uint8

    characters: str  # in the order of their ids, from 3 on
    end: bool = field(kw_only=True)  # append the end symbol to each text
    left_out: int = field(default=0, kw_only=True)  # different training characters without an id

    @classmethod
    def learn(
        cls, texts: Iterable[tuple[bytes, int]], *, length: int, minimum: int, end: bool
    ) -> "CharacterTokenizer":
        """Choose the characters from UTF-8 training texts.

        Args:
            texts: each text and its number of occurrences.
            length: the most ids of a text; the rest of the text is not counted.
            minimum: a character that occurs less often is unknown.
            end: append the end symbol to each text, within its length.
        """
        counts = np.zeros(sys.maxunicode + 1, np.int64)
        for text, repeats in texts:
            characters, times = np.unique(
                code_points(text.decode()[: length - end]), return_counts=True
            )
            counts[characters] += times * repeats
        frequent = np.flatnonzero(counts >= minimum)
        # a stable order keeps characters of one frequency in the order of their code points
        order = frequent[np.argsort(-counts[frequent], kind="stable")][: cls.vocab_size - _FIRST]
        alphabet = "".join(map(chr, order))
        return cls(alphabet, end=end, left_out=int(np.count_nonzero(counts)) - len(alphabet))

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of a manifest: the characters in order of ids, the number without an id."""
        return {"characters": self.characters, "characters_left_out": self.left_out}

    def encode(self, text: bytes, length: int) -> np.ndarray:
        """Return at most `length` ids (uint8) of a UTF-8 text, the end symbol included."""
        ids = self._ids[code_points(text.decode()[: length - self.end])]
        return np.append(ids, np.uint8(END)) if self.end else ids

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids; an unknown character is U+FFFD."""
        return "".join(self.symbols[token] for token in ids)

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """Text of each id; U+FFFD for unknown and unused ones."""
        return _fill(("", _NO_TEXT, "", *self.characters), self.vocab_size)

    @functools.cached_property
    def _ids(self) -> np.ndarray:
        """The id of every code point."""
        ids = np.full(sys.maxunicode + 1, UNKNOWN, np.uint8)
        ids[code_points(self.characters)] = np.arange(_FIRST, _FIRST + len(self.characters))
        return ids


@dataclass(frozen=True)
class WordTokenizer:
    """Tokenizer of words: 0 padding, 1 unknown, then words by decreasing frequency.

    A word is a run of letters with their marks, digits and underscores, in lower case; everything
    else separates words. Tags of a text become words too, such as the `br` of IMDB's line breaks.
    """

    dtype: ClassVar[type[np.unsignedinteger]] = np.uint16

    words: tuple[str, ...]  # in the order of their ids, from 2 on
    vocab_size: int = field(kw_only=True)  # ids, those without a word included
    left_out: int = field(default=0, kw_only=True)  # different training words without an id

    @classmethod
    def learn(
        cls, texts: Iterable[tuple[bytes, int]], *, length: int, vocab_size: int
    ) -> "WordTokenizer":
        """Choose the most frequent words of UTF-8 training texts, ties by code points.

        Args:
            texts: each text and its number of occurrences.
            length: the most words of a text; the rest of the text is not counted.
            vocab_size: number of ids, those of padding and unknown words included.
        """
        counts: Counter[str] = Counter()
        for text, repeats in texts:
            for word in split_words(text, length):
                counts[word] += repeats
        words_by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
        words = tuple(words_by_frequency[: vocab_size - _FIRST_WORD])
        return cls(words, vocab_size=vocab_size, left_out=len(counts) - len(words))

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of a manifest: the words in order of ids, and the numbers with and without."""
        counts = {"words_known": len(self.words), "words_left_out": self.left_out}
        return {**counts, "words": " ".join(self.words)}

    def encode(self, text: bytes, length: int) -> np.ndarray:
        """Return at most `length` ids (uint16) of a UTF-8 text; one without a word is unknown."""
        ids = [self._ids.get(word, UNKNOWN) for word in split_words(text, length)]
        return np.array(ids or [UNKNOWN], np.uint16)

    def decode(self, ids: np.ndarray) -> str:
        """Return the words of ids, separated by spaces; an unknown word is U+FFFD."""
        return " ".join(self.symbols[token] for token in ids)

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """Text of each id; U+FFFD for unknown and unused ones."""
        return _fill(("", _NO_TEXT, *self.words), self.vocab_size)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: token for token, word in enumerate(self.words, _FIRST_WORD)}


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word."""
    return re.compile(rf"\w[\w{mark_ranges()}]*")


def split_words(text: bytes, length: int) -> list[str]:
    """Return the first `length` words of a UTF-8 text, in lower case."""
    matches = _word_pattern().finditer(text.decode().lower())
    return [match[0] for match in itertools.islice(matches, length)]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return where the words of `split_words` are: first character and the one after the last."""
    # A character may be several in lower case.
    sources = [place for place, x in enumerate(text) for _ in x.lower()]
    matches = _word_pattern().finditer(text.lower())
    return [(sources[x.start()], sources[x.end() - 1] + 1) for x in matches]


Vocabulary = ByteTokenizer | CharacterTokenizer | WordTokenizer
Tokenizer = Vocabulary | WordPieceTokenizer
VOCAB_SIZES = {"bytes": ByteTokenizer.vocab_size, "characters": CharacterTokenizer.vocab_size}


def _fill(symbols: tuple[str, ...], vocab_size: int) -> tuple[str, ...]:
    """Append U+FFFD for each id without a symbol."""
    return symbols + (_NO_TEXT,) * (vocab_size - len(symbols))


def code_points(text: str) -> np.ndarray:
    """Return the code point of each character."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4")
