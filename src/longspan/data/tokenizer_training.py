"""Training of tokenizers with the `tokenizers` library.

Kinds: "byte-level" (byte-level BPE of GPT-2, Radford et al. 2019; RoBERTa's), "bpe" (Sennrich et
al. 2016, https://arxiv.org/abs/1508.07909, on words after white space), "wordpiece" (BERT's, Devlin
et al. 2019) and "unigram" (Kudo 2018, https://arxiv.org/abs/1804.10959; SentencePiece's). All have
the special tokens [PAD], [UNK], [CLS], [SEP], [MASK] with the ids 0 to 4, and put [CLS] before and
[SEP] after a text.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args

from longspan.bounds import MOST_IDS, check_range
from longspan.errors import DataError, check_name

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Pipeline
    from transformers import PreTrainedTokenizerFast

TokenizerKind = Literal["byte-level", "bpe", "wordpiece", "unigram"]
TOKENIZER_KINDS: tuple[TokenizerKind, ...] = get_args(TokenizerKind)
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BYTES = 256


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    kind: TokenizerKind = "byte-level",
    minimum: int = 2,
    lowercase: bool = False,
) -> "PreTrainedTokenizerFast":
    """Train a tokenizer on texts, which are read once.

    Args:
        texts: training texts, or parts of them cut at white space.
        vocab_size: number of ids, special tokens included.
        kind: model of the tokenizer.
        minimum: occurrences of a pair of pieces that make it a piece; unused by "unigram".
        lowercase: turn texts into lower case.

    Raises:
        UnknownNameError: there is no such kind.
        OptionError: the vocabulary has no room for the characters that the kind starts from.
        DataError: there is no text.
    """
    check_name(kind, TOKENIZER_KINDS, "kind of tokenizer")
    least = len(SPECIAL_TOKENS) + (BYTES if kind == "byte-level" else 1)
    check_range(f"--vocab-size of {kind}", vocab_size, least, MOST_IDS)
    pipeline = _pipeline(kind, lowercase)
    pipeline.train_from_iterator(texts, trainer=_trainer(kind, vocab_size, minimum))
    if pipeline.get_vocab_size() <= least:
        raise DataError(f"no text to train a tokenizer on: {pipeline.get_vocab_size()} ids found")
    return _wrap(pipeline)


def _pipeline(kind: TokenizerKind, lowercase: bool) -> "Pipeline":
    """Return the untrained pipeline of a kind."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    unknown = SPECIAL_TOKENS[1]
    before, decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    parts: dict[TokenizerKind, tuple[Any, Any, Any]] = {
        "byte-level": (
            models.BPE(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        ),
        "bpe": (models.BPE(unk_token=unknown), before, decoder),
        "wordpiece": (
            models.WordPiece(unk_token=unknown),
            pre_tokenizers.BertPreTokenizer(),
            decoders.WordPiece(),
        ),
        "unigram": (models.Unigram(), before, decoder),
    }
    model, splitter, decoder = parts[kind]
    pipeline = Tokenizer(model)
    pipeline.pre_tokenizer, pipeline.decoder = splitter, decoder
    steps: list[Any] = [normalizers.Lowercase()] if lowercase else []
    if kind in ("bpe", "unigram"):
        # as SentencePiece does: line ends and runs of spaces are one space
        steps.append(normalizers.Replace(Regex(r"\s+"), " "))
    if steps:
        pipeline.normalizer = normalizers.Sequence(steps)
    return pipeline


def _trainer(kind: TokenizerKind, vocab_size: int, minimum: int) -> Any:
    """Return the trainer of a kind."""
    from tokenizers import pre_tokenizers, trainers

    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "special_tokens": list(SPECIAL_TOKENS),
        "show_progress": False,
    }
    if kind == "unigram":
        return trainers.UnigramTrainer(**common, unk_token=SPECIAL_TOKENS[1])
    if kind == "wordpiece":
        return trainers.WordPieceTrainer(**common, min_frequency=minimum)
    if kind == "byte-level":
        # every byte has an id, so no text has an unknown token
        common["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    return trainers.BpeTrainer(**common, min_frequency=minimum)


def _wrap(pipeline: "Pipeline") -> "PreTrainedTokenizerFast":
    """Return a trained pipeline with its special tokens, as transformers loads it."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    padding, unknown, start, end, mask = SPECIAL_TOKENS
    pipeline.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(text, pipeline.token_to_id(text)) for text in (start, end)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pipeline,
        pad_token=padding,
        unk_token=unknown,
        cls_token=start,
        bos_token=start,
        sep_token=end,
        eos_token=end,
        mask_token=mask,
        clean_up_tokenization_spaces=False,
    )
