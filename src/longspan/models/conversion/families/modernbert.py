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
    Weight,
    activation_refusal,
    parameters,
)
from longspan.models.heads.masked_lm import LongspanForMaskedLM

SAME_FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("norm_bias", "attention_dropout", "initializer_range"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)
LOCAL = "sliding_attention"  # type of the layers with a window
WINDOW = "local"  # mechanism of these layers
# Name in the source, and index in a matrix that holds several.
LAYER = {
    "attention.query": ("attn.Wqkv", (0, 3)),
    "attention.key": ("attn.Wqkv", (1, 3)),
    "attention.value": ("attn.Wqkv", (2, 3)),
    "attention.output": ("attn.Wo", (0, 1)),
    "feed_forward.input": ("mlp.Wi", (0, 2)),
    "feed_forward.gate": ("mlp.Wi", (1, 2)),
    "feed_forward.output": ("mlp.Wo", (0, 1)),
}


def _fields(config: Any) -> dict[str, Any]:
    return {
        **{name: getattr(config, name) for name in SAME_FIELDS},
        "hidden_act": config.hidden_activation,
        "hidden_dropout_prob": config.mlp_dropout,
        "layer_norm_eps": config.norm_eps,
        "linear_bias": config.attention_bias,
        "feed_forward": "gated",
        "norm": "pre",
        "embedding_norm": True,
        "pooling": "first" if config.classifier_pooling == "cls" else "mean",
        "position": "rotary",
        "rotary_base": [config.rope_parameters[x]["rope_theta"] for x in config.layer_types],
    }


def _weights(config: Any) -> list[Weight]:
    linear = ("weight", "bias") if config.attention_bias else ("weight",)
    norm = _norm_parameters(config)
    weights = [
        Weight(WORDS, ("embeddings.tok_embeddings.weight",)),
        *parameters("embeddings.norm", "embeddings.norm", *norm),
        *parameters("norm", "final_norm", *norm),
    ]
    for i in range(config.num_hidden_layers):
        for target, (source, part) in LAYER.items():
            made = parameters(f"layers.{i}.{target}", f"layers.{i}.{source}", *linear)
            weights += [weight._replace(part=part) for weight in made]
        # The normalized embeddings enter the first attention as they are.
        if i:
            weights += parameters(f"layers.{i}.attention_norm", f"layers.{i}.attn_norm", *norm)
        weights += parameters(f"layers.{i}.feed_forward_norm", f"layers.{i}.mlp_norm", *norm)
    return weights


def _refusals(config: Any) -> list[str]:
    reasons = []
    if config.attention_bias != config.mlp_bias:
        reasons.append(f"attention_bias={config.attention_bias}, mlp_bias={config.mlp_bias}")
    for name, options in config.rope_parameters.items():
        if name in config.layer_types and options["rope_type"] != "default":
            reasons.append(f"{name} has rope_type={options['rope_type']!r}")
    return reasons


def _head(config: Any) -> Head | str:
    if reason := activation_refusal(config.classifier_activation, config.hidden_activation):
        return reason
    if config.classifier_bias != config.attention_bias or not config.decoder_bias:
        return "its biases are not those of the layers"
    linear = ("weight", "bias") if config.classifier_bias else ("weight",)
    weights = [
        *parameters("transform.dense", "head.dense", *linear),
        *parameters("transform.norm", "head.norm", *_norm_parameters(config)),
        *parameters("lm_head", "decoder", "bias"),
    ]
    return Head(LongspanForMaskedLM, weights, "decoder.weight")


def _norm_parameters(config: Any) -> tuple[str, ...]:
    return ("weight", "bias") if config.norm_bias else ("weight",)


def _kept_attention(config: Any) -> dict[int, tuple[str, dict[str, Any]]]:
    window = (WINDOW, {"window": config.sliding_window})
    return {i: window for i, kind in enumerate(config.layer_types) if kind == LOCAL}


FAMILY = Family(
    model_types=("modernbert",),
    prefix="model.",
    fields=_fields,
    weights=_weights,
    heads={"decoder.": _head},
    dropped={"head.*": TASK_HEAD, "classifier.*": TASK_HEAD},
    refusals=_refusals,
    positions="rotary",
    kept_attention=_kept_attention,
)
