"""ModernBERT (Warner et al. 2024, https://arxiv.org/abs/2412.13663).

Every third layer attends to all tokens, and takes the chosen mechanism; the others keep their
window and the base of their rotations.
"""

from typing import Any

from longspan.models.conversion.families.bert import TASK_HEAD
from longspan.models.conversion.family import (
    WORDS,
    Family,
    Head,
    LayerAttention,
    Weight,
    layer_weights,
    parameters,
    same,
)
from longspan.models.conversion.heads import activation_refusal
from longspan.models.heads.masked_lm import LongspanForMaskedLM

LAYER: dict[str, str | tuple[str, tuple[int, int]]] = {
    "attention.query": ("attn.Wqkv", (0, 3)),
    "attention.key": ("attn.Wqkv", (1, 3)),
    "attention.value": ("attn.Wqkv", (2, 3)),
    "attention.output": "attn.Wo",
    "feed_forward.input": ("mlp.Wi", (0, 2)),
    "feed_forward.gate": ("mlp.Wi", (1, 2)),
    "feed_forward.output": "mlp.Wo",
}
NORMS = {"attention_norm": "attn_norm", "feed_forward_norm": "mlp_norm"}


def _derived(config: Any) -> dict[str, Any]:
    return {
        "pooling": "first" if config.classifier_pooling == "cls" else "mean",
        "rotary_base": [config.rope_parameters[x]["rope_theta"] for x in config.layer_types],
    }


def _names(has_bias: bool) -> tuple[str, ...]:
    return ("weight", "bias") if has_bias else ("weight",)


def _weights(config: Any) -> list[Weight]:
    linear, norm = _names(config.attention_bias), _names(config.norm_bias)
    norms = layer_weights(NORMS, "layers.{}", config.num_hidden_layers, *norm)
    return [
        Weight(WORDS, ("embeddings.tok_embeddings.weight",)),
        *parameters("embeddings.norm", "embeddings.norm", *norm),
        *parameters("norm", "final_norm", *norm),
        *layer_weights(LAYER, "layers.{}", config.num_hidden_layers, *linear),
        # The normalized embeddings enter the first attention as they are.
        *(x for x in norms if not x.target.startswith("layers.0.attention_norm.")),
    ]


def _refusals(config: Any) -> list[str]:
    reasons = []
    if config.attention_bias != config.mlp_bias:
        reasons.append(f"attention_bias={config.attention_bias}, mlp_bias={config.mlp_bias}")
    for name, options in config.rope_parameters.items():
        if name in config.layer_types and options["rope_type"] != "default":
            reasons.append(f"{name} has rope_type={options['rope_type']!r}")
    return reasons


def _head(config: Any) -> Head | str:
    if config.classifier_activation != config.hidden_activation:
        return activation_refusal(config.classifier_activation, config.hidden_activation)
    if config.classifier_bias != config.attention_bias or not config.decoder_bias:
        return "its biases are not those of the layers"
    weights = [
        *parameters("transform.dense", "head.dense", *_names(config.classifier_bias)),
        *parameters("transform.norm", "head.norm", *_names(config.norm_bias)),
        *parameters("lm_head", "decoder", "bias"),
    ]
    return Head(LongspanForMaskedLM, weights, "decoder.weight")


def _kept_attention(config: Any) -> dict[int, LayerAttention]:
    window: LayerAttention = ("local", {"window": config.sliding_window})
    return {i: window for i, kind in enumerate(config.layer_types) if kind == "sliding_attention"}


FAMILIES = (
    Family(
        model_types=("modernbert",),
        prefix="model.",
        fields={
            **same("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
            **same("intermediate_size", "norm_bias", "attention_dropout", "initializer_range"),
            **same("pad_token_id", "bos_token_id", "eos_token_id"),
            "hidden_act": "hidden_activation",
            "hidden_dropout_prob": "mlp_dropout",
            "layer_norm_eps": "norm_eps",
            "linear_bias": "attention_bias",
        },
        constants={
            **{"feed_forward": "gated", "norm": "pre", "embedding_norm": True},
            "position": "rotary",
        },
        derived=_derived,
        weights=_weights,
        heads={"decoder.": _head},
        dropped={"head.*": TASK_HEAD, "classifier.*": TASK_HEAD},
        refusals=_refusals,
        positions="rotary",
        kept_attention=_kept_attention,
    ),
)
