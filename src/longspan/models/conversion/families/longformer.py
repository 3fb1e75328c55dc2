"""Longformer in transformers (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150).

Its `attention_window` counts both sides of a token, ours one side. Its positions and its padding
are those of RoBERTa.
"""

from functools import partial
from typing import Any

from longspan.attention import options_of
from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import (
    FIELDS,
    POOLER,
    ROBERTA_HEAD,
    SKIPS_PADDING,
    encoder_weights,
    padding_refusals,
)
from longspan.models.conversion.family import (
    Family,
    LayerAttention,
    Weight,
    layer_weights,
    options_of_all,
    same,
)
from longspan.models.conversion.heads import (
    choice_or_token_head,
    classes,
    question_head,
    sequence_head,
)

MECHANISM = "longformer"
PROJECTIONS = {
    f"attention.mechanism.projections.{x}": f"attention.self.{x}_global"
    for x in ("query", "key", "value")
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
    layers = config.num_hidden_layers
    return encoder_weights(config) + layer_weights(PROJECTIONS, "encoder.layer.{}", layers)


def window_refusals(config: Any) -> list[str]:
    """Return the reasons why `attention_window` is not a window of each layer."""
    windows, layers, reasons = _windows(config), config.num_hidden_layers, []
    if len(windows) != layers:
        reasons.append(f"attention_window has {len(windows)} numbers for {layers} layers")
    if wrong := [window for window in windows if window < 2 or window % 2]:
        reasons.append(f"attention_window must be even and positive, got {wrong[0]}")
    return reasons


def longformer_windows(config: LongspanConfig) -> list[int]:
    """Return the `attention_window` of a model.

    Raises:
        OptionError: the class of transformers has no such attention.
    """
    options_of_all(config, MECHANISM)
    default, windows = options_of(MECHANISM)["window"], []
    for layer in range(config.num_hidden_layers):
        window = config.layer_options(layer).get("window", default)
        windows.append(2 * (window[layer] if isinstance(window, list) else window))
    if uneven := [window for window in windows if not window or max(windows) % window]:
        raise OptionError(
            f"the windows, of both sides, must divide the largest of them, {max(windows)}, because "
            f"it pads inputs to a multiple of that alone; got {uneven[0]}"
        )
    return windows


def _source_fields(config: LongspanConfig) -> dict[str, Any]:
    windows = longformer_windows(config)
    if config.pad_token_id is None:
        raise OptionError("pad_token_id must be a number: positions begin after it, got None")
    rows = config.max_position_embeddings + config.pad_token_id + 1
    return {"attention_window": windows, "max_position_embeddings": rows}


FAMILIES = (
    Family(
        model_types=("longformer",),
        prefix="longformer.",
        fields={**FIELDS, **same("sep_token_id")},
        constants=SKIPS_PADDING,
        weights=_weights,
        heads={
            "lm_head.": ROBERTA_HEAD,
            "qa_outputs.": partial(question_head, tokens="before_separator"),
            "classifier.dense.": partial(sequence_head, activation="tanh", tokens="first"),
            "classifier.": partial(choice_or_token_head, tokens="after_separator"),
        },
        dropped=POOLER,
        refusals=lambda config: padding_refusals(config) + window_refusals(config),
        rows_before=lambda config: config.pad_token_id + 1,
        attention=longformer_attention,
        architectures=classes("Longformer"),
        source_fields=_source_fields,
    ),
)
