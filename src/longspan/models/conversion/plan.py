"""Configuration of a converted model, from that of its source and the requested extension."""

from typing import Any, NamedTuple

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.positions import choose_method, rescale_base
from longspan.models.conversion.source import Source


class Extension(NamedTuple):
    """Changes to a source; see `longify` for the fields."""

    attention: str | list[str]
    options: dict[str, Any] | list[dict[str, Any]]
    max_length: int
    positions: str
    freeze: str


def plan_extension(
    source: Source,
    attention: str | list[str],
    options: dict[str, Any] | list[dict[str, Any]] | None,
    max_length: int,
    positions: str | None,
    freeze: str,
) -> Extension:
    """Return the extension of a source, with defaults resolved.

    Raises:
        OptionError: the length is below that of the source, or there is no position to train.
        UnknownNameError: positions of the source are not extended so.
    """
    length = source.family.source_length(source.config)
    if max_length < length:
        raise OptionError(
            f"max_length must be at least the {length:,} tokens of the source, got {max_length:,}; "
            "to shorten inputs, truncate them with the tokenizer"
        )
    if freeze != "none" and source.family.positions != "learned":
        raise OptionError(
            f"freeze={freeze!r} trains learned positions, the source has "
            f"{source.family.positions} ones"
        )
    if freeze != "none" and max_length == length:
        raise OptionError(
            f"freeze={freeze!r} trains the positions beyond the {length:,} of the source, and "
            f"max_length={max_length:,} adds none; increase max_length"
        )
    method = choose_method(source.family.positions, positions)
    return Extension(attention, options or {}, max_length, method, freeze)


def make_config(source: Source, extension: Extension) -> LongspanConfig:
    """Return the configuration of the converted model.

    Raises:
        OptionError: a field or an option of the mechanism is invalid.
        UnknownNameError: a mechanism or an option does not exist.
    """
    family = source.family
    keeps_rows = extension.freeze != "none" and extension.positions != "interpolate"
    config = LongspanConfig(
        **family.fields(source.config),
        **_layer_attention(source, extension),
        max_position_embeddings=extension.max_length,
        freeze=extension.freeze,
        frozen_positions=family.source_length(source.config) if keeps_rows else 0,
    )
    if extension.positions == "rescale":
        kept = family.kept_attention(source.config)
        factor = extension.max_length / family.source_length(source.config)
        config.rotary_base = [
            base if layer in kept else rescale_base(base, factor, config.head_dim)
            for layer, base in enumerate(config.rotary_bases)
        ]
    return config


def _layer_attention(source: Source, extension: Extension) -> dict[str, Any]:
    """Return the attention of the layers; some layers of a source may keep theirs."""
    attention, options = extension.attention, extension.options
    kept = source.family.kept_attention(source.config)
    if kept and isinstance(attention, str) and isinstance(options, dict):
        layers = range(source.config.num_hidden_layers)
        chosen = [kept.get(layer, (attention, options)) for layer in layers]
        attention, options = [name for name, _ in chosen], [dict(x) for _, x in chosen]
    return {"attention": attention, "attention_options": options}
