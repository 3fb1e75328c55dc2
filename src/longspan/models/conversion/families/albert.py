"""ALBERT (Lan et al. 2020, https://arxiv.org/abs/1909.11942).

BERT whose layers share their weights, and whose embeddings are narrower than the states.
"""

from functools import partial
from typing import Any

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import FIELDS, POOLER, POST_NORM
from longspan.models.conversion.family import (
    POSITIONS,
    WORDS,
    Family,
    Head,
    Weight,
    layer_weights,
    parameters,
    same,
    type_refusals,
)
from longspan.models.conversion.heads import (
    choice_or_token_head,
    classes,
    is_multiple_choice,
    masked_head,
    question_head,
    sequence_head,
)

LAYER = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.output": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "feed_forward.input": "ffn",
    "feed_forward.output": "ffn_output",
    "feed_forward_norm": "full_layer_layer_norm",
}
TOKENS = "AlbertForTokenClassification"


def _weights(config: Any) -> list[Weight]:
    group = "encoder.albert_layer_groups.{}.albert_layers.0"
    return [
        Weight(WORDS, ("embeddings.word_embeddings.weight",)),
        Weight(POSITIONS, ("embeddings.position_embeddings.weight",)),
        *parameters("embeddings.types", "embeddings.token_type_embeddings", "weight"),
        *parameters("embeddings.norm", "embeddings.LayerNorm"),
        *parameters("embeddings.widen", "encoder.embedding_hidden_mapping_in"),
        *layer_weights(LAYER, group, config.num_hidden_groups),
    ]


def _refusals(config: Any) -> list[str]:
    groups, layers, reasons = config.num_hidden_groups, config.num_hidden_layers, []
    if config.inner_group_num != 1:
        reasons.append(f"inner_group_num must be 1, got {config.inner_group_num}")
    if groups > layers:
        reasons.append(f"num_hidden_groups={groups} exceeds num_hidden_layers={layers}")
    if config.embedding_size == config.hidden_size:
        reasons.append(
            f"embedding_size={config.embedding_size} is hidden_size, where ours has no map between"
        )
    return reasons + type_refusals(config)


def _classifier(config: Any) -> Head | str:
    """Return the head of candidates, tokens or texts, whose weights have the same names."""
    if is_multiple_choice(config) or TOKENS in (config.architectures or ()):
        return choice_or_token_head(config, pooler="pooler")
    return sequence_head(config, "tanh", hidden="pooler", output="classifier")


def _source_fields(config: LongspanConfig) -> dict[str, Any]:
    if config.num_hidden_groups is None or config.embedding_size is None:
        raise OptionError(
            "num_hidden_groups and embedding_size must be numbers, got "
            f"{config.num_hidden_groups} and {config.embedding_size}"
        )
    return {"max_position_embeddings": config.max_position_embeddings}


FAMILY = Family(
    model_types=("albert",),
    prefix="albert.",
    fields={**FIELDS, **same("embedding_size", "num_hidden_groups")},
    constants=POST_NORM,
    weights=_weights,
    heads={
        "predictions.": partial(
            masked_head,
            dense="predictions.dense",
            norm="predictions.LayerNorm",
            output="predictions.decoder",
            bias="predictions.bias",
        ),
        "qa_outputs.": question_head,
        "classifier.": _classifier,
    },
    dropped={**POOLER, "sop_classifier.*": "sentence-order head, which is not used"},
    refusals=_refusals,
    architectures=classes("Albert"),
    source_fields=_source_fields,
)
