"""Nystromformer in transformers (Xiong et al. 2021, https://arxiv.org/abs/2102.03902).

Its landmarks and convolution read padding, and it takes inputs of `segment_means_seq_len` tokens
alone, unless it has as many landmarks: then it attends to all tokens, at any length.
"""

from typing import Any

from transformers import NystromformerConfig

from longspan.attention import options_of
from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import (
    DROPPED,
    SAME_FIELDS,
    bert_fields,
    bert_head,
    bert_weights,
)
from longspan.models.conversion.family import Family, LayerAttention, Weight
from longspan.models.conversion.heads import (
    choice_head,
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

MECHANISM = "nystrom"
ROWS_BEFORE = 2  # positions begin at 2, whatever the padding is


def _is_exact(config: Any) -> bool:
    return config.num_landmarks == config.segment_means_seq_len


def _attention(config: Any) -> list[LayerAttention]:
    options: dict[str, Any] = {
        "landmarks": None if _is_exact(config) else config.num_landmarks,
        "conv_kernel_size": config.conv_kernel_size,
        "reads_padding": True,
    }
    if not _is_exact(config):
        options["inverse_scale"] = "batch"
    return [(MECHANISM, dict(options)) for _ in range(config.num_hidden_layers)]


def _weights(config: Any) -> list[Weight]:
    return bert_weights(config) + [
        Weight(f"layers.{i}.attention.mechanism.conv.weight", (f"{source}.conv.weight",))
        for i in range(config.num_hidden_layers)
        for source in (f"encoder.layer.{i}.attention.self",)
    ]


def _refusals(config: Any) -> list[str]:
    reasons = ["add_cross_attention=True"] if config.add_cross_attention else []
    length, landmarks, kernel = (
        getattr(config, name)
        for name in ("segment_means_seq_len", "num_landmarks", "conv_kernel_size")
    )
    if landmarks < 1 or length % landmarks:
        reasons.append(
            f"segment_means_seq_len={length} is no multiple of num_landmarks={landmarks}"
        )
    if length > config.max_position_embeddings and not _is_exact(config):
        positions = f"max_position_embeddings={config.max_position_embeddings}"
        reasons.append(f"segment_means_seq_len={length} exceeds {positions}")
    if kernel < 1 or kernel % 2 == 0:
        reasons.append(f"conv_kernel_size must be odd, got {kernel}")
    if config.inv_coeff_init_option:
        reasons.append("inv_coeff_init_option=True, which transformers cannot run")
    if config.type_vocab_size < 1:
        reasons.append(f"type_vocab_size={config.type_vocab_size}, expected 1 or more")
    return reasons


def _source_config(config: LongspanConfig) -> NystromformerConfig:
    if set(config.attention_names) != {MECHANISM}:
        names = " and ".join(dict.fromkeys(config.attention_names))
        raise OptionError(f"the attention must be {MECHANISM} in every layer, got {names}")
    options = options_of(MECHANISM) | config.layer_options(0)
    length = config.max_position_embeddings
    landmarks = options["landmarks"]
    own = {} if landmarks is None else {"num_landmarks": landmarks, "segment_means_seq_len": length}
    return NystromformerConfig(
        **{name: getattr(config, name) for name in SAME_FIELDS},
        **own,
        conv_kernel_size=options["conv_kernel_size"],
        attention_probs_dropout_prob=config.attention_dropout,
        max_position_embeddings=length,
        tie_word_embeddings=config.tie_word_embeddings,
    )


FAMILY = Family(
    model_types=("nystromformer",),
    prefix="nystromformer.",
    fields=bert_fields,
    weights=_weights,
    heads={
        "cls.predictions.": bert_head,
        "qa_outputs.": question_head,
        "pre_classifier.": lambda config: choice_head(
            config, pooler="pre_classifier", activation="relu"
        ),
        "classifier.dense.": lambda config: sequence_head(config, config.hidden_act),
        "classifier.": token_head,
    },
    dropped={
        "embeddings.position_ids": DROPPED["embeddings.position_ids"],
        "embeddings.token_type_ids": "type of each token, which is an input",
    },
    refusals=_refusals,
    position_rows=lambda config: config.max_position_embeddings + ROWS_BEFORE,
    rows_before=lambda _: ROWS_BEFORE,
    attention=_attention,
    source_config=_source_config,
    architectures={
        LongspanModel: "NystromformerModel",
        LongspanForMaskedLM: "NystromformerForMaskedLM",
        LongspanForSequenceClassification: "NystromformerForSequenceClassification",
        LongspanForTokenClassification: "NystromformerForTokenClassification",
        LongspanForQuestionAnswering: "NystromformerForQuestionAnswering",
        LongspanForMultipleChoice: "NystromformerForMultipleChoice",
    },
)
