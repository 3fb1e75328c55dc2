"""Nystromformer in transformers (Xiong et al. 2021, https://arxiv.org/abs/2102.03902).

Its landmarks and convolution read padding, and it takes inputs of `segment_means_seq_len` tokens
alone, unless it has as many landmarks: then it attends to all tokens, at any length.
"""

from functools import partial
from typing import Any

from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import (
    BERT_HEAD,
    COMPUTED,
    FIELDS,
    POST_NORM,
    encoder_weights,
)
from longspan.models.conversion.family import (
    Family,
    LayerAttention,
    Weight,
    layer_weights,
    options_of_all,
    type_refusals,
    unlike,
)
from longspan.models.conversion.heads import (
    choice_head,
    classes,
    question_head,
    sequence_head,
    token_head,
)

MECHANISM = "nystrom"
_ROWS_BEFORE = 2  # positions begin at 2, whatever the padding is
_CONVOLUTION = {"attention.mechanism.conv": "attention.self.conv"}


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
    layers, source = config.num_hidden_layers, "encoder.layer.{}"
    return encoder_weights(config) + layer_weights(_CONVOLUTION, source, layers, "weight")


def _refusals(config: Any) -> list[str]:
    reasons = unlike(config, add_cross_attention=False)
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
    return reasons + type_refusals(config)


def _source_fields(config: LongspanConfig) -> dict[str, Any]:
    options, length = options_of_all(config, MECHANISM), config.max_position_embeddings
    number = options["landmarks"]
    landmarks = {} if number is None else {"num_landmarks": number, "segment_means_seq_len": length}
    sizes = {"conv_kernel_size": options["conv_kernel_size"], "max_position_embeddings": length}
    return landmarks | sizes


FAMILIES = (
    Family(
        model_types=("nystromformer",),
        prefix="nystromformer.",
        fields=FIELDS,
        constants=POST_NORM,
        weights=_weights,
        heads={
            "cls.predictions.": BERT_HEAD,
            "qa_outputs.": question_head,
            "pre_classifier.": partial(choice_head, pooler="pre_classifier", activation="relu"),
            "classifier.dense.": sequence_head,
            "classifier.": token_head,
        },
        dropped={**COMPUTED, "embeddings.token_type_ids": "type of each token, which is an input"},
        refusals=_refusals,
        position_rows=lambda config: config.max_position_embeddings + _ROWS_BEFORE,
        rows_before=lambda _: _ROWS_BEFORE,
        attention=_attention,
        architectures=classes("Nystromformer"),
        source_fields=_source_fields,
    ),
)
