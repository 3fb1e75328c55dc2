"""BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from longspan.models.conversion.family import (
    POSITIONS,
    WORDS,
    Family,
    Weight,
    layer_weights,
    parameters,
    same,
    unlike,
)
from longspan.models.conversion.heads import masked_head

LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.input": "intermediate.dense",
    "feed_forward.output": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
NO_TYPES = {
    **same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    **same("intermediate_size", "hidden_act", "hidden_dropout_prob", "layer_norm_eps"),
    **same("initializer_range", "pad_token_id", "bos_token_id", "eos_token_id"),
    **same("tie_word_embeddings"),
    "attention_dropout": "attention_probs_dropout_prob",
}
FIELDS = {**NO_TYPES, **same("type_vocab_size")}
POST_NORM = {"norm": "post", "pooling": "first", "position": "learned"}
TASK_HEAD = "head of a task; train a new one"
COMPUTED = {"embeddings.position_ids": "index of each position, which is computed"}
POOLER = {**COMPUTED, "pooler.*": "the pooled state is that of the first token"}
DROPPED = {**POOLER, "classifier.*": TASK_HEAD, "qa_outputs.*": TASK_HEAD}
PRETRAINING = {**DROPPED, "cls.seq_relationship.*": "next-sentence head, which is not used"}


def encoder_weights(
    config: Any,
    layer: Mapping[str, str] = LAYER,
    source: str = "encoder.layer.{}",
    types: bool = True,
) -> list[Weight]:
    """Return the weights of embeddings and layers.

    Args:
        config: configuration of the source.
        layer: names of the modules of a layer.
        source: name of a layer.
        types: whether the source has types of tokens.
    """
    weights = [
        Weight(WORDS, ("embeddings.word_embeddings.weight",)),
        Weight(POSITIONS, ("embeddings.position_embeddings.weight",)),
        *parameters("embeddings.norm", "embeddings.LayerNorm"),
    ]
    if types and config.type_vocab_size:
        weights += parameters("embeddings.types", "embeddings.token_type_embeddings", "weight")
    return weights + layer_weights(layer, source, config.num_hidden_layers)


def bert_refusals(config: Any) -> list[str]:
    """Return the reasons why the source is no encoder with absolute positions."""
    usual = {"is_decoder": False, "add_cross_attention": False}
    return unlike(config, **usual, position_embedding_type="absolute")


HEAD = partial(
    masked_head,
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    output="cls.predictions.decoder",
    bias="cls.predictions.bias",
)
FAMILY = Family(
    model_types=("bert",),
    prefix="bert.",
    fields=FIELDS,
    constants=POST_NORM,
    weights=encoder_weights,
    heads={"cls.predictions.": HEAD},
    dropped=PRETRAINING,
    refusals=bert_refusals,
)
