"""BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805)."""

from typing import Any

from longspan.models.conversion.family import (
    POSITIONS,
    WORDS,
    Family,
    Head,
    Weight,
    output_bias,
    parameters,
)
from longspan.models.heads.masked_lm import LongspanForMaskedLM

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
SAME_FIELDS = (
    *("vocab_size", "type_vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "hidden_act", "hidden_dropout_prob", "layer_norm_eps"),
    *("initializer_range", "pad_token_id", "bos_token_id", "eos_token_id"),
)
TASK_HEAD = "head of a task; train a new one"
DROPPED = {
    "embeddings.position_ids": "index of each position, which is computed",
    "pooler.*": "the pooled state is that of the first token",
    "classifier.*": TASK_HEAD,
    "qa_outputs.*": TASK_HEAD,
}


def bert_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a post-norm encoder with learned positions."""
    return {
        **{name: getattr(config, name) for name in SAME_FIELDS},
        "attention_dropout": config.attention_probs_dropout_prob,
        "norm": "post",
        "pooling": "first",
        "position": "learned",
    }


def bert_weights(config: Any, types: bool = True) -> list[Weight]:
    """Return the weights of embeddings and layers.

    Args:
        config: configuration of the source.
        types: whether the source has types of tokens.
    """
    weights = [
        Weight(WORDS, ("embeddings.word_embeddings.weight",)),
        Weight(POSITIONS, ("embeddings.position_embeddings.weight",)),
        *parameters("embeddings.norm", "embeddings.LayerNorm"),
    ]
    if types and config.type_vocab_size:
        weights += parameters("embeddings.types", "embeddings.token_type_embeddings", "weight")
    for i in range(config.num_hidden_layers):
        for target, source in LAYER.items():
            weights += parameters(f"layers.{i}.{target}", f"encoder.layer.{i}.{source}")
    return weights


def bert_refusals(config: Any) -> list[str]:
    """Return the reasons why the source is no encoder with absolute positions."""
    flags = ("is_decoder", "add_cross_attention")
    reasons = [f"{name}=True" for name in flags if getattr(config, name)]
    kind = getattr(config, "position_embedding_type", "absolute")
    return reasons if kind == "absolute" else [*reasons, f"position_embedding_type={kind!r}"]


def bert_head(config: Any) -> Head:
    """Return the head for masked tokens."""
    source = "cls.predictions"
    weights = [
        *parameters("transform.dense", f"{source}.transform.dense"),
        *parameters("transform.norm", f"{source}.transform.LayerNorm"),
        output_bias(config, f"{source}.bias", f"{source}.decoder.bias"),
    ]
    return Head(LongspanForMaskedLM, weights, f"{source}.decoder.weight")


FAMILY = Family(
    model_types=("bert",),
    prefix="bert.",
    fields=bert_fields,
    weights=bert_weights,
    heads={"cls.predictions.": bert_head},
    dropped={**DROPPED, "cls.seq_relationship.*": "next-sentence head, which is not used"},
    refusals=bert_refusals,
)
