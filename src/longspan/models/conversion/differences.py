"""Differences of two configurations that change the outputs of a model."""

from collections.abc import Collection
from typing import Any

from longspan.attention import MECHANISMS, options_of
from longspan.models.config import LongspanConfig
from longspan.models.parts import decoder_config

# Fields without an effect on the outputs of an encoder, in the sense of what is computed.
WITHOUT_EFFECT = {
    *("attention_backend", "max_global_tokens", "freeze", "frozen_positions", "use_cache"),
    *("pair_head", "shared_towers", "similarity", "similarity_scale", "symmetric_loss"),
    "tie_word_embeddings",
    "adaptive_factor",  # of adaptive_cutoffs, which no class has
    "decoder_overrides",  # compared as the configuration of the decoder
}
# Fields that some heads read; a head states its own.
OF_HEADS = {
    *("pooling", "classifier_hidden_size", "classifier_activation", "default_global_tokens"),
    *("prediction_head", "classifier_bias"),
}
OF_ATTENTION = {"attention", "attention_options"}


def list_differences(
    ours: LongspanConfig, theirs: LongspanConfig, head_fields: Collection[str]
) -> list[str]:
    """Return the differences of a model from the one that a class of transformers has.

    Args:
        ours: configuration of the model.
        theirs: configuration of the same model, converted from the class.
        head_fields: fields that its head reads.
    """
    skipped = WITHOUT_EFFECT | OF_ATTENTION | (OF_HEADS - set(head_fields))
    names = [name for name in LongspanConfig.__annotations__ if name not in skipped]
    pairs = {name: (_resolve(ours, name), _resolve(theirs, name)) for name in names}
    reasons = [f"{name} must be {y!r}, got {x!r}" for name, (x, y) in pairs.items() if x != y]
    reasons += _attention_differences(ours, theirs)
    if not (ours.is_encoder_decoder and theirs.is_encoder_decoder):
        return reasons
    of_decoder = list_differences(decoder_config(ours), decoder_config(theirs), head_fields)
    shared = {name for name, (x, y) in pairs.items() if x != y}
    return reasons + [f"decoder: {x}" for x in of_decoder if x.split()[0] not in shared]


def _resolve(config: LongspanConfig, name: str) -> Any:
    """Return the value of a field with its defaults resolved."""
    resolved = {
        "position": config.position_encoding,
        "attention_head_size": config.head_dim,
        "decoder_start_token_id": config.first_decoder_token,
        "qkv_bias": config.has_qkv_bias,
        "attention_output_bias": config.has_attention_output_bias,
        "embedding_size": config.embedding_size or config.hidden_size,
        "rotary_base": config.rotary_bases if config.position_encoding == "rotary" else None,
    }
    return resolved.get(name, getattr(config, name))


def _attention_differences(ours: LongspanConfig, theirs: LongspanConfig) -> list[str]:
    """Return the differences of the mechanisms and of their options, each once."""
    reasons = []
    for layer, (name, other) in enumerate(
        zip(ours.attention_names, theirs.attention_names, strict=True)
    ):
        if name != other:
            reasons.append(f"attention of layer {layer} must be {other!r}, got {name!r}")
            continue
        expected, given = _layer_options(theirs, layer), _layer_options(ours, layer)
        reasons += [
            f"option {key} of {name!r} must be {value!r}, got {given[key]!r}"
            for key, value in expected.items()
            if given[key] != value
        ]
    return list(dict.fromkeys(reasons))


def _layer_options(config: LongspanConfig, layer: int) -> dict[str, Any]:
    """Return all options of a layer; that of its size may be a list of layers."""
    cls = MECHANISMS[config.attention_names[layer]]
    options = options_of(cls.name) | config.layer_options(layer)
    size = cls.size_option
    if size and "layer" in cls.traits.sizes and isinstance(options[size], list):
        options[size] = options[size][layer]
    return options
