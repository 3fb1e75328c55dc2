"""ELECTRA, generator and discriminator (Clark et al. 2020, https://arxiv.org/abs/2003.10555)."""

from typing import Any

from longspan.models.conversion.families.bert import (
    DROPPED,
    TASK_HEAD,
    bert_fields,
    bert_refusals,
    bert_weights,
)
from longspan.models.conversion.family import Family, Head, Weight, activation_refusal, parameters
from longspan.models.heads.masked_lm import LongspanForMaskedLM

HEAD_ACTIVATION = "gelu"  # whatever that of the layers is


def _fields(config: Any) -> dict[str, Any]:
    return {**bert_fields(config), "embedding_size": config.embedding_size}


def _weights(config: Any) -> list[Weight]:
    widened = config.embedding_size != config.hidden_size
    return bert_weights(config) + (
        parameters("embeddings.widen", "embeddings_project") if widened else []
    )


def _head(config: Any) -> Head | str:
    if reason := activation_refusal(HEAD_ACTIVATION, config.hidden_act):
        return reason
    weights = [
        *parameters("transform.dense", "generator_predictions.dense"),
        *parameters("transform.norm", "generator_predictions.LayerNorm"),
        Weight("lm_head.bias", ("generator_lm_head.bias",)),
    ]
    return Head(LongspanForMaskedLM, weights, "generator_lm_head.weight")


FAMILY = Family(
    model_types=("electra",),
    prefix="electra.",
    fields=_fields,
    weights=_weights,
    heads={"generator_": _head},
    dropped={
        **DROPPED,
        "discriminator_predictions.*": "head for replaced tokens, which is not used",
        "sequence_summary.*": TASK_HEAD,
    },
    refusals=bert_refusals,
)
