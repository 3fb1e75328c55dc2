"""ALBERT (Lan et al. 2020, https://arxiv.org/abs/1909.11942).

BERT whose layers share their weights, and whose embeddings are narrower than the states.
"""

from typing import Any

from transformers import AlbertConfig

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import DROPPED, SAME_FIELDS, bert_fields
from longspan.models.conversion.family import (
    POSITIONS,
    WORDS,
    Family,
    Head,
    Weight,
    output_bias,
    parameters,
)
from longspan.models.conversion.heads import (
    choice_head,
    is_multiple_choice,
    question_head,
    sequence_head,
    token_head,
)
from longspan.models.heads.masked_lm import LongspanForMaskedLM
from longspan.models.heads.multiple_choice import LongspanForMultipleChoice
from longspan.models.heads.question_answering import LongspanForQuestionAnswering
from longspan.models.heads.sequence_classification import LongspanForSequenceClassification
from longspan.models.heads.token_classification import LongspanForTokenClassification
from longspan.models.model import LongspanModel

OWN_FIELDS = ("embedding_size", "num_hidden_groups", "tie_word_embeddings")
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


def _fields(config: Any) -> dict[str, Any]:
    return {**bert_fields(config), **{name: getattr(config, name) for name in OWN_FIELDS}}


def _weights(config: Any) -> list[Weight]:
    weights = [
        Weight(WORDS, ("embeddings.word_embeddings.weight",)),
        Weight(POSITIONS, ("embeddings.position_embeddings.weight",)),
        *parameters("embeddings.types", "embeddings.token_type_embeddings", "weight"),
        *parameters("embeddings.norm", "embeddings.LayerNorm"),
        *parameters("embeddings.widen", "encoder.embedding_hidden_mapping_in"),
    ]
    for i in range(config.num_hidden_groups):
        layer = f"encoder.albert_layer_groups.{i}.albert_layers.0"
        for target, source in LAYER.items():
            weights += parameters(f"layers.{i}.{target}", f"{layer}.{source}")
    return weights


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
    if config.type_vocab_size < 1:
        reasons.append(f"type_vocab_size={config.type_vocab_size}, expected 1 or more")
    return reasons


def _masked_head(config: Any) -> Head:
    weights = [
        *parameters("transform.dense", "predictions.dense"),
        *parameters("transform.norm", "predictions.LayerNorm"),
        output_bias(config, "predictions.bias", "predictions.decoder.bias"),
    ]
    return Head(LongspanForMaskedLM, weights, "predictions.decoder.weight")


def _classifier(config: Any) -> Head | str:
    """Return the head of candidates, tokens or texts, whose weights have the same names."""
    if is_multiple_choice(config):
        return choice_head(config, pooler="pooler")
    if TOKENS in (config.architectures or ()):
        return token_head(config)
    return sequence_head(config, "tanh", hidden="pooler", output="classifier")


def _source_config(config: LongspanConfig) -> AlbertConfig:
    if config.num_hidden_groups is None or config.embedding_size is None:
        raise OptionError(
            "num_hidden_groups and embedding_size must be numbers, got "
            f"{config.num_hidden_groups} and {config.embedding_size}"
        )
    return AlbertConfig(
        **{name: getattr(config, name) for name in (*SAME_FIELDS, *OWN_FIELDS)},
        attention_probs_dropout_prob=config.attention_dropout,
        max_position_embeddings=config.max_position_embeddings,
    )


FAMILY = Family(
    model_types=("albert",),
    prefix="albert.",
    fields=_fields,
    weights=_weights,
    heads={
        "predictions.": _masked_head,
        "qa_outputs.": question_head,
        "classifier.": _classifier,
    },
    dropped={
        **{name: DROPPED[name] for name in ("embeddings.position_ids", "pooler.*")},
        "sop_classifier.*": "sentence-order head, which is not used",
    },
    refusals=_refusals,
    source_config=_source_config,
    architectures={
        LongspanModel: "AlbertModel",
        LongspanForMaskedLM: "AlbertForMaskedLM",
        LongspanForSequenceClassification: "AlbertForSequenceClassification",
        LongspanForTokenClassification: TOKENS,
        LongspanForQuestionAnswering: "AlbertForQuestionAnswering",
        LongspanForMultipleChoice: "AlbertForMultipleChoice",
    },
)
