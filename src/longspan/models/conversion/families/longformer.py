"""Longformer in transformers (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150).

Its `attention_window` counts both sides of a token, ours one side. Its positions and its padding
are those of RoBERTa.
"""

from typing import Any

from transformers import LongformerConfig

from longspan.attention import options_of
from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import DROPPED, SAME_FIELDS, bert_fields, bert_weights
from longspan.models.conversion.families.roberta import roberta_head
from longspan.models.conversion.family import Family, Head, LayerAttention, Weight, parameters
from longspan.models.conversion.heads import (
    choice_head,
    is_multiple_choice,
    question_head,
    sequence_head,
    token_head,
)
from longspan.models.heads.masked_lm import LongspanForMaskedLM
from longspan.models.heads.multiple_choice import LongspanForMultipleChoice
from longspan.models.heads.question_answering import LongspanForQuestionAnswering
from longspan.models.heads.sequence_classification import LongspanForSequenceClassification
from longspan.models.heads.token_classification import LongspanForTokenClassification
from longspan.models.model import LongspanModel

MECHANISM = "longformer"
ARCHITECTURES = {
    LongspanModel: "LongformerModel",
    LongspanForMaskedLM: "LongformerForMaskedLM",
    LongspanForSequenceClassification: "LongformerForSequenceClassification",
    LongspanForTokenClassification: "LongformerForTokenClassification",
    LongspanForQuestionAnswering: "LongformerForQuestionAnswering",
    LongspanForMultipleChoice: "LongformerForMultipleChoice",
}


def _windows(config: Any) -> list[int]:
    """Return the window of each layer, of both sides."""
    window = config.attention_window
    return [window] * config.num_hidden_layers if isinstance(window, int) else list(window)


def longformer_attention(config: Any) -> list[LayerAttention]:
    """Return the mechanism and options of each layer, with windows of one side."""
    return [
        (MECHANISM, {"window": window // 2, "global_projections": True})
        for window in _windows(config)
    ]


def _weights(config: Any) -> list[Weight]:
    weights = bert_weights(config)
    for i in range(config.num_hidden_layers):
        for name in ("query", "key", "value"):
            target = f"layers.{i}.attention.mechanism.projections.{name}"
            weights += parameters(target, f"encoder.layer.{i}.attention.self.{name}_global")
    return weights


def window_refusals(config: Any) -> list[str]:
    """Return the reasons why `attention_window` is not a window of each layer."""
    windows, layers, reasons = _windows(config), config.num_hidden_layers, []
    if len(windows) != layers:
        reasons.append(f"attention_window has {len(windows)} numbers for {layers} layers")
    if wrong := [window for window in windows if window < 2 or window % 2]:
        reasons.append(f"attention_window must be even and positive, got {wrong[0]}")
    return reasons


def _refusals(config: Any) -> list[str]:
    # Positions begin after the padding's row.
    no_padding = [] if config.pad_token_id is not None else ["pad_token_id=None"]
    return no_padding + window_refusals(config)


def longformer_windows(config: LongspanConfig) -> list[int]:
    """Return the `attention_window` of a model.

    Raises:
        OptionError: the class of transformers has no such attention.
    """
    if set(config.attention_names) != {MECHANISM}:
        names = " and ".join(dict.fromkeys(config.attention_names))
        raise OptionError(f"the attention must be longformer in every layer, got {names}")
    windows = []
    for layer in range(config.num_hidden_layers):
        window = config.layer_options(layer).get("window", options_of(MECHANISM)["window"])
        windows.append(2 * (window[layer] if isinstance(window, list) else window))
    if uneven := [window for window in windows if not window or max(windows) % window]:
        raise OptionError(
            f"the windows, of both sides, must divide the largest of them, {max(windows)}, because "
            f"it pads inputs to a multiple of that alone; got {uneven[0]}"
        )
    return windows


def _source_config(config: LongspanConfig) -> LongformerConfig:
    windows = longformer_windows(config)
    if config.pad_token_id is None:
        raise OptionError("pad_token_id must be a number: positions begin after it, got None")
    return LongformerConfig(
        **{name: getattr(config, name) for name in SAME_FIELDS},
        attention_window=windows,
        attention_probs_dropout_prob=config.attention_dropout,
        max_position_embeddings=config.max_position_embeddings + config.pad_token_id + 1,
        sep_token_id=config.sep_token_id,
        tie_word_embeddings=config.tie_word_embeddings,
    )


def _classifier(config: Any) -> Head | str:
    """Return the head of candidates or of tokens, whose weights have the same names."""
    if is_multiple_choice(config):
        return choice_head(config, "after_separator")
    return token_head(config)


FAMILY = Family(
    model_types=("longformer",),
    prefix="longformer.",
    fields=lambda config: {
        **bert_fields(config),
        "positions_skip_padding": True,
        "sep_token_id": config.sep_token_id,
    },
    weights=_weights,
    heads={
        "lm_head.": roberta_head,
        "qa_outputs.": lambda config: question_head(config, "before_separator"),
        "classifier.dense.": lambda config: sequence_head(config, "tanh", "first"),
        "classifier.": _classifier,
    },
    dropped={name: DROPPED[name] for name in ("embeddings.position_ids", "pooler.*")},
    refusals=_refusals,
    rows_before=lambda config: config.pad_token_id + 1,
    attention=longformer_attention,
    source_config=_source_config,
    architectures=ARCHITECTURES,
)
