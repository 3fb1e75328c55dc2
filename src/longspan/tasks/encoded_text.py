"""Base of the tasks over texts: their tokens as ids, and class-balanced subsets."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from longspan.bounds import MOST_EXAMPLES
from longspan.config import Length, setting, settings
from longspan.data.sampling import MAX_IDS, random_stream
from longspan.data.store import Examples, Ragged
from longspan.data.tokenizers import (
    UNKNOWN,
    VOCAB_SIZES,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    WordTokenizer,
)
from longspan.data.word_pieces import WordPieceTokenizer, load_word_pieces
from longspan.errors import OptionError
from longspan.tasks.base import Batch, Grouping, Split, Task
from longspan.tasks.global_tokens import GlobalTokens, global_positions, mark_global_tokens
from longspan.tasks.grouping import group_by_quantiles
from longspan.tasks.pieces import TokenizerName, identify_vocabulary, tokenizer_name
from longspan.wording import counted

# number of examples that has room for each class
BothClasses = Annotated[int, Field(ge=2, le=MOST_EXAMPLES)]
# of padding, of unknown words and of one word at least
NumWordIds = Annotated[int, Field(ge=3, le=MAX_IDS)]


@settings
class EncodingOptions:
    """Encoding of the texts, and their global tokens."""

    length: Length = setting("tokens of a text that are kept")
    vocabulary: Literal["bytes", "characters"] | NumWordIds | TokenizerName = setting(
        "tokens: bytes; the characters that are frequent in the training texts; a number: the most "
        "frequent words of the training texts, with so many ids; or tokenizer:NAME: the word "
        "pieces of a Hugging Face tokenizer, a folder or a name on the hub",
        "bytes",
    )
    global_tokens: GlobalTokens = setting(
        "tokens that attend to all others and all others to them, for mechanisms with such tokens: "
        "none; the first one of a text (Longformer); or a number: the first one of each passage of "
        "so many tokens (Xiong et al. 2022)",
        "none",
        in_data=False,
    )
    minimum: PositiveInt = setting("occurrences in the training texts that make a character known")
    end: bool = setting("append an end symbol to each text, within its length (characters)", False)

    def __post_init__(self) -> None:
        """Check that every option has an effect and a text has room for a token.

        Raises:
            OptionError: an option of characters is set for bytes, or the length is too small.
        """
        if self.end and self.length < 2:
            raise OptionError("length=1 leaves no token before the end symbol; use 2 or more")
        if self.vocabulary != "characters" and (self.end or self.minimum != type(self).minimum):
            raise OptionError(
                f"end={self.end} and minimum={self.minimum} apply to characters; set "
                "vocabulary='characters', or omit them"
            )


@dataclasses.dataclass(frozen=True)
class LabeledTexts:
    """Texts of a split, UTF-8, or pairs of them, each with a class or a number."""

    texts: Sequence[bytes]
    labels: np.ndarray
    second: Sequence[bytes] | None = None

    def select(self, rows: np.ndarray) -> "LabeledTexts":
        """Return the texts of these rows, in this order."""
        return LabeledTexts([self.texts[row] for row in rows], self.labels[rows])

    @property
    def sides(self) -> list[Sequence[bytes]]:
        """Texts, and of pairs the second ones."""
        return [self.texts] if self.second is None else [self.texts, self.second]


class EncodedTextTask(Task):
    """A task whose examples are texts, encoded as bytes, characters, words or word pieces."""

    options: EncodingOptions

    @property
    def vocab_size(self) -> int:
        """Number of token ids; independent of the texts.

        Raises:
            DataError: a Hugging Face tokenizer cannot be loaded.
        """
        vocabulary = self.options.vocabulary
        if isinstance(vocabulary, int):
            return vocabulary
        if self._word_pieces:
            return self._word_pieces.vocab_size
        return VOCAB_SIZES[vocabulary]

    @property
    def truncation(self) -> str:
        """Tokens of a longer text that are kept; see `kept_tokens`."""
        return "head"

    @property
    def has_learned_vocabulary(self) -> bool:
        """True for characters and words, which are those of the training texts."""
        return isinstance(self.options.vocabulary, int) or self.options.vocabulary == "characters"

    @property
    def model_fields(self) -> dict[str, Any]:
        """Padding id of a Hugging Face tokenizer, if it has one."""
        pad = self._word_pieces and self._word_pieces.fast.pad_token_id
        return {} if pad is None else {"pad_token_id": pad}

    def data_options(self) -> dict[str, Any]:
        """Return the options that decide the built data; a tokenizer is known by its files."""
        identity = {"vocabulary": identify_vocabulary(self.options.vocabulary)}
        return super().data_options() | identity

    def make_tokenizer(
        self, training_texts: Callable[[], Iterable[tuple[bytes, int]]]
    ) -> Tokenizer:
        """Return the tokenizer of these options.

        Args:
            training_texts: yields each training text and its number of occurrences, to learn
                characters or words from.
        """
        options = self.options
        length = options.length if self.truncation == "head" else sys.maxsize
        if self._word_pieces:
            return self._word_pieces
        if options.vocabulary == "bytes":
            return ByteTokenizer()
        if isinstance(options.vocabulary, int):
            return WordTokenizer.learn(
                training_texts(), length=length, vocab_size=options.vocabulary
            )
        return CharacterTokenizer.learn(
            training_texts(), length=length, minimum=options.minimum, end=options.end
        )

    def encode_splits(
        self, splits: Mapping[Split, LabeledTexts]
    ) -> tuple[dict[str, Examples], dict[str, Any]]:
        """Return the examples of each split, and the facts of a manifest that describe them."""
        train = splits["train"]
        tokenizer = self.make_tokenizer(
            lambda: ((text, 1) for row in zip(*train.sides, strict=True) for text in row)
        )
        examples: dict[str, Examples] = {}
        cut: dict[str, int] = {}
        for split, split_texts in splits.items():
            arguments = (self.length, self.truncation)
            encodings = [encode_texts(tokenizer, x, *arguments) for x in split_texts.sides]
            cut[split] = sum(count for _, count in encodings)
            tokens, *second = (x for x, _ in encodings)
            labels = split_texts.labels
            examples[split] = Examples(
                tokens=tokens, second=next(iter(second), None), labels=labels
            )
        unknown = count_unknown(tokenizer, examples)
        return examples, {"cut": cut, **unknown, **tokenizer.facts}

    @property
    def build_notes(self) -> list[str]:
        """Number of texts that were cut to the length, where the build counted them."""
        cut = sum(self.facts.get("cut", {}).values())
        return describe_cut("text|texts", cut, self.length)

    @property
    def num_global_tokens(self) -> int:
        """Maximum number of global tokens of a text."""
        return int(global_positions(self.options.global_tokens, self.length).sum())

    def collate(
        self, examples: Examples, rows: np.ndarray, draw: tuple[int, int] | None = None
    ) -> Batch:
        """Return some examples as a batch with its global tokens marked."""
        return mark_global_tokens(super().collate(examples, rows, draw), self.options.global_tokens)

    def compute_groupings(self, examples: Examples) -> list[Grouping]:
        """Group by length, in quarters of the split; the length of a pair is that of both texts."""
        lengths = np.sum([part.lengths for part in examples.lists.values()], axis=0)
        return group_by_quantiles("length", lengths, 4)

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token; U+FFFD for unknown ones and for bytes of longer characters."""
        symbols = self.tokenizer.symbols
        return [symbols[token] for token in ids.tolist()]

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of an example's tokens; requires an open task."""
        return self.tokenizer.decode(ids)

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a new text, cut to the length; requires an open task."""
        return encode_text(self.tokenizer, text.encode(), self.options.length, self.truncation)[0]

    def encode_rows(self, texts: Sequence[tuple[str, ...]]) -> Examples:
        """Return new texts, of pairs both, as examples without labels; requires an open task."""
        encodings = [[self.encode(text) for text in side] for side in zip(*texts, strict=True)]
        tokens, *second = (Ragged.pack(ids, ids[0].dtype.type) for ids in encodings)
        labels = np.zeros(len(texts), np.uint8)
        return Examples(tokens=tokens, second=next(iter(second), None), labels=labels)

    @property
    def head_and_tail(self) -> tuple[int, int] | None:
        """Tokens that are kept of the head and the tail of a longer text; None: of the head."""
        if self.truncation == "head":
            return None
        # A text of one token more loses the token behind its head.
        kept = kept_tokens(self.tokenizer, self.length + 1, self.length, self.truncation)
        head = int((kept == np.arange(self.length)).sum())
        return head, self.length - head

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the examples; requires an open task if it is learned from texts."""
        vocabulary = self.options.vocabulary
        if self._word_pieces:
            return self._word_pieces
        if vocabulary == "bytes":
            return ByteTokenizer()
        if vocabulary == "characters":
            return _character_tokenizer(self.facts["characters"], self.options.end)
        return _word_tokenizer(self.facts["words"], vocabulary)

    # Loading hashes the files of the tokenizer, and looks one on the hub up there.
    @functools.cached_property
    def _word_pieces(self) -> WordPieceTokenizer | None:
        """Hugging Face tokenizer, loaded once; None for other tokens."""
        name = tokenizer_name(self.options.vocabulary)
        return None if name is None else load_word_pieces(name)


# Cached, as tokens are decoded one at a time, and a vocabulary has up to 65,536 words.
@functools.lru_cache(maxsize=4)
def _character_tokenizer(characters: str, end: bool) -> CharacterTokenizer:
    return CharacterTokenizer(characters, end=end)


@functools.lru_cache(maxsize=4)
def _word_tokenizer(words: str, vocab_size: int) -> WordTokenizer:
    return WordTokenizer(tuple(words.split()), vocab_size=vocab_size)


def encode_text(
    tokenizer: Tokenizer, text: bytes, length: int, truncation: str = "head"
) -> tuple[np.ndarray, bool]:
    """Return the ids of a UTF-8 text, and whether it is longer than `length` tokens."""
    if truncation != "head":
        ids = tokenizer.encode(text, sys.maxsize)
        return ids[kept_tokens(tokenizer, len(ids), length, truncation)], len(ids) > length
    ids = tokenizer.encode(text, length)
    # A full text may end there.
    return ids, len(ids) == length and len(tokenizer.encode(text, length + 1)) > length


def describe_cut(nouns: str, count: int, length: int) -> list[str]:
    """Return a sentence for texts that were cut to a length; nothing without any.

    Args:
        nouns: one of them and several: "text|texts".
        count: number of them.
        length: largest number of tokens that are kept.
    """
    message = f"{nouns} is|are longer than {length:,} tokens and was|were cut"
    return [counted(count, message)] if count else []


def kept_tokens(tokenizer: Tokenizer, count: int, length: int, truncation: str) -> np.ndarray:
    """Return the places of the tokens that are kept of a text, special tokens included.

    `head` keeps the first tokens of a longer text; `head_tail` a quarter of the length from its
    head and the rest from its tail: 128 and 382 of the 510 of Sun et al. 2019, How to fine-tune
    BERT for text classification, arXiv:1905.05583.

    Args:
        tokenizer: tokenizer, whose special tokens are kept.
        count: number of tokens of the whole text.
        length: largest number of tokens that are kept.
        truncation: head or head_tail.
    """
    if count <= length:
        return np.arange(count)
    before, after = 0, int(isinstance(tokenizer, CharacterTokenizer) and tokenizer.end)
    if isinstance(tokenizer, WordPieceTokenizer):
        before, after = map(len, tokenizer.frame)
    room = max(0, length - before - after)
    head = room if truncation == "head" else round(room / 4)
    places = np.arange(count)
    kept = (places[: before + head], places[count - after - (room - head) :])
    return np.concatenate(kept)[:length]


def encode_texts(
    tokenizer: Tokenizer, texts: Iterable[bytes], length: int, truncation: str = "head"
) -> tuple[Ragged, int]:
    """Return the ids of UTF-8 texts, and how many texts are longer than `length` tokens."""
    pairs = [encode_text(tokenizer, text, length, truncation) for text in texts]
    return Ragged.pack([x for x, _ in pairs], tokenizer.dtype), sum(is_cut for _, is_cut in pairs)


def count_unknown(tokenizer: Tokenizer, splits: dict[str, Examples]) -> dict[str, Any]:
    """Return the entry of a manifest for the share of unknown words; nothing without words."""
    if not isinstance(tokenizer, WordTokenizer):
        return {}
    shares = {}
    for split, examples in splits.items():
        parts = [part for part in (examples.tokens, examples.second) if part is not None]
        unknown = sum(part.count(UNKNOWN) for part in parts)
        shares[split] = round(unknown / sum(len(part.values) for part in parts), 6)
    return {"words_unknown": shares}


def sample_balanced(
    rows: np.ndarray,
    labels: np.ndarray,
    count: int | None,
    stream: tuple[int, int],
    split: Split,
    class_names: tuple[str, str],
) -> np.ndarray:
    """Return `count` of the rows, equally many of each class, ascending; all if it is None.

    A larger count contains a smaller one, since each class is a prefix of one permutation.

    Args:
        rows: rows to choose from.
        labels: labels of all rows, 0 or 1.
        count: number of rows.
        stream: seed and purpose of the random numbers.
        split: split, for the message.
        class_names: names of examples of class 0 and 1, for the message.

    Raises:
        OptionError: a class has too few rows.
    """
    if count is None:
        return rows
    samples = []
    for label in range(2):
        class_count = count // 2 + (label < count % 2)
        class_rows = rows[labels[rows] == label]
        if class_count > len(class_rows):
            raise OptionError(
                f"{split}={count} needs {class_count} {class_names[label]}, there are "
                f"{len(class_rows)}; use {2 * len(class_rows)} or less"
            )
        order = random_stream(*stream, label).permutation(len(class_rows))
        samples.append(class_rows[order[:class_count]])
    return np.sort(np.concatenate(samples))
