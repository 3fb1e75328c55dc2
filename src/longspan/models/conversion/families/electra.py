"""ELECTRA, generator and discriminator (Clark et al. 2020, https://arxiv.org/abs/2003.10555)."""

import dataclasses
from functools import partial
from typing import Any

from longspan.models.conversion.families import bert
from longspan.models.conversion.family import Weight, parameters, same
from longspan.models.conversion.heads import masked_head


def _weights(config: Any) -> list[Weight]:
    is_wider = config.embedding_size != config.hidden_size
    widen = parameters("embeddings.widen", "embeddings_project") if is_wider else []
    return bert.encoder_weights(config) + widen


HEAD = partial(
    masked_head,
    dense="generator_predictions.dense",
    norm="generator_predictions.LayerNorm",
    output="generator_lm_head",
    activation="gelu",  # whatever that of the layers is
)
FAMILY = dataclasses.replace(
    bert.FAMILY,
    model_types=("electra",),
    prefix="electra.",
    fields={**bert.FIELDS, **same("embedding_size")},
    weights=_weights,
    heads={"generator_": HEAD},
    dropped={
        **bert.DROPPED,
        "discriminator_predictions.*": "head for replaced tokens, which is not used",
        "sequence_summary.*": bert.TASK_HEAD,
    },
)
