"""Vocabularies of language models: symbols, and how many bytes, characters and words they are.

Id 0 is padding in all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from longspan.data.tokenizers import ByteTokenizer


class StreamVocabulary(ABC):
    """Vocabulary of a language model.

    Attributes:
        size: number of ids, that of padding included.
        symbols: text of each id, to show it.
    """

    size: int
    symbols: Sequence[str]

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text.

        Raises:
            OptionError: the vocabulary lacks a character of it.
        """

    @abstractmethod
    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids."""

    @abstractmethod
    def count(self, name: str, tokens: np.ndarray, is_scored: np.ndarray) -> int:
        """Return how many bytes, characters or words the scored ones of some tokens are.

        Args:
            name: "bytes", "characters" or "words".
            tokens: tokens that follow each other, (N + 1,).
            is_scored: which of those after the first count, (N,).
        """


class ByteVocabulary(StreamVocabulary):
    """Bytes of UTF-8: an id is the byte plus one."""

    size = ByteTokenizer.vocab_size
    symbols = ByteTokenizer.symbols

    def encode(self, text: str) -> np.ndarray:
        """Return the id of each byte."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint16) + np.uint16(1)

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids; a truncated character is U+FFFD."""
        return ByteTokenizer().decode(ids)

    def count(self, name: str, tokens: np.ndarray, is_scored: np.ndarray) -> int:
        """Count scored bytes, the first bytes of characters, or those of words.

        A word begins at a byte that is no white space, behind one that is.
        """
        bytes_ = tokens.astype(np.int64) - 1
        match name:
            case "bytes":
                counted = is_scored
            case "characters":
                counted = is_scored & ((bytes_[1:] & 0xC0) != 0x80)
            case "words":
                blank = np.isin(bytes_, _BLANKS)
                counted = is_scored & blank[:-1] & ~blank[1:]
            case _:
                raise ValueError(f"expected bytes, characters or words, got {name!r}")
        return int(counted.sum())


_BLANKS = np.frombuffer(b" \t\n\r\x0b\x0c", np.uint8)
