"""MPNet (Song et al. 2020, https://arxiv.org/abs/2004.09297).

RoBERTa without types of tokens, whose scores have the numbers of T5's relative positions too.
transformers fixes the padding token of its positions, the number of buckets and the largest
distance, whatever the configuration says.
"""

from typing import Any

from transformers import MPNetConfig

from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import DROPPED, bert_weights
from longspan.models.conversion.families.roberta import roberta_head
from longspan.models.conversion.family import Family, Head, Weight
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

PADDING, BUCKETS, MAX_DISTANCE = 1, 32, 128
SAME_FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "hidden_act", "hidden_dropout_prob", "layer_norm_eps"),
    *("relative_attention_num_buckets", "initializer_range", "tie_word_embeddings"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)
# Parts of the names of BERT's attention, and MPNet's.
RENAMED = {
    "attention.self.query": "attention.attn.q",
    "attention.self.key": "attention.attn.k",
    "attention.self.value": "attention.attn.v",
    "attention.output.dense": "attention.attn.o",
    "attention.output.LayerNorm": "attention.LayerNorm",
}


def _fields(config: Any) -> dict[str, Any]:
    return {
        **{name: getattr(config, name) for name in SAME_FIELDS},
        "attention_dropout": config.attention_probs_dropout_prob,
        "norm": "post",
        "pooling": "first",
        "position": "learned",
        "positions_skip_padding": True,
        "has_relative_attention_bias": True,
        "relative_attention_max_distance": MAX_DISTANCE,
    }


def _weights(config: Any) -> list[Weight]:
    table = "relative_attention_bias.weight"
    return [_renamed(weight) for weight in bert_weights(config, types=False)] + [
        Weight(f"relative.{table}", (f"encoder.{table}",))
    ]


def _renamed(weight: Weight) -> Weight:
    (source,) = weight.sources
    for theirs, own in RENAMED.items():
        source = source.replace(theirs, own)
    return weight._replace(sources=(source,))


def _refusals(config: Any) -> list[str]:
    fixed = {"pad_token_id": PADDING, "relative_attention_num_buckets": BUCKETS}
    given = {name: getattr(config, name) for name in fixed}
    return [
        f"{name} must be {fixed[name]}, which transformers reads whatever it is, got {value}"
        for name, value in given.items()
        if value != fixed[name]
    ]


def _classifier(config: Any) -> Head | str:
    """Return the head of candidates or of tokens, whose weights have the same names."""
    return choice_head(config) if is_multiple_choice(config) else token_head(config)


def _source_config(config: LongspanConfig) -> MPNetConfig:
    return MPNetConfig(
        **{name: getattr(config, name) for name in SAME_FIELDS},
        attention_probs_dropout_prob=config.attention_dropout,
        max_position_embeddings=config.max_position_embeddings + PADDING + 1,
    )


FAMILY = Family(
    model_types=("mpnet",),
    prefix="mpnet.",
    fields=_fields,
    weights=_weights,
    heads={
        "lm_head.": roberta_head,
        "qa_outputs.": question_head,
        "classifier.dense.": lambda config: sequence_head(config, "tanh"),
        "classifier.": _classifier,
    },
    dropped={name: DROPPED[name] for name in ("embeddings.position_ids", "pooler.*")},
    refusals=_refusals,
    rows_before=lambda _: PADDING + 1,
    source_config=_source_config,
    architectures={
        LongspanModel: "MPNetModel",
        LongspanForMaskedLM: "MPNetForMaskedLM",
        LongspanForSequenceClassification: "MPNetForSequenceClassification",
        LongspanForTokenClassification: "MPNetForTokenClassification",
        LongspanForQuestionAnswering: "MPNetForQuestionAnswering",
        LongspanForMultipleChoice: "MPNetForMultipleChoice",
    },
)
