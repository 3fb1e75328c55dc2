"""Vocabularies of language models: symbols, and how many bytes, characters and words they are.

Id 0 is padding in all of them. That of word pieces is in `longspan.data.word_piece_vocabulary`.
"""

import functools
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from longspan.data.tokenizers import ByteTokenizer
from longspan.errors import OptionError

END, UNKNOWN = "<eos>", "<unk>"  # of word vocabularies


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
                raise unknown_count(name)
        return int(counted.sum())


class CharacterVocabulary(StreamVocabulary):
    """Characters of an alphabet: an id is the place in it plus one."""

    def __init__(self, alphabet: str):
        """Use these characters, each of which occurs once."""
        self.alphabet = alphabet
        self.size = len(alphabet) + 1
        self.symbols = (ByteTokenizer.symbols[0], *alphabet)
        self.dtype = smallest_type(self.size)

    def encode(self, text: str) -> np.ndarray:
        """Return the id of each character.

        Raises:
            OptionError: the alphabet lacks one.
        """
        ids = self._ids[_code_points(text)]
        if not ids.all():
            lacking = text[int(np.argmin(ids))]
            raise OptionError(
                f"the vocabulary of {len(self.alphabet)} characters lacks {lacking!r}; expected "
                f"{_shown(self.alphabet)}"
            )
        return ids

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids."""
        symbols = self.symbols
        return "".join(symbols[token] for token in ids.tolist())

    def count(self, name: str, tokens: np.ndarray, is_scored: np.ndarray) -> int:
        """Count scored characters, their bytes in UTF-8, or the first ones of words."""
        match name:
            case "bytes":
                return int(self._num_bytes[tokens[1:]][is_scored].sum())
            case "characters":
                return int(is_scored.sum())
            case "words":
                blank = self._is_blank[tokens]
                return int((is_scored & blank[:-1] & ~blank[1:]).sum())
        raise unknown_count(name)

    @functools.cached_property
    def _ids(self) -> np.ndarray:
        """The id of every code point; 0 of those that are not in the alphabet."""
        ids = np.zeros(_CODE_POINTS, self.dtype)
        ids[_code_points(self.alphabet)] = np.arange(1, self.size)
        return ids

    @functools.cached_property
    def _num_bytes(self) -> np.ndarray:
        return np.array([0, *(len(x.encode()) for x in self.alphabet)], np.int64)

    @functools.cached_property
    def _is_blank(self) -> np.ndarray:
        return np.array([False, *(x in BLANKS for x in self.alphabet)])


class WordVocabulary(StreamVocabulary):
    """Words between white space, and `<eos>` at the end of each line."""

    def __init__(self, words: Sequence[str]):
        """Use these words in the order of their ids, from 1 on; `<eos>` is one of them."""
        self.words = tuple(words)
        self.size = len(self.words) + 1
        self.symbols = (ByteTokenizer.symbols[0], *self.words)
        self.dtype = smallest_type(self.size)

    @classmethod
    def learn(cls, lines: Iterable[Sequence[str]]) -> "WordVocabulary":
        """Collect the words of lines: `<eos>`, then by decreasing frequency.

        Words of one frequency are in the order of their first occurrence, as in the vocabulary of
        Transformer-XL (Dai et al. 2019).
        """
        counts: Counter[str] = Counter()
        for words in lines:
            counts.update(words)
        return cls((END, *(word for word, _ in counts.most_common() if word != END)))

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of the words, and that of `<eos>` for each line feed.

        Raises:
            OptionError: the vocabulary has neither a word nor `<unk>`.
        """
        *lines, rest = text.split("\n")
        ids: list[int] = []
        for line in lines:
            ids += self.encode_words(line.split())
            ids.append(self._ids[END])
        return np.array(ids + self.encode_words(rest.split()), self.dtype)

    def encode_words(self, words: Sequence[str]) -> list[int]:
        """Return the id of each word, or that of `<unk>`.

        Raises:
            OptionError: the vocabulary has neither.
        """
        known, unknown = self._ids, self._ids.get(UNKNOWN, 0)
        found = [known.get(word, unknown) for word in words]
        if not all(found):
            lacking = words[found.index(0)]
            raise OptionError(
                f"the vocabulary of {len(self.words):,} words has neither {lacking!r} nor "
                f"{UNKNOWN}; use words of the training split"
            )
        return found

    def decode(self, ids: np.ndarray) -> str:
        """Return the words of ids, separated by spaces; `<eos>` is a line feed."""
        symbols = self.symbols
        joined = " ".join("\n" if symbols[x] == END else symbols[x] for x in ids.tolist())
        return joined.replace(" \n", "\n").replace("\n ", "\n")

    def count(self, name: str, tokens: np.ndarray, is_scored: np.ndarray) -> int:
        """Count scored tokens, each of which is a word, or the bytes or characters of the text.

        Those of a word are its own, and the space before it unless it begins a line. Published
        perplexities divide by the words and the ends of lines too.
        """
        if name == "words":
            return int(is_scored.sum())
        if name not in ("bytes", "characters"):
            raise unknown_count(name)
        own = (self._num_bytes if name == "bytes" else self._num_characters)[tokens[1:]]
        is_end = tokens == self._ids[END]
        return int((own + (~is_end[:-1] & ~is_end[1:]))[is_scored].sum())

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: token for token, word in enumerate(self.words, 1)}

    @functools.cached_property
    def _num_bytes(self) -> np.ndarray:
        sizes = (1 if word == END else len(word.encode()) for word in self.words)
        return np.array([0, *sizes], np.int64)

    @functools.cached_property
    def _num_characters(self) -> np.ndarray:
        sizes = (1 if word == END else len(word) for word in self.words)
        return np.array([0, *sizes], np.int64)


BLANKS = " \t\n\r\x0b\x0c"  # white space of ASCII, which separates words
_BLANKS = np.frombuffer(BLANKS.encode(), np.uint8)
_CODE_POINTS = sys.maxunicode + 1


def unknown_count(name: str) -> ValueError:
    """Return the error of a count that no vocabulary has."""
    return ValueError(f"expected bytes, characters or words, got {name!r}")


def smallest_type(size: int) -> type[np.unsignedinteger]:
    """Return the smallest type of the store that holds every id below `size`."""
    return np.uint8 if size <= 1 << 8 else np.uint16 if size <= 1 << 16 else np.uint32


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def _shown(alphabet: str) -> str:
    return repr(alphabet if len(alphabet) <= 40 else f"{alphabet[:40]}...")
