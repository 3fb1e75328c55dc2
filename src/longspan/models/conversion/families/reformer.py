"""Reformer in transformers (Kitaev et al. 2020, https://arxiv.org/abs/2001.04451).

Layers attend locally, in blocks on a circle, or by hashes. transformers draws the hashes in every
call, from `hash_seed` or, if it is None, anew; ours are then those of seed 0. Equal outputs require
a `hash_seed`, and `num_buckets`: without it transformers takes a number that depends on the first
input, ours is that of the longest one.
"""

import math
from functools import partial
from typing import Any

from longspan.attention import options_of
from longspan.errors import OptionError
from longspan.models.config import LongspanConfig
from longspan.models.conversion.family import (
    POSITIONS,
    WORDS,
    Family,
    Head,
    LayerAttention,
    Weight,
    parameters,
    same,
)
from longspan.models.conversion.heads import classes, question_head, sequence_head
from longspan.models.heads.causal_lm import LongspanForCausalLM
from longspan.models.heads.masked_lm import LongspanForMaskedLM
from longspan.models.heads.question_answering import LongspanForQuestionAnswering
from longspan.models.heads.sequence_classification import LongspanForSequenceClassification

MECHANISMS = {"lsh": "reformer", "local": "blockwise"}
LAYER = {
    "attention_norm": "attention.layer_norm",
    "feed_forward_norm": "feed_forward.layer_norm",
    "feed_forward.input": "feed_forward.dense.dense",
    "feed_forward.output": "feed_forward.output.dense",
}
PROJECTIONS = {
    "lsh": {"query": "query_key", "value": "value"},
    "local": {"query": "query", "key": "key", "value": "value"},
}
MASK = "constant of the mask"


def _derived(config: Any) -> dict[str, Any]:
    # One dropout is that of all layers.
    kind = "local" if "local" in config.attn_layers else "lsh"
    axial = config.axial_pos_embds
    return {
        "num_hidden_layers": len(config.attn_layers),
        "attention_dropout": getattr(config, f"{kind}_attention_probs_dropout_prob"),
        "position": "axial" if axial else "learned",
        "axial_shape": list(config.axial_pos_shape) if axial else None,
        "axial_widths": list(config.axial_pos_embds_dim) if axial else None,
    }


def _grid(config: Any) -> int:
    """Return the multiple to which transformers pads a row."""
    return math.lcm(*(getattr(config, f"{kind}_attn_chunk_length") for kind in config.attn_layers))


def _buckets(config: Any) -> list[int]:
    """Return the sizes of the hashes; None stands for the number that a row of full length has."""
    if isinstance(config.num_buckets, int):
        return [config.num_buckets]
    if config.num_buckets is not None:
        return list(config.num_buckets)
    chunk, grid = config.lsh_attn_chunk_length, _grid(config)
    length = -(-config.max_position_embeddings // grid) * grid
    power = max(1, (2 * (length // chunk)).bit_length() - 1)
    limit = 2 * max(math.isqrt(config.max_position_embeddings // chunk), chunk)
    return [1 << power] if 1 << power <= limit else [1 << power // 2, 1 << power - power // 2]


def _attention(config: Any) -> list[LayerAttention]:
    options: dict[str, dict[str, Any]] = {
        "lsh": {
            "chunk": config.lsh_attn_chunk_length,
            "hashes": config.num_hashes,
            "buckets": _buckets(config),
            "scale": "none",
            "seed": config.hash_seed or 0,
            "same_hashes": True,
        },
        "local": {
            "block": config.local_attn_chunk_length,
            "neighbors": [config.local_num_chunks_before, config.local_num_chunks_after],
        },
    }
    grid = {"grid": _grid(config)}
    return [(MECHANISMS[kind], options[kind] | grid) for kind in config.attn_layers]


def _weights(config: Any) -> list[Weight]:
    weights = [
        Weight(WORDS, ("embeddings.word_embeddings.weight",)),
        *_position_weights(config),
        *parameters("norm", "encoder.layer_norm"),
    ]
    for i, kind in enumerate(config.attn_layers):
        source, target = f"encoder.layers.{i}", f"layers.{i}"
        for name, other in LAYER.items():
            weights += parameters(f"{target}.{name}", f"{source}.{other}")
        for name, other in PROJECTIONS[kind].items():
            prefix = f"{source}.attention.self_attention.{other}"
            weights += parameters(f"{target}.attention.{name}", prefix, "weight")
        prefix = f"{source}.attention.output.dense"
        weights += parameters(f"{target}.attention.output", prefix, "weight")
    return weights


def _position_weights(config: Any) -> list[Weight]:
    source = "embeddings.position_embeddings"
    if not config.axial_pos_embds:
        return [Weight(POSITIONS, (f"{source}.embedding.weight",))]
    return [
        Weight(f"embeddings.axial.{name}.weight", (f"{source}.weights.{axis}",))
        for axis, name in enumerate(("rows", "columns"))
    ]


def _language_head(config: Any) -> Head:
    output = "lm_head.decoder.weight"
    # transformers 5.16 to 5.23 leave the bias out of the logits.
    weights = [Weight("lm_head.bias", ("lm_head.decoder.bias", "lm_head.bias"))]
    if config.is_decoder:
        return Head(LongspanForCausalLM, weights, output, {"lm_head_bias": True})
    fields = {"prediction_head": "linear", "lm_head_bias": True}
    return Head(LongspanForMaskedLM, weights, output, fields)


def _refusals(config: Any) -> list[str]:
    kinds, reasons = set(config.attn_layers), []
    if not kinds or not kinds <= MECHANISMS.keys():
        return [f"attn_layers must be lsh or local, got {list(config.attn_layers)}"]
    chunks = [f"{kind}_attn_chunk_length" for kind in sorted(kinds)]
    if wrong := [name for name in chunks if not getattr(config, name)]:
        return [f"{wrong[0]}={getattr(config, wrong[0])}"]
    near = (config.lsh_num_chunks_before, config.lsh_num_chunks_after)
    if "lsh" in kinds and near != (1, 0):
        reasons.append(f"chunks before and after that of lsh must be 1 and 0, got {near}")
    if config.is_decoder and "local" in kinds and config.local_num_chunks_after:
        after = config.local_num_chunks_after
        reasons.append(f"is_decoder=True with local_num_chunks_after={after}")
    return reasons


def _source_fields(config: LongspanConfig) -> dict[str, Any]:
    kinds = {name: kind for kind, name in MECHANISMS.items()}
    layers = config.attention_names
    if not set(layers) <= kinds.keys() or not config.num_hidden_layers:
        names = " and ".join(dict.fromkeys(layers))
        raise OptionError(f"every layer must be reformer or blockwise, got {names}")
    is_axial = config.position == "axial"
    fields: dict[str, Any] = {
        "attention_head_size": config.head_dim,
        "attn_layers": [kinds[name] for name in layers],
        "local_attention_probs_dropout_prob": config.attention_dropout,
        "lsh_attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.max_position_embeddings,
        "axial_pos_embds": is_axial,
    }
    for name in dict.fromkeys(layers):
        options = options_of(name) | config.layer_options(layers.index(name))
        fields |= _source_options(kinds[name], options)
    axial = {"axial_pos_shape": config.axial_shape, "axial_pos_embds_dim": config.axial_widths}
    return fields | axial if is_axial else fields


def _source_options(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the source for the options of a kind of layer."""
    if kind == "local":
        before, after = options["neighbors"] or (1, 0)
        return {
            "local_attn_chunk_length": options["block"],
            "local_num_chunks_before": before,
            "local_num_chunks_after": after,
        }
    buckets = options["buckets"]
    return {
        "lsh_attn_chunk_length": options["chunk"],
        "num_hashes": options["hashes"],
        "num_buckets": buckets[0] if isinstance(buckets, list) and len(buckets) == 1 else buckets,
        "hash_seed": options["seed"],
    }


FAMILIES = (
    Family(
        model_types=("reformer",),
        prefix="reformer.",
        fields={
            **same("vocab_size", "hidden_size", "num_attention_heads", "attention_head_size"),
            **same("hidden_act", "hidden_dropout_prob", "layer_norm_eps", "initializer_range"),
            **same("is_decoder", "use_cache", "pad_token_id", "bos_token_id", "eos_token_id"),
            "intermediate_size": "feed_forward_size",
        },
        constants={
            **{"norm": "pre", "residual": "reversible", "pooling": "first"},
            **{"qkv_bias": False, "attention_output_bias": False},
        },
        derived=_derived,
        weights=_weights,
        heads={
            "lm_head.": _language_head,
            "qa_outputs.": question_head,
            "classifier.": partial(sequence_head, activation="tanh"),
        },
        dropped={
            "*.mask_value_float*": MASK,
            "*.self_mask_value_float*": MASK,
        },
        refusals=_refusals,
        attention=_attention,
        architectures={
            **classes(
                "Reformer",
                LongspanForCausalLM,
                LongspanForMaskedLM,
                LongspanForSequenceClassification,
                LongspanForQuestionAnswering,
            ),
            LongspanForCausalLM: "ReformerModelWithLMHead",
        },
        source_fields=_source_fields,
    ),
)
