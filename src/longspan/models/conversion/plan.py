"""Configuration of a converted model, from that of its source and the requested extension."""

from typing import Any, NamedTuple, cast

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.family import Family, LayerAttention
from longspan.models.conversion.positions import choose_method, rescale_base
from longspan.models.conversion.source import Source

FULL: LayerAttention = ("full", {})


class Extension(NamedTuple):
    """Changes to a source; see `longify` for the fields, here resolved."""

    attention: str | list[str]
    options: dict[str, Any] | list[dict[str, Any]]
    max_length: int
    positions: str
    freeze: str
    decoder_max_length: int | None


def keep_all(family: Family, config: Any) -> Extension:
    """Return the extension that changes nothing: attention and length of the source."""
    if family.attention is None:
        attention_by_layer = family.kept_attention(config)
        layers = [attention_by_layer.get(layer, FULL) for layer in range(config.num_hidden_layers)]
    else:
        layers = family.attention(config)
    names, options = [name for name, _ in layers], [dict(x) for _, x in layers]
    method = choose_method(family.positions, None)
    same = all(name == names[0] for name in names)
    attention = names[0] if same and names else names
    single = isinstance(attention, str) and all(x == options[0] for x in options)
    return Extension(
        attention,
        options[0] if single else options,
        family.source_length(config),
        method,
        "none",
        family.decoder_length(config),
    )


def plan_extension(
    source: Source,
    attention: str | list[str] | None,
    options: dict[str, Any] | list[dict[str, Any]] | None,
    positions: str | None,
    freeze: str,
    *,
    max_length: int,
    decoder_max_length: int | None,
) -> Extension:
    """Return the extension of a source, with defaults resolved.

    Raises:
        OptionError: a length is below that of the source, or of a decoder that it has not, there is
            no position to train, or options are given without an attention.
        UnknownNameError: positions of the source are not extended so.
    """
    length = source.family.source_length(source.config)
    check_length("max_length", max_length, length)
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
    if attention is None and options:
        raise OptionError(
            f"options are those of an attention, got {options} without one; the source's keeps its "
            "own, so name the attention too"
        )
    method = choose_method(source.family.positions, positions)
    decoder_length = _decoder_length(source, decoder_max_length)
    if attention is None:
        unchanged = keep_all(source.family, source.config)
        attention, options = unchanged.attention, unchanged.options
    return Extension(attention, options or {}, max_length, method, freeze, decoder_length)


def _decoder_length(source: Source, requested: int | None) -> int | None:
    """Return the maximum number of tokens of the decoder; None: there is no decoder."""
    length = source.family.decoder_length(source.config)
    if requested is None:
        return length
    if length is None:
        raise OptionError(
            f"decoder_max_length={requested:,} requires an encoder-decoder, such as BART; "
            f"{source.config.model_type} is none, use max_length"
        )
    check_length("decoder_max_length", requested, length)
    return requested


def check_length(name: str, requested: int, length: int) -> None:
    """Raise OptionError for fewer tokens than those of the source."""
    if requested < length:
        raise OptionError(
            f"{name} must be at least the {length:,} tokens of the source, got {requested:,}; "
            "to shorten inputs, truncate them with the tokenizer"
        )


def make_config(family: Family, config: Any, extension: Extension) -> LongspanConfig:
    """Return the configuration of the converted model.

    Args:
        family: family of the source.
        config: configuration of the source.
        extension: changes to it.

    Raises:
        OptionError: a field or an option of the mechanism is invalid.
        UnknownNameError: a mechanism or an option does not exist.
    """
    fields = family.own_fields(config)
    if extension.decoder_max_length is not None:
        fields["decoder_overrides"] |= _decoder_positions(family, config, extension)
    new_config = LongspanConfig(
        **fields,
        **_layer_attention(family, config, extension),
        max_position_embeddings=extension.max_length,
        freeze=extension.freeze,
        frozen_positions=_frozen_positions(extension, family.source_length(config)),
    )
    if extension.positions == "rescale":
        attention_by_layer = family.kept_attention(config)
        factor = extension.max_length / family.source_length(config)
        new_config.rotary_base = [
            base if layer in attention_by_layer else rescale_base(base, factor, new_config.head_dim)
            for layer, base in enumerate(new_config.rotary_bases)
        ]
    return new_config


def _frozen_positions(extension: Extension, length: int) -> int:
    """Return the number of positions that keep the rows of a source of this length, if frozen."""
    return 0 if extension.freeze == "none" or extension.positions == "interpolate" else length


def _decoder_positions(family: Family, config: Any, extension: Extension) -> dict[str, Any]:
    """Return the fields of the decoder's positions; with `freeze`, added ones are trained."""
    length, longer = family.decoder_length(config), extension.decoder_max_length
    fields = {"max_position_embeddings": longer}
    if extension.freeze != "none" and longer != length:
        fields["frozen_positions"] = _frozen_positions(extension, cast(int, length))
    return fields


def _layer_attention(family: Family, config: Any, extension: Extension) -> dict[str, Any]:
    """Return the attention of the layers; some layers of a source may keep theirs."""
    attention, options = extension.attention, extension.options
    attention_by_layer = family.kept_attention(config)
    if attention_by_layer and isinstance(attention, str) and isinstance(options, dict):
        layers = range(config.num_hidden_layers)
        pairs = [attention_by_layer.get(layer, (attention, options)) for layer in layers]
        attention, options = [name for name, _ in pairs], [dict(x) for _, x in pairs]
    return {"attention": attention, "attention_options": options}
