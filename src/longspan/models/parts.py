"""Configurations of the two parts of an encoder-decoder, and checks of them."""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from longspan.attention import MECHANISMS, Traits
from longspan.attention.build import check_mechanism
from longspan.config.architecture import declared
from longspan.errors import OptionError, check_name

if TYPE_CHECKING:
    from longspan.models.config import LongspanConfig

# All parameters of the decoder.
FROZEN: dict[str, Any] = {"freeze": "all", "frozen_positions": 0}


def encoder_config(config: "LongspanConfig") -> "LongspanConfig":
    """Return the configuration of the encoder of an encoder-decoder."""
    return _replace(config, {"is_encoder_decoder": False, "decoder_overrides": {}})


def decoder_config(config: "LongspanConfig") -> "LongspanConfig":
    """Return the configuration of the decoder of an encoder-decoder."""
    fixed = {"is_decoder": True, "max_encoder_positions": config.max_position_embeddings}
    fields = declared(config, "in_decoder") | fixed | config.decoder_overrides | _freezing(config)
    return _replace(encoder_config(config), fields)


def _freezing(config: "LongspanConfig") -> dict[str, Any]:
    """Return the fields of the decoder's freezing; those of its positions apply with `freeze`."""
    if config.freeze == "none":
        return {"frozen_positions": 0}
    return {} if "frozen_positions" in config.decoder_overrides else FROZEN


def _replace(config: "LongspanConfig", fields: dict[str, Any]) -> "LongspanConfig":
    """Return a copy with other values; the model that takes it checks them."""
    new_config = copy.deepcopy(config)
    for name, value in fields.items():
        setattr(new_config, name, copy.deepcopy(value))
    return new_config


def check_parts(config: "LongspanConfig") -> list[str]:
    """Return the reasons why the configuration describes no encoder-decoder.

    Raises:
        UnknownNameError: `decoder_overrides` has a name that is no field of a decoder.
    """
    for name in config.decoder_overrides:
        check_name(name, declared(config, "decoder"), "field of decoder_overrides")
    if not config.is_encoder_decoder:
        unused = bool(config.decoder_overrides)
        return ["decoder_overrides requires is_encoder_decoder=True"] if unused else []
    reasons = [
        f"is_encoder_decoder=True does not support {field}={getattr(config, field)!r}; {remedy}"
        for field, unset, remedy in (
            ("is_decoder", False, "its decoder is one already"),
            ("cross_attention", None, "set it in decoder_overrides"),
            ("input_features", None, "it reads token ids"),
        )
        if getattr(config, field) != unset
    ]
    if reasons:
        return reasons
    try:
        decoder_config(config).check()
    except OptionError as error:
        return [f"its decoder (decoder_overrides): {error}"]
    return []


def cross_attention_refusals(config: "LongspanConfig") -> Iterator[str]:
    """Yield the reasons why a decoder cannot attend to an encoder.

    Raises:
        UnknownNameError: a mechanism, option or backend does not exist.
    """
    name = config.cross_attention
    if name is None:
        if config.cross_attention_options:
            yield "cross_attention_options requires cross_attention"
        return
    check_mechanism(name, config.cross_attention_options, config.attention_backend)
    if not config.is_decoder:
        yield "cross_attention requires is_decoder=True"
    if config.num_hidden_layers == 0:
        yield "cross_attention requires num_hidden_layers >= 1, got 0"
    if not _can_cross(MECHANISMS[name].traits):
        able = ", ".join(name for name, cls in MECHANISMS.items() if _can_cross(cls.traits))
        yield (
            f"cross_attention requires rows that depend on their own query and the encoder only, "
            f"which {name} does not support; use one of {able}"
        )


def _can_cross(traits: Traits) -> bool:
    """Return whether a decoder can use the mechanism: no row may read the queries of later ones."""
    return traits.cross and not traits.mixes_queries
