"""Configuration of a model around a mechanism, with the field names of transformers."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Strict

from longspan.config.architecture import Architecture, describe_fields
from longspan.config.base import setting, settings
from longspan.errors import OptionError

SCALE = "model.scale"  # change that multiplies the sizes of a model; see `_scale_model`
SCALED = (  # fields that it changes
    *("hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "classifier_hidden_size"),
)

_DECLARED = {field.name: field for field in dataclasses.fields(Architecture)}
_HELP = describe_fields(Architecture)


def declare(name: str, *default: Any) -> Any:
    """Return a field of the model as `Architecture` declares it.

    Args:
        name: name of the field.
        default: default of a run, if it is another one; `MISSING`: every run names a value.
    """
    field = _DECLARED[name]
    value = default[0] if default else field.default
    return setting(_HELP.get(name, ""), value, bounds=field.metadata.get("bounds"))


@settings
class ModelConfig:
    """Architecture of the encoder and its head; the mechanism is configured on its own."""

    hidden_size: int = declare("hidden_size", dataclasses.MISSING)
    num_hidden_layers: int = declare("num_hidden_layers", dataclasses.MISSING)
    num_attention_heads: int = declare("num_attention_heads", dataclasses.MISSING)
    attention_head_size: int | None = declare("attention_head_size")
    intermediate_size: int = declare("intermediate_size", dataclasses.MISSING)
    classifier_hidden_size: int = declare("classifier_hidden_size", dataclasses.MISSING)
    position: str = declare("position", "learned")
    # JSON has lists in place of tuples.
    adaptive_cutoffs: Annotated[tuple[int, ...], Strict(False)] = declare("adaptive_cutoffs", ())
    adaptive_factor: int = declare("adaptive_factor")
    short_convolution: int = declare("short_convolution")
    short_convolution_activation: str = declare("short_convolution_activation")
    output_norm: str = declare("output_norm")
    output_gate: str = declare("output_gate")
    stem: str = declare("stem")
    norm: str = declare("norm")
    pooling: str = declare("pooling")
    is_decoder: bool = declare("is_decoder")
    pair_head: str = declare("pair_head")
    hidden_dropout_prob: float = declare("hidden_dropout_prob")
    attention_dropout: float = declare("attention_dropout")
    initializer_range: float = declare("initializer_range", 0.07)


def _scale_model(config: ModelConfig, factor: float) -> ModelConfig:
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
    scaled = _scale_model(config, changes[SCALE])
    pairs = {name: (getattr(config, name), getattr(scaled, name)) for name in SCALED}
    fields = {f"model.{name}": after for name, (before, after) in pairs.items() if before != after}
    return fields | {name: x for name, x in changes.items() if name != SCALE}
