"""MPNet (Song et al. 2020, https://arxiv.org/abs/2004.09297).

RoBERTa without types of tokens, whose scores have the numbers of T5's relative positions too.
transformers fixes the padding token of its positions, the number of buckets and the largest
distance, whatever the configuration says.
"""

from functools import partial
from typing import Any

from longspan.models.conversion.families.bert import LAYER, NO_TYPES, POOLER, encoder_weights
from longspan.models.conversion.families.roberta import HEAD, SKIPS_PADDING
from longspan.models.conversion.family import Family, Weight, same
from longspan.models.conversion.heads import (
    choice_or_token_head,
    classes,
    question_head,
    sequence_head,
)

PADDING, BUCKETS, MAX_DISTANCE = 1, 32, 128
ATTENTION = {
    "attention.query": "attention.attn.q",
    "attention.key": "attention.attn.k",
    "attention.value": "attention.attn.v",
    "attention.output": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
}


def _weights(config: Any) -> list[Weight]:
    table = "relative_attention_bias.weight"
    weights = encoder_weights(config, {**LAYER, **ATTENTION}, types=False)
    return [*weights, Weight(f"relative.{table}", (f"encoder.{table}",))]


def _refusals(config: Any) -> list[str]:
    fixed = {"pad_token_id": PADDING, "relative_attention_num_buckets": BUCKETS}
    given = {name: getattr(config, name) for name in fixed}
    return [
        f"{name} must be {fixed[name]}, which transformers reads whatever it is, got {value}"
        for name, value in given.items()
        if value != fixed[name]
    ]


FAMILY = Family(
    model_types=("mpnet",),
    prefix="mpnet.",
    fields={**NO_TYPES, **same("relative_attention_num_buckets")},
    constants={
        **SKIPS_PADDING,
        "has_relative_attention_bias": True,
        "relative_attention_max_distance": MAX_DISTANCE,
    },
    weights=_weights,
    heads={
        "lm_head.": HEAD,
        "qa_outputs.": question_head,
        "classifier.dense.": partial(sequence_head, activation="tanh"),
        "classifier.": choice_or_token_head,
    },
    dropped=POOLER,
    refusals=_refusals,
    rows_before=lambda _: PADDING + 1,
    architectures=classes("MPNet"),
    source_fields=lambda config: {
        "max_position_embeddings": config.max_position_embeddings + PADDING + 1
    },
)
