"""Fast tokenizers of transformers whose ids are those of the vocabularies of tasks.

They are plain `tokenizers` pipelines: `AutoTokenizer.from_pretrained` loads them where longspan is
not installed.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Pipeline
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from longspan.data.tokenizers import ByteTokenizer, CharacterTokenizer, Vocabulary, WordTokenizer
from longspan.errors import OptionError, check_name

SpecialToken = Literal["unk", "cls", "bos", "sep", "eos", "mask"]
SPECIAL_TOKENS: tuple[SpecialToken, ...] = get_args(SpecialToken)  # in the order of their ids
Side = Literal["left", "right"]

_STARTS, _ENDS = ("cls", "bos"), ("sep", "eos")
# What Python's \w matches: letters, numbers and the underscore. That of `tokenizers` has marks too.
_NO_WORD = r"[^\p{L}\p{N}_]+"
_WORD = r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*"
# Python gives a capital sigma at the end of a word another lower case than elsewhere (Unicode
# standard, table 3-17, Final_Sigma); `tokenizers` does not.
_CASED = r"[\p{Cased}&&[^\p{Case_Ignorable}]]"
_FINAL_SIGMA = Regex(rf"{_CASED}\p{{Case_Ignorable}}*\KΣ(?!\p{{Case_Ignorable}}*{_CASED})")


def make_fast_tokenizer(
    vocabulary: Vocabulary,
    *,
    max_length: int | None = None,
    special_tokens: Collection[SpecialToken] = (),
    padding_side: Side = "right",
    truncation_side: Side = "right",
) -> PreTrainedTokenizerFast:
    """Make a fast tokenizer with the ids of a vocabulary; those of special tokens follow.

    Without special tokens the ids are those that a task reads. Two differences for words: the empty
    text has no ids, where a task reads one unknown word; and letters and marks newer than the
    Unicode tables of Python are parts of words. Bytes, and known characters, decode to their text.

    A text gets "cls" or "bos" before it and "sep" or "eos" after it; of a pair, both texts are
    followed by "sep" or "eos", and the second has type 1.

    Without special tokens nothing in a text is interpreted. With them, the text of a special token,
    such as "[MASK]", is that token, as pipelines expect; pass `split_special_tokens=True` to a call
    to read it as text.

    Args:
        vocabulary: bytes, characters or words.
        max_length: longest input, in tokens, to which `truncation=True` cuts; None: no limit.
        special_tokens: kinds of special tokens to add. Padding is in every vocabulary, "unk" in
            those of characters and words, "eos" in that of characters; they keep their ids.
        padding_side: side of a shorter text that is padded.
        truncation_side: side of a longer text that is cut.

    Raises:
        OptionError: two kinds have the same place.
        UnknownNameError: there is no such kind.
    """
    kinds = _kinds(vocabulary, special_tokens)
    symbols = _symbols(vocabulary)
    texts = {name: token_text(name) for name in kinds}
    symbols += [text for text in texts.values() if text not in symbols]
    pipeline = _pipeline(vocabulary, {text: token for token, text in enumerate(symbols)})
    if template := _template(pipeline, texts):
        pipeline.post_processor = template
    limit: dict[str, Any] = {} if max_length is None else {"model_max_length": max_length}
    return wrap_pipeline(
        pipeline,
        texts,
        padding_side=padding_side,
        truncation_side=truncation_side,
        split_special_tokens=not special_tokens,
        **limit,
    )


def wrap_pipeline(
    pipeline: Pipeline, texts: Mapping[str, str], **options: Any
) -> PreTrainedTokenizerFast:
    """Return a pipeline as a tokenizer of transformers, which changes no space.

    Args:
        pipeline: pipeline from texts to ids.
        texts: texts of the special tokens, by kind.
        options: other arguments of `PreTrainedTokenizerFast`.
    """
    return PreTrainedTokenizerFast(
        tokenizer_object=pipeline,
        **{f"{name}_token": text for name, text in texts.items()},
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **options,
    )


def _kinds(vocabulary: Vocabulary, special_tokens: Collection[str]) -> list[str]:
    """Return the kinds of special tokens that the tokenizer has, in the order of their ids."""
    kinds = {"pad"}
    if not isinstance(vocabulary, ByteTokenizer):
        kinds.add("unk")
    if isinstance(vocabulary, CharacterTokenizer) and vocabulary.end:
        kinds.add("eos")
    kinds |= {check_name(name, SPECIAL_TOKENS, "special token") for name in special_tokens}
    for place, names in (("before", _STARTS), ("after", _ENDS)):
        if kinds.issuperset(names):
            raise OptionError(
                f"special tokens {names[0]!r} and {names[1]!r} are both {place} a text; "
                "choose one of them"
            )
    return [name for name in ("pad", *SPECIAL_TOKENS) if name in kinds]


def token_text(name: str) -> str:
    """Return the text of a kind of special token."""
    return f"[{name.upper()}]"


def _symbols(vocabulary: Vocabulary) -> list[str]:
    """Return a text for each id of a vocabulary; unused ids have one too."""
    if isinstance(vocabulary, ByteTokenizer):
        return [token_text("pad"), *(symbol for _, symbol in sorted(bytes_to_unicode().items()))]
    symbols: Sequence[str]
    if isinstance(vocabulary, CharacterTokenizer):
        symbols = (token_text("pad"), token_text("unk"), token_text("eos"), *vocabulary.characters)
    else:
        symbols = (token_text("pad"), token_text("unk"), *vocabulary.words)
    unused = range(len(symbols), vocabulary.vocab_size)
    return [*symbols, *(f"[UNUSED{token}]" for token in unused)]


def _pipeline(vocabulary: Vocabulary, ids: dict[str, int]) -> Pipeline:
    """Return the pipeline from texts to ids, without special tokens."""
    if isinstance(vocabulary, WordTokenizer):
        pipeline = Pipeline(models.WordLevel(ids, unk_token=token_text("unk")))
        # A text without a word is one unknown word, as a task reads it.
        unknown = next(x for n in itertools.count(1) if (x := n * "_") not in ids)
        without_word = normalizers.Replace(Regex(rf"\A{_NO_WORD}\z"), unknown)
        final_sigma = normalizers.Replace(_FINAL_SIGMA, "ς")
        pipeline.normalizer = normalizers.Sequence(
            [without_word, final_sigma, normalizers.Lowercase()]
        )
        pipeline.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
        return pipeline
    if isinstance(vocabulary, CharacterTokenizer):
        return character_pipeline(ids)
    # Without merges, every byte is a token.
    pipeline = Pipeline(models.BPE(ids, merges=[]))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pipeline.decoder = decoders.ByteLevel()
    return pipeline


def character_pipeline(ids: dict[str, int]) -> Pipeline:
    """Return the pipeline of single characters, of which those without an id are unknown."""
    # Without merges, every character is a token.
    pipeline = Pipeline(models.BPE(ids, merges=[], unk_token=token_text("unk")))
    pipeline.decoder = decoders.Fuse()
    return pipeline


def _template(pipeline: Pipeline, texts: dict[str, str]) -> processors.TemplateProcessing | None:
    """Return the places of special tokens around texts, if there are any."""
    start, end = ([texts[x] for x in names if x in texts] for names in (_STARTS, _ENDS))
    if not start and not end:
        return None
    return processors.TemplateProcessing(
        single=[*start, "$A", *end],
        pair=[*start, "$A", *end, "$B:1", *(f"{text}:1" for text in end)],
        special_tokens=[(text, pipeline.token_to_id(text)) for text in (*start, *end)],
    )
