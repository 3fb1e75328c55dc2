"""Text to token ids and back, for prompts and texts that a model writes token by token."""

import bisect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from longspan.data.word_pieces import WordPieceTokenizer
from longspan.errors import DataError, OptionError

_NO_TEXT = "\ufffd"  # text of an unknown id, and of a part of a character
# A character of UTF-8 has at most four bytes, so that up to three tokens may wait for the last one.
_MOST_PARTS = 3
PART = 1 << 17  # characters of a prompt that a tokenizer encodes in one call
_TRIES = 100  # places at which a cut between two calls is tried
NEIGHBORHOOD = 1000  # characters on each side of a cut between two calls that are compared
_CONTEXT = 8  # last tokens of a prompt that decide how the text after them begins, such as a space


@runtime_checkable
class TextCodec(Protocol):
    """Vocabulary of a causal language model."""

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text."""
        ...

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids."""
        ...


@dataclass(frozen=True)
class PromptTokenizer:
    """Hugging Face tokenizer as the vocabulary of prompts.

    A prompt begins with the beginning-of-sequence token, if the tokenizer places it before a text.
    Other special tokens are left out: language models are trained without them.
    """

    tokenizer: WordPieceTokenizer

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a prompt.

        Raises:
            DataError: the tokenizer has no token for a part of it.
        """
        before = self.tokenizer.frame[0]
        chunks = [before[before == self.tokenizer.fast.bos_token_id]]
        start = 0
        while start < len(text):
            stop = self._find_cut(text, start)
            ids, places = self.tokenizer.encode_spans(text[start:stop])
            unknown = np.flatnonzero(ids == self.tokenizer.fast.unk_token_id)
            if len(unknown):
                first, end = (start + places[unknown[0]]).tolist()
                raise DataError(_describe_unknown(text, first, end))
            chunks.append(ids)
            start = stop
        return np.concatenate(chunks)

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids; special tokens are shown."""
        return self.tokenizer.decode(ids)

    def _find_cut(self, text: str, start: int) -> int:
        """Return the end of a part of a long text whose tokens are those of the whole text.

        Without such a place, the part is the rest of the text. A tokenizer takes hundreds of bytes
        for each token of a call.
        """
        latest = start + PART
        if len(text) <= latest:
            return len(text)
        places = range(latest, max(start, latest - _TRIES), -1)
        return next((place for place in places if self._divides(text, place)), len(text))

    def _divides(self, text: str, place: int) -> bool:
        """Return whether the text around a place has the same tokens if it is cut there."""
        before = text[max(0, place - NEIGHBORHOOD) : place]
        after = text[place : place + NEIGHBORHOOD]
        parts = self.tokenizer.encode_texts([before, after, before + after])
        return np.concatenate(parts[:2]).tolist() == parts[2].tolist()


def encode_prompt(codec: TextCodec, text: str) -> np.ndarray:
    """Return the ids of a prompt.

    Raises:
        DataError: it is empty, or a part of it is not in the vocabulary.
    """
    if not text:
        raise DataError("the prompt is empty; give at least one character")
    try:
        ids = codec.encode(text)
    except OptionError as error:
        place = _first_refused(codec, text)
        if repr(text[place]) not in str(error):
            raise  # a word
        raise DataError(_describe_unknown(text, place, place + 1)) from error
    if not isinstance(codec, PromptTokenizer):  # it has refused what it does not know
        round_trip = codec.decode(ids)
        if round_trip.count(_NO_TEXT) > text.count(_NO_TEXT):
            raise DataError(_describe_replaced(text, round_trip))
    return ids


def _describe_unknown(text: str, first: int, end: int) -> str:
    """Return the message for characters that are not in the vocabulary.

    Args:
        text: prompt.
        first: index of the first of them.
        end: index after the last of them.
    """
    line = text.count("\n", 0, first) + 1
    return (
        f"the prompt has {text[first:end]!r:.60} at character {first + 1:,} (line {line:,}), which "
        "is not in the vocabulary of the checkpoint; remove it, or replace it"
    )


def _first_refused(codec: TextCodec, text: str) -> int:
    """Return the index of the character at which a vocabulary begins to refuse a text."""

    def is_refused(index: int) -> bool:
        try:
            codec.encode(text[: index + 1])
        except OptionError:
            return True
        return False

    return bisect.bisect_left(range(len(text) - 1), True, key=is_refused)


def _describe_replaced(text: str, round_trip: str) -> str:
    """Return the message for a prompt that decodes to U+FFFD where the vocabulary lacks a part."""
    if len(round_trip) == len(text):
        pairs = enumerate(zip(text, round_trip, strict=True))
        place = next(i for i, (expected, actual) in pairs if actual == _NO_TEXT != expected)
        return _describe_unknown(text, place, place + 1)
    before = round_trip.partition(_NO_TEXT)[0].rstrip()
    where = f"after {before[-40:]!r}" if before else "at its beginning"
    return (
        f"the prompt has words that are not in the vocabulary of the checkpoint, the first one "
        f"{where}; remove them, or replace them"
    )


class IncrementalDecoder:
    """Text of tokens that arrive one by one, in complete characters.

    The pieces together are the text of all tokens. Tokens are decoded after some of those before
    them, since the text of a token may depend on its neighbors.
    """

    def __init__(self, decode: Callable[[np.ndarray], str], context: Sequence[int] | np.ndarray):
        """Begin after some tokens, whose text is not repeated.

        Args:
            decode: text of ids.
            context: last tokens before the first one, such as those of a prompt.
        """
        self._decode = decode
        self._ids = [int(token) for token in context[-_CONTEXT:]]
        self._output = self._text(self._ids)
        self._complete = len(self._ids)  # tokens at whose end every character was complete

    def add(self, token: int) -> str:
        """Return the text that one more token completes, possibly empty."""
        self._ids.append(token)
        text = self._text(self._ids)
        if text.endswith(_NO_TEXT):
            # The end of the text may be a part of a character. What the tokens before the last
            # three have decoded to since then is not.
            if len(self._ids) <= self._complete + _MOST_PARTS:
                return ""
            return self._show(_common_prefix(self._text(self._ids[:-_MOST_PARTS]), text))
        piece = self._show(text)
        self._ids = self._ids[self._complete :]
        self._complete = len(self._ids)
        self._output = self._text(self._ids)
        return piece

    def finish(self) -> str:
        """Return the text that is left, an incomplete character included."""
        return self._show(self._text(self._ids))

    def _show(self, text: str) -> str:
        piece = text[len(self._output) :]
        self._output += piece
        return piece

    def _text(self, ids: list[int]) -> str:
        return self._decode(np.array(ids, np.int64)) if ids else ""


def _common_prefix(first: str, second: str) -> str:
    """Return the longest text with which both begin."""
    pairs = zip(first, second, strict=False)
    equal = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    return "".join(character for character, _ in equal)
