"""Word pieces as the vocabulary of a language model: the text of each token, from tables.

The tables are derived from the tokenizer once. A token of a byte-level tokenizer is a sequence of
bytes, which may begin or end inside a character. A token of another one is the text by which a
decoded text grows with it, the space before a word included.
"""

import functools
import itertools
import json
import re
from typing import Any

import numpy as np

from longspan.data.stream_vocabularies import BLANKS, StreamVocabulary, unknown_count
from longspan.data.word_pieces import WordPieceTokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # of tokenizers that fall back to bytes
_BLANK_BYTES = BLANKS.encode()


class WordPieceVocabulary(StreamVocabulary):
    """Tokens of a tokenizer of the Hugging Face libraries, with its own ids."""

    def __init__(self, tokenizer: WordPieceTokenizer):
        """Use the ids of a tokenizer; padding has that of its padding token, if there is one."""
        self.tokenizer = tokenizer
        self.size = tokenizer.vocab_size
        self.symbols = tokenizer.symbols

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, without special tokens."""
        return self.tokenizer.encode_texts([text])[0]

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids; special tokens are shown."""
        return self.tokenizer.decode(ids)

    def count(self, name: str, tokens: np.ndarray, is_scored: np.ndarray) -> int:
        """Count the bytes of scored tokens, the characters or the words that begin in them.

        A word begins at a byte that is no white space, behind one that is; a token may have the
        beginnings of several. They are those of the decoded text.
        """
        match name:
            case "bytes":
                return int(self._sizes[0][tokens[1:]][is_scored].sum())
            case "characters":
                return int(self._sizes[1][tokens[1:]][is_scored].sum())
            case "words":
                return int(self._count_words(tokens)[1:][is_scored].sum())
        raise unknown_count(name)

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
    def texts(self) -> tuple[bytes, ...]:
        """Bytes of each id."""
        return token_texts(self.tokenizer)

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


def token_texts(tokenizer: WordPieceTokenizer) -> tuple[bytes, ...]:
    """Return the bytes by which a text grows with each id; none for an id without a token."""
    pipeline = tokenizer.fast.backend_tokenizer
    kinds = _kinds(json.loads(pipeline.to_str())["decoder"])
    texts: list[bytes | None] = [None] * tokenizer.vocab_size
    for text, token in tokenizer.fast.get_vocab().items():
        if "ByteLevel" in kinds:
            is_bytes = all(x in _BYTES_OF for x in text)
            texts[token] = bytes(_BYTES_OF[x] for x in text) if is_bytes else text.encode()
        elif "ByteFallback" in kinds and (found := _BYTE.fullmatch(text)):
            texts[token] = bytes([int(found[1], 16)])
    anchor, shown = _find_anchor(tokenizer, texts)
    for token in tokenizer.fast.get_vocab().values():
        if texts[token] is None:
            both = pipeline.decode([anchor, token], skip_special_tokens=False)
            texts[token] = both.removeprefix(shown).encode()
    return tuple(text or b"" for text in texts)


def _find_anchor(tokenizer: WordPieceTokenizer, texts: list[bytes | None]) -> tuple[int, str]:
    """Return an id whose text stays as it is where a token follows it, and that text."""
    pipeline = tokenizer.fast.backend_tokenizer
    for token in tokenizer.fast.get_vocab().values():
        if texts[token] is None and token not in tokenizer.special_ids:
            shown = pipeline.decode([token], skip_special_tokens=False)
            if shown.isalnum():
                return token, shown
    return 0, pipeline.decode([0], skip_special_tokens=False)


def _kinds(decoder: dict[str, Any] | None) -> set[str]:
    """Return the types of a decoder and of its parts."""
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*(_kinds(part) for part in decoder.get("decoders", ())))


def _byte_characters() -> dict[str, int]:
    """Return the byte of each character in the tokens of byte-level tokenizers (GPT-2)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [x for x in range(256) if x not in shown]
    pairs = [*((x, x) for x in shown), *((256 + n, x) for n, x in enumerate(hidden))]
    return {chr(code): byte for code, byte in pairs}


_BYTES_OF = _byte_characters()
