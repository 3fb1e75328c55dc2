"""Fast tokenizers of transformers whose ids are those of the vocabularies of language models."""

import copy

from tokenizers import Tokenizer as Pipeline
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longspan.data.stream_vocabularies import (
    END,
    UNKNOWN,
    CharacterVocabulary,
    StreamVocabulary,
    WordPieceVocabulary,
    WordVocabulary,
)
from longspan.data.tokenizers import ByteTokenizer
from longspan.tokenizers.fast import (
    character_pipeline,
    make_fast_tokenizer,
    token_text,
    wrap_pipeline,
)

_PAD, _UNKNOWN = token_text("pad"), token_text("unk")


def make_stream_tokenizer(vocabulary: StreamVocabulary) -> PreTrainedTokenizerFast:
    """Make a fast tokenizer with the ids of the vocabulary of a language model.

    A character or word that the vocabulary lacks has the id after the last one, which no model of
    the vocabulary takes, so that it is not lost silently. A word vocabulary with `<unk>` has that.
    """
    if isinstance(vocabulary, WordPieceVocabulary):
        # The tokenizer is shared by all tasks of the process.
        return copy.deepcopy(vocabulary.tokenizer.fast)
    if isinstance(vocabulary, WordVocabulary):
        pipeline, unknown = _words(vocabulary)
    elif isinstance(vocabulary, CharacterVocabulary):
        ids = {_PAD: 0, **{x: token for token, x in enumerate(vocabulary.alphabet, 1)}}
        pipeline, unknown = character_pipeline({**ids, _UNKNOWN: vocabulary.size}), _UNKNOWN
    else:
        return make_fast_tokenizer(ByteTokenizer())
    return wrap_pipeline(pipeline, {"pad": _PAD, "unk": unknown}, split_special_tokens=True)


def _words(vocabulary: WordVocabulary) -> tuple[Pipeline, str]:
    """Return the pipeline of words between white space, lines that end in `<eos>`; and unknown."""
    unknown = UNKNOWN if UNKNOWN in vocabulary.words else _UNKNOWN
    ids = {_PAD: 0, **{word: token for token, word in enumerate(vocabulary.words, 1)}}
    ids.setdefault(unknown, vocabulary.size)
    pipeline = Pipeline(models.WordLevel(ids, unk_token=unknown))
    pipeline.normalizer = normalizers.Replace("\n", f" {END} ")
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="\0", cleanup=False),  # a space before each further word
            decoders.Fuse(),
            *(decoders.Replace(x, "\n") for x in (f" {END}", END, "\n ")),
        ]
    )
    return pipeline, unknown
