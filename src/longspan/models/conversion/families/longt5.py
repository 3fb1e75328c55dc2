"""Encoders of LongT5 with local attention (Guo et al. 2022, https://arxiv.org/abs/2112.07916).

T5 with windows in the encoder. Its transient global attention, whose global tokens are means of
blocks, is that of no mechanism.
"""

import dataclasses
from functools import partial
from typing import Any

from longspan.models.config import LongspanConfig
from longspan.models.conversion.families import t5
from longspan.models.conversion.family import options_of_all
from longspan.models.model import LongspanModel

LOCAL = "local"  # mechanism, and kind of attention of the source


def _refusals(config: Any) -> list[str]:
    kind = config.encoder_attention_type
    if kind == LOCAL:
        return []
    return [f"encoder_attention_type={kind!r}, whose global tokens are means of blocks"]


def _source_fields(config: LongspanConfig) -> dict[str, Any]:
    radius = options_of_all(config, LOCAL)["window"]
    return {**t5.t5_source_fields(config), "local_radius": radius}


FAMILY = dataclasses.replace(
    t5.FAMILY,
    model_types=("longt5",),
    weights=partial(t5.t5_weights, attention="LocalSelfAttention"),
    heads={},
    refusals=_refusals,
    attention=lambda config: [(LOCAL, {"window": config.local_radius})] * config.num_layers,
    architectures={LongspanModel: "LongT5EncoderModel"},
    source_fields=_source_fields,
)
