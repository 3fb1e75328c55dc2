"""Pegasus (Zhang et al. 2020, https://arxiv.org/abs/1912.08777).

BART with normalization before each block and sinusoidal positions. Their tables, which some
checkpoints do not contain, become learned positions of ours, and are extended by the formula.
"""

import dataclasses
from typing import Any

from torch import Tensor

from longspan.models.conversion.families import bart, mbart
from longspan.models.conversion.family import DECODER, ENCODER
from longspan.models.conversion.positions import sinusoidal_rows


def _computed(config: Any) -> dict[str, Tensor]:
    table = sinusoidal_rows(config.max_position_embeddings, config.d_model)
    return {f"{part}embed_positions.weight": table for part in (ENCODER, DECODER)}


FAMILY = dataclasses.replace(
    bart.FAMILY,
    model_types=("pegasus",),
    constants={**bart.FAMILY.constants, "norm": "pre"},
    weights=mbart.mbart_weights,
    positions="sinusoidal",
    position_rows=lambda config: config.max_position_embeddings,
    rows_before=lambda _: 0,
    computed=_computed,
    decoder_rows=lambda config: config.max_position_embeddings,
)
