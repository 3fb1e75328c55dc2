"""Encoders of LongT5 with local attention (Guo et al. 2022, https://arxiv.org/abs/2112.07916).

T5 with windows in the encoder. Its transient global attention, whose global tokens are means of
blocks, is that of no mechanism.
"""

import dataclasses
from typing import Any

from transformers import LongT5Config

from longspan.attention import options_of
from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families import t5
from longspan.models.conversion.family import LayerAttention, Weight
from longspan.models.model import LongspanModel

MECHANISM, KIND = "local", "local"  # of ours, and of the source


def _attention(config: Any) -> list[LayerAttention]:
    return [(MECHANISM, {"window": config.local_radius})] * config.num_layers


def _weights(config: Any) -> list[Weight]:
    return t5.t5_weights(config, "LocalSelfAttention")


def _refusals(config: Any) -> list[str]:
    kind = config.encoder_attention_type
    if kind == KIND:
        return []
    return [f"encoder_attention_type={kind!r}, whose global tokens are means of blocks"]


def _source_config(config: LongspanConfig) -> LongT5Config:
    if set(config.attention_names) != {MECHANISM}:
        names = " and ".join(dict.fromkeys(config.attention_names))
        raise OptionError(f"the attention must be {MECHANISM} in every layer, got {names}")
    options = options_of(MECHANISM) | config.layer_options(0)
    return LongT5Config(**t5.t5_source_fields(config), local_radius=options["window"])


FAMILY = dataclasses.replace(
    t5.FAMILY,
    model_types=("longt5",),
    weights=_weights,
    heads={},
    refusals=_refusals,
    attention=_attention,
    source_config=_source_config,
    architectures={LongspanModel: "LongT5EncoderModel"},
)
