"""Word pieces: vocabularies that name a tokenizer, and base of the tasks with special tokens."""

import functools
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from longspan.config import setting
from longspan.data.tokenizers import ByteTokenizer
from longspan.data.word_pieces import WordPieceTokenizer, load_word_pieces, tokenizer_sha256
from longspan.tasks.base import Split, Task
from longspan.tasks.example_writer import load_details

V = TypeVar("V")

_WORD_PIECES = "tokenizer:"  # before the folder or name of a tokenizer

TokenizerName = Annotated[str, Field(pattern=rf"^{_WORD_PIECES}.+")]
PieceVocabulary = Literal["bytes"] | TokenizerName


def vocabulary_setting() -> Any:
    """Return the field of a task's options that names its vocabulary."""
    return setting(
        "tokens: bytes; or tokenizer:NAME: the word pieces of a Hugging Face tokenizer, a folder "
        "or a name on the hub",
        "bytes",
    )


def tokenizer_name(vocabulary: object) -> str | None:
    """Return the folder or name of the Hugging Face tokenizer of a vocabulary; None: another."""
    if not isinstance(vocabulary, str) or not vocabulary.startswith(_WORD_PIECES):
        return None
    return vocabulary.removeprefix(_WORD_PIECES)


def identify_vocabulary(vocabulary: V) -> V | str:
    """Return the identity of a vocabulary: that of a tokenizer is the sha256 of its files.

    Words that kept no marks were a number.

    Raises:
        DataError: there is no such tokenizer.
    """
    if isinstance(vocabulary, int):
        return f"words:{vocabulary}"
    name = tokenizer_name(vocabulary)
    return vocabulary if name is None else f"{_WORD_PIECES}sha256:{tokenizer_sha256(name)}"


def load_pieces(vocabulary: str) -> WordPieceTokenizer:
    """Return the tokenizer of a vocabulary; that of bytes has the special tokens of BERT.

    Raises:
        DataError: it cannot be loaded.
    """
    name = tokenizer_name(vocabulary)
    return _byte_tokenizer() if name is None else load_word_pieces(name)


@functools.cache
def _byte_tokenizer() -> WordPieceTokenizer:
    # Imports transformers, which lists of tasks do not need.
    from longspan.tokenizers import make_fast_tokenizer

    fast = make_fast_tokenizer(ByteTokenizer(), special_tokens=("cls", "sep"))
    return WordPieceTokenizer("bytes", "", fast)


class PieceTask(Task):
    """A task over word pieces with special tokens, whose examples have details.

    Its options name the tokenizer, `vocabulary`. Answers can be written for an official evaluation.
    """

    has_answers = True

    @functools.cached_property
    def tokenizer(self) -> WordPieceTokenizer:
        """Tokenizer of all texts, loaded once.

        Raises:
            DataError: it cannot be loaded.
        """
        return load_pieces(self.options.vocabulary)

    @property
    def vocab_size(self) -> int:
        """Number of token ids, those of special tokens included."""
        return self.tokenizer.vocab_size

    @property
    def model_fields(self) -> dict[str, Any]:
        """Padding id of the tokenizer."""
        return {"pad_token_id": self.tokenizer.fast.pad_token_id}

    def data_options(self) -> dict[str, Any]:
        """Return the options that decide the built data; a tokenizer is known by its files."""
        identity = {"vocabulary": identify_vocabulary(self.options.vocabulary)}
        return super().data_options() | identity

    def load_details(self, split: Split, row: int) -> dict[str, Any]:
        """Return what is known of an example beside its tokens."""
        return load_details(self._examples(split), row)

    def ids_to_tokens(self, ids: np.ndarray) -> list[str]:
        """Return each token of an example."""
        symbols = self.tokenizer.symbols
        return [symbols[token] for token in ids.tolist()]
