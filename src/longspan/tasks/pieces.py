"""Vocabulary of the tasks whose texts need special tokens: bytes, or word pieces."""

import functools
from typing import Annotated, Any, Literal

from pydantic import Field

from longspan.config import setting
from longspan.data.tokenizers import ByteTokenizer
from longspan.data.word_pieces import WordPieceTokenizer, load_word_pieces

_WORD_PIECES = "tokenizer:"  # before the folder or name of a tokenizer

PieceVocabulary = Literal["bytes"] | Annotated[str, Field(pattern=rf"^{_WORD_PIECES}.+")]


def vocabulary_setting() -> Any:
    """Return the field of a task's options that names its vocabulary."""
    return setting(
        "tokens: bytes; or tokenizer:NAME: the word pieces of a Hugging Face tokenizer, a folder "
        "or a name on the hub",
        "bytes",
    )


def load_pieces(vocabulary: str) -> WordPieceTokenizer:
    """Return the tokenizer of a vocabulary; that of bytes has the special tokens of BERT.

    Raises:
        DataError: it cannot be loaded.
    """
    if vocabulary == "bytes":
        return _byte_tokenizer()
    return load_word_pieces(vocabulary.removeprefix(_WORD_PIECES))


def identify_pieces(vocabulary: str) -> str:
    """Return the identity of a vocabulary: that of a tokenizer is the sha256 of its files.

    Raises:
        DataError: the tokenizer cannot be loaded.
    """
    if vocabulary == "bytes":
        return vocabulary
    return f"{_WORD_PIECES}sha256:{load_pieces(vocabulary).sha256}"


@functools.cache
def _byte_tokenizer() -> WordPieceTokenizer:
    # Imports transformers, which lists of tasks do not need.
    from longspan.tokenizers import make_fast_tokenizer

    fast = make_fast_tokenizer(ByteTokenizer(), special_tokens=("cls", "sep"))
    return WordPieceTokenizer("bytes", "", fast)
