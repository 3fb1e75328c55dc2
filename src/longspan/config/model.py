"""Configuration of a model around a mechanism, with the field names of transformers."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Strict

from longspan.config.base import setting, settings
from longspan.errors import OptionError

SCALE = "model.scale"  # change that multiplies the sizes of a model; see `scale_model`


@settings
class ModelConfig:
    """Architecture of the encoder and its head; the mechanism is configured on its own."""

    hidden_size: int = setting("width of the hidden states")
    num_hidden_layers: int = setting("number of layers; 0: no attention")
    num_attention_heads: int = setting("attention heads per layer")
    attention_head_size: int | None = setting(
        "width of an attention head; none: hidden_size / num_attention_heads", None
    )
    intermediate_size: int = setting("width of the feed-forward layer")
    classifier_hidden_size: int = setting("width of the classifier's hidden layer")
    position: str = setting(
        "position encoding: learned, sinusoidal, rotary, relative_2d (square images), t5, relative "
        "or none",
        "learned",
    )
    # JSON has lists in place of tuples.
    adaptive_cutoffs: Annotated[tuple[int, ...], Strict(False)] = setting(
        "adaptive embeddings and softmax, of left-to-right models of words by frequency: first ids "
        "of all clusters but the first; none: ()",
        (),
    )
    adaptive_factor: int = setting("dimensions of a cluster of words per those of the next one", 4)
    stem: str = setting("layers before the first one, on images: none or convolution", "none")
    norm: str = setting("layer normalization: pre or post", "pre")
    pooling: str = setting("sequence summary: mean, cls or first", "mean")
    pair_head: str = setting("features of a pair: interaction or concatenate", "interaction")
    hidden_dropout_prob: float = setting("dropout of embeddings and blocks", 0.1)
    attention_dropout: float = setting("dropout of the mechanism's output", 0.1)
    initializer_range: float = setting("standard deviation of the initial weights", 0.07)


def scale_model(config: ModelConfig, factor: float) -> ModelConfig:
    """Return a model of another size, as the families of published models have them.

    The numbers of heads and of layers are multiplied and rounded, to at least 1; the width of a
    head stays. All other widths grow with the number of heads: hidden states, feed-forward layer
    and classifier. The number of parameters of a layer grows with the square of the factor.

    Raises:
        OptionError: the factor is no positive number.
    """
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
        raise OptionError(f"{SCALE} must be a positive number, such as 0.5 or 2, got {factor!r}")
    heads = max(1, round(config.num_attention_heads * factor))

    def widen(width: int) -> int:
        return max(1, round(width * heads / config.num_attention_heads))

    return dataclasses.replace(
        config,
        hidden_size=widen(config.hidden_size),
        # 0 layers are a model without attention.
        num_hidden_layers=config.num_hidden_layers
        and max(1, round(config.num_hidden_layers * factor)),
        num_attention_heads=heads,
        intermediate_size=widen(config.intermediate_size),
        classifier_hidden_size=widen(config.classifier_hidden_size),
    )


def expand_scale(config: ModelConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes by dotted name with the fields that `SCALE` changes in its place.

    Fields that the changes name themselves keep the named value.

    Raises:
        OptionError: the factor is no positive number.
    """
    if SCALE not in changes:
        return dict(changes)
    scaled = dataclasses.asdict(scale_model(config, changes[SCALE]))
    fields = {f"model.{name}": x for name, x in scaled.items() if x != getattr(config, name)}
    return fields | {name: x for name, x in changes.items() if name != SCALE}
