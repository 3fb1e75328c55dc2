"""mBART (Liu et al. 2020, https://arxiv.org/abs/2001.08210).

BART with normalization before each block. The decoder begins with the language of the text.
"""

import dataclasses
from typing import Any

from longspan.models.conversion.families import bart
from longspan.models.conversion.family import DECODER, ENCODER, Weight, parameters


def mbart_weights(config: Any) -> list[Weight]:
    """Return the weights of both parts, each with a norm of its output."""
    last = [
        x for part in (ENCODER, DECODER) for x in parameters(f"{part}norm", f"{part}layer_norm")
    ]
    return bart.bart_weights(config) + last


FAMILY = dataclasses.replace(
    bart.FAMILY,
    model_types=("mbart",),
    constants={
        **bart.FAMILY.constants,
        **{"norm": "pre", "embedding_norm": True, "first_attention_norm": True},
        "decoder_start": "last",
    },
    weights=mbart_weights,
)
