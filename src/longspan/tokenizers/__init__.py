"""Vocabularies of bytes, characters and words as fast tokenizers of transformers."""

from longspan.data.tokenizers import ByteTokenizer, CharacterTokenizer, WordTokenizer
from longspan.tokenizers.fast import SPECIAL_TOKENS, SpecialToken, make_fast_tokenizer

__all__ = [
    "SPECIAL_TOKENS",
    "ByteTokenizer",
    "CharacterTokenizer",
    "SpecialToken",
    "WordTokenizer",
    "make_fast_tokenizer",
]
