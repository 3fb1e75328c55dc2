"""BART and its relatives: encoder-decoders.

BART (Lewis et al. 2020, https://arxiv.org/abs/1910.13461). Both position tables begin with two rows
that no token uses. Dropout of activations in the feed-forward network and dropout of whole layers,
which act in training only, have no counterpart.

mBART (Liu et al. 2020, https://arxiv.org/abs/2001.08210). BART with normalization before each
block. The decoder begins with the language of the text.

Pegasus (Zhang et al. 2020, https://arxiv.org/abs/1912.08777). BART with normalization before each
block and sinusoidal positions. Their tables, which some checkpoints do not contain, become learned
positions of ours, and are extended by the formula.

LED in transformers (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150, section 7). BART with
Longformer's attention in the encoder. Each part has a position table of its own length, without the
two rows that BART has before that of the first token.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import TASK_HEAD
from longspan.models.conversion.families.longformer import (
    longformer_attention,
    longformer_windows,
    window_refusals,
)
from longspan.models.conversion.family import (
    DECODER,
    ENCODER,
    POSITIONS,
    WORDS,
    Family,
    Head,
    Weight,
    layer_weights,
    parameters,
    same,
    unlike,
)
from longspan.models.conversion.heads import classes
from longspan.models.conversion.positions import sinusoidal_rows
from longspan.models.heads.seq2seq import (
    LongspanEncoderDecoderModel,
    LongspanForConditionalGeneration,
)
from longspan.models.parts import decoder_config

_BART_OFFSET = 2  # rows of a position table before that of the first token
ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_BART_SELF_ATTENTION = {f"attention.{ours}": f"self_attn.{x}" for ours, x in ATTENTION.items()}
_BART_LAYER = {
    "attention_norm": "self_attn_layer_norm",
    "feed_forward.input": "fc1",
    "feed_forward.output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
_BART_CROSS_ATTENTION = {
    **{f"cross_attention.{ours}": f"encoder_attn.{x}" for ours, x in ATTENTION.items()},
    "cross_attention_norm": "encoder_attn_layer_norm",
}


def sizes(part: str) -> dict[str, str]:
    """Return the fields of the sizes of a part, by ours."""
    return {
        "num_hidden_layers": f"{part}_layers",
        "num_attention_heads": f"{part}_attention_heads",
        "intermediate_size": f"{part}_ffn_dim",
    }


def _bart_derived(config: Any) -> dict[str, Any]:
    decoder = {ours: getattr(config, theirs) for ours, theirs in sizes("decoder").items()}
    # LED has no field of the scale.
    scale = getattr(config, "scale_embedding", False)
    return {"scale_embedding": scale, "decoder_overrides": decoder}


def _bart_weights(
    config: Any, encoder_attention: Mapping[str, str] = _BART_SELF_ATTENTION
) -> list[Weight]:
    """Return the weights of both parts.

    Args:
        config: configuration of the source.
        encoder_attention: names of the modules of the encoder's attention, by ours.
    """
    # The encoder of an untied source has embeddings of its own.
    weights = [Weight(ENCODER + WORDS, ("encoder.embed_tokens.weight", "shared.weight"))]
    for part, layers, attention in (
        (ENCODER, config.encoder_layers, encoder_attention),
        (DECODER, config.decoder_layers, {**_BART_SELF_ATTENTION, **_BART_CROSS_ATTENTION}),
    ):
        weights.append(Weight(part + POSITIONS, (f"{part}embed_positions.weight",)))
        weights += parameters(f"{part}embeddings.norm", f"{part}layernorm_embedding")
        layer = f"{part}layers.{{}}"
        weights += layer_weights({**attention, **_BART_LAYER}, layer, layers, target=layer)
    return weights


def _bart_refusals(config: Any) -> list[str]:
    """Return the reasons why the source is no encoder-decoder."""
    return unlike(config, is_encoder_decoder=True, is_decoder=False)


def _bart_head(_: Any) -> Head:
    """Return the output matrix and its bias."""
    weights = [Weight("lm_head.bias", ("final_logits_bias",))]
    return Head(LongspanForConditionalGeneration, weights, "lm_head.weight")


BART = Family(
    model_types=("bart",),
    prefix="model.",
    fields={
        **same("vocab_size", "attention_dropout", "use_cache", "decoder_start_token_id"),
        **same("pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings"),
        **sizes("encoder"),
        "hidden_size": "d_model",
        "hidden_act": "activation_function",
        "hidden_dropout_prob": "dropout",
        "initializer_range": "init_std",
    },
    constants={"norm": "post", "position": "learned", "is_encoder_decoder": True},
    derived=_bart_derived,
    weights=_bart_weights,
    heads={"final_logits_bias": _bart_head},
    dropped={
        "shared.weight": "copy of the encoder's word embeddings",
        "classification_head.*": TASK_HEAD,
        "qa_outputs.*": TASK_HEAD,
    },
    refusals=_bart_refusals,
    position_rows=lambda config: config.max_position_embeddings + _BART_OFFSET,
    rows_before=lambda _: _BART_OFFSET,
    base=LongspanEncoderDecoderModel,
    decoder_words="decoder.embed_tokens.weight",
    decoder_rows=lambda config: config.max_position_embeddings + _BART_OFFSET,
)


def _mbart_weights(config: Any) -> list[Weight]:
    """Return the weights of both parts, each with a norm of its output."""
    last = [
        x for part in (ENCODER, DECODER) for x in parameters(f"{part}norm", f"{part}layer_norm")
    ]
    return _bart_weights(config) + last


_MBART = dataclasses.replace(
    BART,
    model_types=("mbart",),
    constants={
        **BART.constants,
        **{"norm": "pre", "embedding_norm": True, "first_attention_norm": True},
        "decoder_start": "last",
    },
    weights=_mbart_weights,
)


def _pegasus_computed(config: Any) -> dict[str, Tensor]:
    table = sinusoidal_rows(config.max_position_embeddings, config.d_model)
    return {f"{part}embed_positions.weight": table for part in (ENCODER, DECODER)}


def _pegasus_derived(config: Any) -> dict[str, Any]:
    return {**_bart_derived(config), "bos_token_id": getattr(config, "bos_token_id", None)}


_PEGASUS = dataclasses.replace(
    BART,
    model_types=("pegasus",),
    # Its configuration need not have this field.
    fields={ours: theirs for ours, theirs in BART.fields.items() if ours != "bos_token_id"},
    constants={**BART.constants, "norm": "pre"},
    derived=_pegasus_derived,
    weights=_mbart_weights,
    positions="sinusoidal",
    position_rows=lambda config: config.max_position_embeddings,
    rows_before=lambda _: 0,
    computed=_pegasus_computed,
    decoder_rows=lambda config: config.max_position_embeddings,
)


LED_PARTS, LED_SOURCE = ("query", "key", "value"), "self_attn.longformer_self_attn"
_LED_ATTENTION = {
    **{f"attention.{x}": f"{LED_SOURCE}.{x}" for x in LED_PARTS},
    **{f"attention.mechanism.projections.{x}": f"{LED_SOURCE}.{x}_global" for x in LED_PARTS},
    "attention.output": "self_attn.output",
}


def _led_source_fields(config: LongspanConfig) -> dict[str, Any]:
    if config.first_decoder_token is None:
        raise OptionError("decoder_start_token_id must be a number, got None")
    decoder = decoder_config(config)
    return {
        **{theirs: getattr(decoder, ours) for ours, theirs in sizes("decoder").items()},
        "decoder_start_token_id": config.first_decoder_token,
        "attention_window": longformer_windows(config),
        "max_encoder_position_embeddings": config.max_position_embeddings,
        "max_decoder_position_embeddings": decoder.max_position_embeddings,
    }


LED = dataclasses.replace(
    BART,
    model_types=("led",),
    prefix="led.",
    weights=partial(_bart_weights, encoder_attention=_LED_ATTENTION),
    refusals=lambda config: _bart_refusals(config) + window_refusals(config),
    position_rows=lambda config: config.max_encoder_position_embeddings,
    rows_before=lambda _: 0,
    attention=longformer_attention,
    architectures=classes("LED", LongspanForConditionalGeneration, base=BART.base),
    source_fields=_led_source_fields,
    decoder_rows=lambda config: config.max_decoder_position_embeddings,
)


FAMILIES = (BART, _MBART, _PEGASUS, LED)
