"""Vocabularies of language models: symbols, and how many bytes, characters and words they are.

Id 0 is padding in all of them, except for word pieces, which have the ids of their tokenizer.
Counts follow from a table of the bytes of each id. A token of a byte-level tokenizer is a sequence
of bytes, which may begin or end inside a character. A token of another one is the text by which a
decoded text grows with it, the space before a word included.
"""

import functools
import itertools
import json
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from longspan.data.tokenizers import ByteTokenizer, code_points
from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import OptionError

END, UNKNOWN = "<eos>", "<unk>"  # of word vocabularies
BLANKS = " \t\n\r\x0b\x0c"  # white space of ASCII, which separates words
_BLANK_BYTES = BLANKS.encode()
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # of tokenizers that fall back to bytes
_CODE_POINTS = sys.maxunicode + 1


class StreamVocabulary(ABC):
    """Vocabulary of a language model.

    Attributes:
        size: number of ids, that of padding included.
        symbols: text of each id, to show it.
        dtype: type of the ids in the store.
    """

    size: int
    symbols: Sequence[str]
    dtype: type[np.unsignedinteger]

    @property
    @abstractmethod
    def texts(self) -> Sequence[bytes]:
        """Bytes of each id."""

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text.

        Raises:
            OptionError: the vocabulary lacks a character of it.
        """

    @abstractmethod
    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids."""

    def encode_texts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text; several threads may call it."""
        return [self.encode(text) for text in texts]

    def count(self, name: str, tokens: np.ndarray, is_scored: np.ndarray) -> int:
        """Return how many bytes, characters or words the scored ones of some tokens are.

        Characters and words are counted where they begin. A word begins at a byte that is no white
        space, behind one that is.

        Args:
            name: "bytes", "characters" or "words".
            tokens: tokens that follow each other, (N + 1,).
            is_scored: which of those after the first count, (N,).

        Raises:
            ValueError: the name is another one.
        """
        match name:
            case "bytes" | "characters":
                counts = self._sizes[name == "characters"][tokens[1:]]
            case "words":
                counts = self._count_words(tokens)[1:]
            case _:
                raise ValueError(f"expected bytes, characters or words, got {name!r}")
        return int(counts[is_scored].sum())

    def num_bytes(self, tokens: np.ndarray) -> int:
        """Return the number of bytes of all tokens."""
        return int(self._sizes[0][tokens].sum())

    def _count_words(self, tokens: np.ndarray) -> np.ndarray:
        """Return the number of words that begin in each token; the first one begins behind none."""
        inner, begins, ends_blank = self._words
        places = np.arange(len(tokens))
        # A token without text does not end what is before it.
        last = np.maximum.accumulate(np.where(self._sizes[0][tokens] > 0, places, -1))
        before = np.append(-1, last[:-1])
        behind_blank = (before >= 0) & ends_blank[tokens[before]]
        return inner[tokens] + (begins[tokens] & behind_blank)

    @functools.cached_property
    def _sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes, and beginnings of characters, of each id."""
        starts = [sum(byte & 0xC0 != 0x80 for byte in text) for text in self.texts]
        return np.array([len(text) for text in self.texts], np.int64), np.array(starts, np.int64)

    @functools.cached_property
    def _words(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Words that begin inside each id; whether it begins without, and ends with, a blank."""
        blank = [[byte in _BLANK_BYTES for byte in text] for text in self.texts]
        inner = [sum(a and not b for a, b in itertools.pairwise(x)) for x in blank]
        begins, ends = [bool(x) and not x[0] for x in blank], [bool(x) and x[-1] for x in blank]
        return np.array(inner, np.int64), np.array(begins), np.array(ends)


class ByteVocabulary(StreamVocabulary):
    """Bytes of UTF-8: an id is the byte plus one."""

    size = ByteTokenizer.vocab_size
    symbols = ByteTokenizer.symbols
    dtype = np.uint8  # UTF-8 has no byte above 0xF4
    texts = (b"", *(bytes([byte]) for byte in range(256)))

    def encode(self, text: str) -> np.ndarray:
        """Return the id of each byte."""
        return np.frombuffer(text.encode(), np.uint8) + np.uint8(1)

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids; a truncated character is U+FFFD."""
        return ByteTokenizer().decode(ids)


class CharacterVocabulary(StreamVocabulary):
    """Characters of an alphabet: an id is the place in it plus one."""

    def __init__(self, alphabet: str):
        """Use these characters, each of which occurs once."""
        self.alphabet = alphabet
        self.size = len(alphabet) + 1
        self.symbols = (ByteTokenizer.symbols[0], *alphabet)
        self.dtype = np.min_scalar_type(self.size - 1).type

    @functools.cached_property
    def texts(self) -> tuple[bytes, ...]:
        """Bytes of each id."""
        return (b"", *(x.encode() for x in self.alphabet))

    def encode(self, text: str) -> np.ndarray:
        """Return the id of each character.

        Raises:
            OptionError: the alphabet lacks one.
        """
        ids = self._ids[code_points(text)]
        if not ids.all():
            missing = text[int(np.argmin(ids))]
            raise OptionError(
                f"the vocabulary of {len(self.alphabet)} characters lacks {missing!r}; expected "
                f"{_abbreviate(self.alphabet)}"
            )
        return ids

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids."""
        symbols = self.symbols
        return "".join(symbols[token] for token in ids.tolist())

    @functools.cached_property
    def _ids(self) -> np.ndarray:
        """The id of every code point; 0 of those that are not in the alphabet."""
        ids = np.zeros(_CODE_POINTS, self.dtype)
        ids[code_points(self.alphabet)] = np.arange(1, self.size)
        return ids


class WordVocabulary(StreamVocabulary):
    """Words between white space, and `<eos>` at the end of each line."""

    def __init__(self, words: Sequence[str]):
        """Use these words in the order of their ids, from 1 on; `<eos>` is one of them."""
        self.words = tuple(words)
        self.size = len(self.words) + 1
        self.symbols = (ByteTokenizer.symbols[0], *self.words)
        self.dtype = np.min_scalar_type(self.size - 1).type

    @functools.cached_property
    def texts(self) -> tuple[bytes, ...]:
        """Bytes of each id; the end of a line is a line feed."""
        return (b"", *(b"\n" if word == END else word.encode() for word in self.words))

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
        id_by_word, unknown = self._ids, self._ids.get(UNKNOWN, 0)
        ids = [id_by_word.get(word, unknown) for word in words]
        if not all(ids):
            missing = words[ids.index(0)]
            raise OptionError(
                f"the vocabulary of {len(self.words):,} words has neither {missing!r} nor "
                f"{UNKNOWN}; use words of the training split"
            )
        return ids

    def decode(self, ids: np.ndarray) -> str:
        """Return the words of ids, separated by spaces; `<eos>` is a line feed."""
        symbols = self.symbols
        text = " ".join("\n" if symbols[x] == END else symbols[x] for x in ids.tolist())
        return text.replace(" \n", "\n").replace("\n ", "\n")

    def count(self, name: str, tokens: np.ndarray, is_scored: np.ndarray) -> int:
        """Count scored tokens, each of which is a word, or the bytes or characters of the text.

        Those of a word are its own, and the space before it unless it begins a line. Published
        perplexities divide by the words and the ends of lines too.
        """
        if name == "words":
            return int(is_scored.sum())
        is_end = tokens == self._ids[END]
        has_space = ~is_end[:-1] & ~is_end[1:]
        return super().count(name, tokens, is_scored) + int(has_space[is_scored].sum())

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: token for token, word in enumerate(self.words, 1)}


class WordPieceVocabulary(StreamVocabulary):
    """Tokens of a tokenizer of the Hugging Face libraries, with its own ids."""

    def __init__(self, tokenizer: WordPieceTokenizer):
        """Use the ids of a tokenizer; padding has that of its padding token, if there is one."""
        self.tokenizer = tokenizer
        self.size, self.dtype = tokenizer.vocab_size, tokenizer.dtype
        self.symbols = tokenizer.symbols

    @functools.cached_property
    def texts(self) -> tuple[bytes, ...]:
        """Bytes of each id."""
        return token_texts(self.tokenizer)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, without special tokens."""
        return self.encode_texts([text])[0]

    def encode_texts(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, without special tokens."""
        return self.tokenizer.encode_texts(texts)

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids; special tokens are shown."""
        return self.tokenizer.decode(ids)


def token_texts(tokenizer: WordPieceTokenizer) -> tuple[bytes, ...]:
    """Return the bytes by which a text grows with each id; none for an id without a token."""
    # Heavy; a tokenizer has imported it.
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    pipeline = tokenizer.fast.backend_tokenizer
    kinds = _kinds(json.loads(pipeline.to_str())["decoder"])
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    texts: list[bytes | None] = [None] * tokenizer.vocab_size
    for text, token in tokenizer.fast.get_vocab().items():
        if "ByteLevel" in kinds:
            is_bytes = all(x in byte_of for x in text)
            texts[token] = bytes(byte_of[x] for x in text) if is_bytes else text.encode()
        elif "ByteFallback" in kinds and (match := _BYTE.fullmatch(text)):
            texts[token] = bytes([int(match[1], 16)])
    anchor, anchor_text = _find_anchor(tokenizer, texts)
    for token in tokenizer.fast.get_vocab().values():
        if texts[token] is None:
            pair_text = pipeline.decode([anchor, token], skip_special_tokens=False)
            texts[token] = pair_text.removeprefix(anchor_text).encode()
    return tuple(text or b"" for text in texts)


def _find_anchor(tokenizer: WordPieceTokenizer, texts: list[bytes | None]) -> tuple[int, str]:
    """Return an id whose text stays as it is where a token follows it, and that text."""
    pipeline = tokenizer.fast.backend_tokenizer
    for token in tokenizer.fast.get_vocab().values():
        if texts[token] is None and token not in tokenizer.special_ids:
            text = pipeline.decode([token], skip_special_tokens=False)
            if text.isalnum():
                return token, text
    return 0, pipeline.decode([0], skip_special_tokens=False)


def _kinds(decoder: dict[str, Any] | None) -> set[str]:
    """Return the types of a decoder and of its parts."""
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*(_kinds(part) for part in decoder.get("decoders", ())))


def _abbreviate(alphabet: str) -> str:
    return repr(alphabet if len(alphabet) <= 40 else f"{alphabet[:40]}...")
