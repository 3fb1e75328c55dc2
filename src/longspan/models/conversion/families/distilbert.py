"""DistilBERT (Sanh et al. 2019, https://arxiv.org/abs/1910.01108).

BERT without types of tokens and without a pooler.
"""

from typing import Any

from transformers import DistilBertConfig

from longspan.models.config import LongspanConfig
from longspan.models.conversion.family import (
    POSITIONS,
    WORDS,
    Family,
    Head,
    Weight,
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

NORM_EPS = 1e-12
SAME_FIELDS = (
    *("vocab_size", "attention_dropout", "initializer_range", "tie_word_embeddings"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)
# Fields of ours by those of the source.
RENAMED_FIELDS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
}
LAYER = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feed_forward.input": "ffn.lin1",
    "feed_forward.output": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}


def _fields(config: Any) -> dict[str, Any]:
    return {
        **{name: getattr(config, name) for name in SAME_FIELDS},
        **{ours: getattr(config, theirs) for theirs, ours in RENAMED_FIELDS.items()},
        "layer_norm_eps": NORM_EPS,
        "norm": "post",
        "pooling": "first",
        "position": "learned",
    }


def _weights(config: Any) -> list[Weight]:
    weights = [
        Weight(WORDS, ("embeddings.word_embeddings.weight",)),
        Weight(POSITIONS, ("embeddings.position_embeddings.weight",)),
        *parameters("embeddings.norm", "embeddings.LayerNorm"),
    ]
    for i in range(config.n_layers):
        for target, source in LAYER.items():
            weights += parameters(f"layers.{i}.{target}", f"transformer.layer.{i}.{source}")
    return weights


def _masked_head(config: Any) -> Head:
    weights = [
        *parameters("transform.dense", "vocab_transform"),
        *parameters("transform.norm", "vocab_layer_norm"),
        Weight("lm_head.bias", ("vocab_projector.bias",)),
    ]
    return Head(LongspanForMaskedLM, weights, "vocab_projector.weight")


def _pooled_head(config: Any) -> Head:
    """Return the head of candidates or of texts, whose weights have the same names."""
    if is_multiple_choice(config):
        return choice_head(config, pooler="pre_classifier", activation="relu")
    return sequence_head(config, "relu", hidden="pre_classifier", output="classifier")


def _source_config(config: LongspanConfig) -> DistilBertConfig:
    return DistilBertConfig(
        **{name: getattr(config, name) for name in SAME_FIELDS},
        **{theirs: getattr(config, ours) for theirs, ours in RENAMED_FIELDS.items()},
        max_position_embeddings=config.max_position_embeddings,
    )


FAMILY = Family(
    model_types=("distilbert",),
    prefix="distilbert.",
    fields=_fields,
    weights=_weights,
    heads={
        "vocab_": _masked_head,
        "qa_outputs.": question_head,
        "pre_classifier.": _pooled_head,
        "classifier.": token_head,
    },
    dropped={"embeddings.position_ids": "index of each position, which is computed"},
    source_config=_source_config,
    architectures={
        LongspanModel: "DistilBertModel",
        LongspanForMaskedLM: "DistilBertForMaskedLM",
        LongspanForSequenceClassification: "DistilBertForSequenceClassification",
        LongspanForTokenClassification: "DistilBertForTokenClassification",
        LongspanForQuestionAnswering: "DistilBertForQuestionAnswering",
        LongspanForMultipleChoice: "DistilBertForMultipleChoice",
    },
)
