"""BART (Lewis et al. 2020, https://arxiv.org/abs/1910.13461).

Both position tables begin with two rows that no token uses. Dropout of activations in the
feed-forward network and dropout of whole layers, which act in training only, have no counterpart.
"""

from typing import Any

from longspan.models.config import LongspanConfig
from longspan.models.conversion.families.bert import TASK_HEAD
from longspan.models.conversion.family import (
    DECODER,
    ENCODER,
    POSITIONS,
    WORDS,
    Decoder,
    Family,
    Head,
    Weight,
    parameters,
)
from longspan.models.heads.seq2seq import (
    LongspanEncoderDecoderModel,
    LongspanForConditionalGeneration,
)

OFFSET = 2  # rows of a position table before that of the first token
SAME_FIELDS = (
    *("vocab_size", "attention_dropout", "use_cache"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)
SIZES = {
    "num_hidden_layers": "layers",
    "num_attention_heads": "attention_heads",
    "intermediate_size": "ffn_dim",
}
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
DROPPED = {
    "shared.weight": "copy of the encoder's word embeddings",
    "classification_head.*": TASK_HEAD,
    "qa_outputs.*": TASK_HEAD,
}
DECODER_PARTS = Decoder(
    words="decoder.embed_tokens.weight",
    position_rows=lambda config: config.max_position_embeddings + OFFSET,
)


def bart_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a post-norm encoder-decoder with learned positions."""
    return {
        **{name: getattr(config, name) for name in SAME_FIELDS},
        **_sizes(config, "encoder"),
        "hidden_size": config.d_model,
        "hidden_act": config.activation_function,
        "hidden_dropout_prob": config.dropout,
        "initializer_range": config.init_std,
        "scale_embedding": getattr(config, "scale_embedding", False),  # LED has no such field
        "decoder_start_token_id": config.decoder_start_token_id,
        "norm": "post",
        "position": "learned",
        "is_encoder_decoder": True,
        "decoder_overrides": _sizes(config, "decoder"),
    }


def _sizes(config: Any, part: str) -> dict[str, int]:
    return {ours: getattr(config, f"{part}_{theirs}") for ours, theirs in SIZES.items()}


def source_sizes(config: LongspanConfig, part: str) -> dict[str, Any]:
    """Return the sizes of a part under the names of the source, from its configuration of ours."""
    return {f"{part}_{theirs}": getattr(config, ours) for ours, theirs in SIZES.items()}


def bart_weights(config: Any, encoder_attention: dict[str, str] = SELF_ATTENTION) -> list[Weight]:
    """Return the weights of both parts.

    Args:
        config: configuration of the source.
        encoder_attention: names of the modules of the encoder's attention, by ours.
    """
    # The encoder of an untied source has embeddings of its own.
    weights = [Weight(ENCODER + WORDS, ("encoder.embed_tokens.weight", "shared.weight"))]
    decoder = SELF_ATTENTION | CROSS_ATTENTION
    for part, layers, attention in (
        (ENCODER, config.encoder_layers, encoder_attention),
        (DECODER, config.decoder_layers, decoder),
    ):
        weights.append(Weight(part + POSITIONS, (f"{part}embed_positions.weight",)))
        weights += parameters(f"{part}embeddings.norm", f"{part}layernorm_embedding")
        for i in range(layers):
            for target, source in (attention | LAYER).items():
                weights += parameters(f"{part}layers.{i}.{target}", f"{part}layers.{i}.{source}")
    return weights


def bart_refusals(config: Any) -> list[str]:
    """Return the reasons why the source is no encoder-decoder."""
    flags = {"is_encoder_decoder": True, "is_decoder": False}
    given = {name: getattr(config, name, value) for name, value in flags.items()}
    return [f"{name}={value}" for name, value in given.items() if value != flags[name]]


def bart_head(config: Any) -> Head:
    """Return the output matrix and its bias."""
    weights = [Weight("lm_head.bias", ("final_logits_bias",))]
    return Head(LongspanForConditionalGeneration, weights, "lm_head.weight")


FAMILY = Family(
    model_types=("bart",),
    prefix="model.",
    fields=bart_fields,
    weights=bart_weights,
    heads={"final_logits_bias": bart_head},
    dropped=DROPPED,
    refusals=bart_refusals,
    position_rows=DECODER_PARTS.position_rows,
    rows_before=lambda _: OFFSET,
    base=LongspanEncoderDecoderModel,
    decoder=DECODER_PARTS,
)
