"""Differences of two configurations that change the outputs of a model."""

from collections.abc import Collection
from typing import Any

from longspan.attention import MECHANISMS, options_of
from longspan.models.config import LongspanConfig
from longspan.models.fields import declared
from longspan.models.parts import decoder_config


def list_differences(
    ours: LongspanConfig, theirs: LongspanConfig, head_fields: Collection[str]
) -> list[str]:
    """Return the differences of a model from the one that a class of transformers has.

    Args:
        ours: configuration of the model.
        theirs: configuration of the same model, converted from the class.
        head_fields: fields that its head reads.
    """
    effects = declared(ours, "effect")
    names = [x for x, effect in effects.items() if effect == "model" or x in head_fields]
    pairs = {name: (ours.resolve(name), theirs.resolve(name)) for name in names}
    reasons = [f"{name} must be {y!r}, got {x!r}" for name, (x, y) in pairs.items() if x != y]
    reasons += _attention_differences(ours, theirs)
    if not (ours.is_encoder_decoder and theirs.is_encoder_decoder):
        return reasons
    of_decoder = list_differences(decoder_config(ours), decoder_config(theirs), head_fields)
    shared = {name for name, (x, y) in pairs.items() if x != y}
    return reasons + [f"decoder: {x}" for x in of_decoder if x.split()[0] not in shared]


def _attention_differences(ours: LongspanConfig, theirs: LongspanConfig) -> list[str]:
    """Return the differences of the mechanisms and of their options, each once."""
    reasons = []
    for layer, (name, other) in enumerate(
        zip(ours.attention_names, theirs.attention_names, strict=True)
    ):
        if name != other:
            reasons.append(f"attention of layer {layer} must be {other!r}, got {name!r}")
            continue
        expected, given = _layer_options(theirs, layer), _layer_options(ours, layer)
        reasons += [
            f"option {key} of {name!r} must be {value!r}, got {given[key]!r}"
            for key, value in expected.items()
            if given[key] != value
        ]
    return list(dict.fromkeys(reasons))


def _layer_options(config: LongspanConfig, layer: int) -> dict[str, Any]:
    """Return all options of a layer; that of its size may be a list of layers."""
    cls = MECHANISMS[config.attention_names[layer]]
    options = options_of(cls.name) | config.layer_options(layer)
    size = cls.size_option
    if size and "layer" in cls.traits.sizes and isinstance(options[size], list):
        options[size] = options[size][layer]
    return options
