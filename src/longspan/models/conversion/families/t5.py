"""Encoders of T5 (Raffel et al. 2020, https://arxiv.org/abs/1910.10683).

T5 does not divide its scores by sqrt(D), so that the queries of a converted model are longer by
this factor: exact for D = 64, that of most published checkpoints. Its encoder has no maximum
length; that of the converted model is `n_positions` in config.json. Its decoder, whose logits have
a factor of their own, has no counterpart.
"""

import math
from typing import Any

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.family import (
    WORDS,
    Family,
    Weight,
    layer_weights,
    parameters,
    same,
)
from longspan.models.conversion.heads import token_head
from longspan.models.heads.token_classification import LongspanForTokenClassification
from longspan.models.model import LongspanModel

LENGTH = 512  # tokens of a source that names no number
PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}
PLAIN = {"feed_forward.input": "wi", "feed_forward.output": "wo"}
GATED = {"feed_forward.input": "wi_0", "feed_forward.gate": "wi_1", "feed_forward.output": "wo"}
GELU = ("gated-gelu", "gelu_new")  # name of a feed-forward network, and its activation


def t5_weights(config: Any, attention: str = "SelfAttention") -> list[Weight]:
    """Return the weights of an encoder.

    Args:
        config: configuration of the source.
        attention: name of the attention of a layer.
    """
    table = f"block.0.layer.0.{attention}.relative_attention_bias.weight"
    feed_forward = GATED if config.is_gated_act else PLAIN
    layer = {
        **{f"attention.{ours}": f"0.{attention}.{x}" for ours, x in PROJECTIONS.items()},
        **{ours: f"1.DenseReluDense.{x}" for ours, x in feed_forward.items()},
        **{"attention_norm": "0.layer_norm", "feed_forward_norm": "1.layer_norm"},
    }
    weights = layer_weights(layer, "encoder.block.{}.layer", config.num_layers, "weight")
    longer = math.sqrt(config.d_kv)
    return [
        Weight(WORDS, ("shared.weight", "encoder.embed_tokens.weight")),
        Weight("relative.relative_attention_bias.weight", (f"encoder.{table}",)),
        *parameters("norm", "encoder.final_layer_norm", "weight"),
        *(x._replace(factor=longer) if "query" in x.target else x for x in weights),
    ]


def _derived(config: Any) -> dict[str, Any]:
    return {
        "hidden_act": config.dense_act_fn,
        "attention_dropout": config.dropout_rate,
        "feed_forward": "gated" if config.is_gated_act else "plain",
    }


def t5_source_fields(config: LongspanConfig) -> dict[str, Any]:
    """Return the computed fields of the source for a configuration of ours.

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
        "d_kv": config.head_dim,
        "feed_forward_proj": feed_forward,
        "is_encoder_decoder": False,
        "n_positions": config.max_position_embeddings,
    }


FAMILY = Family(
    model_types=("t5",),
    prefix="transformer.",
    fields={
        **same("vocab_size", "pad_token_id", "eos_token_id"),
        **same("relative_attention_num_buckets", "relative_attention_max_distance"),
        "hidden_size": "d_model",
        "attention_head_size": "d_kv",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "hidden_dropout_prob": "dropout_rate",
        "layer_norm_eps": "layer_norm_epsilon",
    },
    constants={
        **{"linear_bias": False, "norm": "pre", "norm_type": "rms_norm"},
        **{"pooling": "mean", "position": "t5"},
    },
    derived=_derived,
    weights=t5_weights,
    heads={"classifier.": token_head},
    dropped={"encoder.embed_tokens.weight": "copy of the word embeddings"},
    positions="relative",
    position_rows=lambda config: getattr(config, "n_positions", LENGTH),
    architectures={
        LongspanModel: "T5EncoderModel",
        LongspanForTokenClassification: "T5ForTokenClassification",
    },
    source_fields=t5_source_fields,
)
