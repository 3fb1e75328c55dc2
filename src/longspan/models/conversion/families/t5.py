"""T5 and its relatives: encoders with relative positions.

Encoders of T5 (Raffel et al. 2020, https://arxiv.org/abs/1910.10683). T5 does not divide its scores
by sqrt(D), so that the queries of a converted model are longer by this factor: exact for D = 64,
that of most published checkpoints. Its encoder has no maximum length; that of the converted model
is `n_positions` in config.json. Its decoder, whose logits have a factor of their own, has no
counterpart.

Encoders of mT5 (Xue et al. 2021, https://arxiv.org/abs/2010.11934): T5 in many languages.

Encoders of LongT5 with local attention (Guo et al. 2022, https://arxiv.org/abs/2112.07916). T5 with
windows in the encoder. Its transient global attention, whose global tokens are means of blocks, is
that of no mechanism.
"""

import dataclasses
import math
from functools import partial
from typing import Any

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.family import (
    WORDS,
    Family,
    Weight,
    layer_weights,
    options_of_all,
    parameters,
    same,
)
from longspan.models.conversion.heads import token_head
from longspan.models.heads.token_classification import LongspanForTokenClassification
from longspan.models.model import LongspanModel

_T5_LENGTH = 512  # tokens of a source that names no number
_T5_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}
_T5_PLAIN = {"feed_forward.input": "wi", "feed_forward.output": "wo"}
_T5_GATED = {"feed_forward.input": "wi_0", "feed_forward.gate": "wi_1", "feed_forward.output": "wo"}
_T5_GELU = ("gated-gelu", "gelu_new")  # name of a feed-forward network, and its activation


def _t5_weights(config: Any, attention: str = "SelfAttention") -> list[Weight]:
    """Return the weights of an encoder.

    Args:
        config: configuration of the source.
        attention: name of the attention of a layer.
    """
    table = f"block.0.layer.0.{attention}.relative_attention_bias.weight"
    feed_forward = _T5_GATED if config.is_gated_act else _T5_PLAIN
    layer = {
        **{f"attention.{ours}": f"0.{attention}.{x}" for ours, x in _T5_PROJECTIONS.items()},
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


def _t5_derived(config: Any) -> dict[str, Any]:
    return {
        "hidden_act": config.dense_act_fn,
        "attention_dropout": config.dropout_rate,
        "feed_forward": "gated" if config.is_gated_act else "plain",
    }


def _t5_source_fields(config: LongspanConfig) -> dict[str, Any]:
    """Return the computed fields of the source for a configuration of ours.

    Raises:
        OptionError: the source has no such positions.
    """
    if config.position != "t5" or config.is_decoder:
        raise OptionError(
            f"position must be 't5' in an encoder, got {config.position!r} with "
            f"is_decoder={config.is_decoder}"
        )
    kind = config.hidden_act
    if config.feed_forward == "gated":
        kind = _T5_GELU[0] if kind == _T5_GELU[1] else f"gated-{kind}"
    return {
        "d_kv": config.head_dim,
        "feed_forward_proj": kind,
        "is_encoder_decoder": False,
        "n_positions": config.max_position_embeddings,
    }


T5 = Family(
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
    derived=_t5_derived,
    weights=_t5_weights,
    heads={"classifier.": token_head},
    dropped={"encoder.embed_tokens.weight": "copy of the word embeddings"},
    positions="relative",
    position_rows=lambda config: getattr(config, "n_positions", _T5_LENGTH),
    architectures={
        LongspanModel: "T5EncoderModel",
        LongspanForTokenClassification: "T5ForTokenClassification",
    },
    source_fields=_t5_source_fields,
)


_MT5 = dataclasses.replace(T5, model_types=("mt5",), architectures={})


_LONGT5_LOCAL = "local"  # mechanism, and kind of attention of the source


def _longt5_refusals(config: Any) -> list[str]:
    kind = config.encoder_attention_type
    if kind == _LONGT5_LOCAL:
        return []
    return [f"encoder_attention_type={kind!r}, whose global tokens are means of blocks"]


def _longt5_source_fields(config: LongspanConfig) -> dict[str, Any]:
    radius = options_of_all(config, _LONGT5_LOCAL)["window"]
    return {**_t5_source_fields(config), "local_radius": radius}


_LONGT5 = dataclasses.replace(
    T5,
    model_types=("longt5",),
    weights=partial(_t5_weights, attention="LocalSelfAttention"),
    heads={},
    refusals=_longt5_refusals,
    attention=lambda config: [(_LONGT5_LOCAL, {"window": config.local_radius})] * config.num_layers,
    architectures={LongspanModel: "LongT5EncoderModel"},
    source_fields=_longt5_source_fields,
)


FAMILIES = (T5, _MT5, _LONGT5)
