"""BART (Lewis et al. 2020, https://arxiv.org/abs/1910.13461).

Both position tables begin with two rows that no token uses. Dropout of activations in the
feed-forward network and dropout of whole layers, which act in training only, have no counterpart.
"""

from collections.abc import Mapping
from typing import Any

from longspan.models.conversion.families.bert import TASK_HEAD
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
from longspan.models.heads.seq2seq import (
    LongspanEncoderDecoderModel,
    LongspanForConditionalGeneration,
)

OFFSET = 2  # rows of a position table before that of the first token
ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
SELF_ATTENTION = {f"attention.{ours}": f"self_attn.{x}" for ours, x in ATTENTION.items()}
LAYER = {
    "attention_norm": "self_attn_layer_norm",
    "feed_forward.input": "fc1",
    "feed_forward.output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
CROSS_ATTENTION = {
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


def _derived(config: Any) -> dict[str, Any]:
    decoder = {ours: getattr(config, theirs) for ours, theirs in sizes("decoder").items()}
    # LED has no field of the scale.
    scale = getattr(config, "scale_embedding", False)
    return {"scale_embedding": scale, "decoder_overrides": decoder}


def bart_weights(
    config: Any, encoder_attention: Mapping[str, str] = SELF_ATTENTION
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
        (DECODER, config.decoder_layers, {**SELF_ATTENTION, **CROSS_ATTENTION}),
    ):
        weights.append(Weight(part + POSITIONS, (f"{part}embed_positions.weight",)))
        weights += parameters(f"{part}embeddings.norm", f"{part}layernorm_embedding")
        layer = f"{part}layers.{{}}"
        weights += layer_weights({**attention, **LAYER}, layer, layers, target=layer)
    return weights


def bart_refusals(config: Any) -> list[str]:
    """Return the reasons why the source is no encoder-decoder."""
    return unlike(config, is_encoder_decoder=True, is_decoder=False)


def _head(_: Any) -> Head:
    """Return the output matrix and its bias."""
    weights = [Weight("lm_head.bias", ("final_logits_bias",))]
    return Head(LongspanForConditionalGeneration, weights, "lm_head.weight")


FAMILY = Family(
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
    derived=_derived,
    weights=bart_weights,
    heads={"final_logits_bias": _head},
    dropped={
        "shared.weight": "copy of the encoder's word embeddings",
        "classification_head.*": TASK_HEAD,
        "qa_outputs.*": TASK_HEAD,
    },
    refusals=bart_refusals,
    position_rows=lambda config: config.max_position_embeddings + OFFSET,
    rows_before=lambda _: OFFSET,
    base=LongspanEncoderDecoderModel,
    decoder_words="decoder.embed_tokens.weight",
    decoder_rows=lambda config: config.max_position_embeddings + OFFSET,
)
