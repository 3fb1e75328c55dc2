"""Encoders of T5 (Raffel et al. 2020, https://arxiv.org/abs/1910.10683).

T5 does not divide its scores by sqrt(D), so that the queries of a converted model are longer by
this factor: exact for D = 64, that of most published checkpoints. Its encoder has no maximum
length; that of the converted model is `n_positions` in config.json. Its decoder, whose logits have
a factor of their own, has no counterpart.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from transformers import T5Config

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.family import WORDS, Family, Weight, parameters
from longspan.models.conversion.heads import token_head
from longspan.models.heads.token_classification import LongspanForTokenClassification
from longspan.models.model import LongspanModel

LENGTH = 512  # tokens of a source that names no number
# Fields of ours by those of the source.
RENAMED_FIELDS = {
    "vocab_size": "vocab_size",
    "d_model": "hidden_size",
    "d_kv": "attention_head_size",
    "d_ff": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "dropout_rate": "hidden_dropout_prob",
    "layer_norm_epsilon": "layer_norm_eps",
    "relative_attention_num_buckets": "relative_attention_num_buckets",
    "relative_attention_max_distance": "relative_attention_max_distance",
    "pad_token_id": "pad_token_id",
    "eos_token_id": "eos_token_id",
}
PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}
PLAIN = {"feed_forward.input": "wi", "feed_forward.output": "wo"}
GATED = {"feed_forward.input": "wi_0", "feed_forward.gate": "wi_1", "feed_forward.output": "wo"}
GELU = ("gated-gelu", "gelu_new")  # name of a feed-forward network, and its activation
ATTENTION = "SelfAttention"


def t5_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a pre-norm encoder with relative positions."""
    return {
        **{ours: getattr(config, theirs) for theirs, ours in RENAMED_FIELDS.items()},
        "hidden_act": config.dense_act_fn,
        "attention_dropout": config.dropout_rate,
        "feed_forward": "gated" if config.is_gated_act else "plain",
        "linear_bias": False,
        "norm": "pre",
        "norm_type": "rms_norm",
        "pooling": "mean",
        "position": "t5",
    }


def t5_weights(config: Any, attention: str = ATTENTION) -> list[Weight]:
    """Return the weights of an encoder.

    Args:
        config: configuration of the source.
        attention: name of the attention of a layer.
    """
    table = f"block.0.layer.0.{attention}.relative_attention_bias.weight"
    weights = [
        Weight(WORDS, ("shared.weight", "encoder.embed_tokens.weight")),
        Weight("relative.relative_attention_bias.weight", (f"encoder.{table}",)),
        *parameters("norm", "encoder.final_layer_norm", "weight"),
    ]
    for i in range(config.num_layers):
        layer, block = f"layers.{i}", f"encoder.block.{i}.layer"
        for target, source in PROJECTIONS.items():
            own = Weight(
                f"{layer}.attention.{target}.weight", (f"{block}.0.{attention}.{source}.weight",)
            )
            weights.append(
                own._replace(factor=math.sqrt(config.d_kv)) if target == "query" else own
            )
        for target, source in (GATED if config.is_gated_act else PLAIN).items():
            weights += parameters(
                f"{layer}.{target}", f"{block}.1.DenseReluDense.{source}", "weight"
            )
        weights += parameters(f"{layer}.attention_norm", f"{block}.0.layer_norm", "weight")
        weights += parameters(f"{layer}.feed_forward_norm", f"{block}.1.layer_norm", "weight")
    return weights


def t5_source_fields(config: LongspanConfig) -> dict[str, Any]:
    """Return the fields of the source for a configuration of ours.

    Raises:
        OptionError: the source has no such positions.
    """
    if config.position != "t5" or config.is_decoder:
        raise OptionError(
            f"position must be 't5' in an encoder, got {config.position!r} with "
            f"is_decoder={config.is_decoder}"
        )
    gated, kind = config.feed_forward == "gated", config.hidden_act
    feed_forward = GELU[0] if (gated and kind == GELU[1]) else f"gated-{kind}" if gated else kind
    return {
        **{theirs: getattr(config, ours) for theirs, ours in RENAMED_FIELDS.items()},
        "d_kv": config.head_dim,
        "feed_forward_proj": feed_forward,
        "is_encoder_decoder": False,
        "n_positions": config.max_position_embeddings,
    }


def t5_length(config: Any) -> int:
    """Return the number of tokens that the configuration names."""
    return getattr(config, "n_positions", LENGTH)


def _source_config(config: LongspanConfig) -> T5Config:
    return T5Config(**t5_source_fields(config))


DROPPED: Mapping[str, str] = MappingProxyType(
    {"encoder.embed_tokens.weight": "copy of the word embeddings"}
)
FAMILY = Family(
    model_types=("t5",),
    prefix="transformer.",
    fields=t5_fields,
    weights=t5_weights,
    heads={"classifier.": token_head},
    dropped=DROPPED,
    positions="relative",
    position_rows=t5_length,
    source_config=_source_config,
    architectures={
        LongspanModel: "T5EncoderModel",
        LongspanForTokenClassification: "T5ForTokenClassification",
    },
)
