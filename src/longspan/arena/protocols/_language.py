"""Parts that the protocols of left-to-right language models share."""

from collections.abc import Mapping
from typing import Any

from longspan.arena.protocols.base import Choice, MechanismOptions
from longspan.config import ModelConfig

# Of Transformer-XL's code, on which others build: torch's defaults of Adam.
ADAM = {"training.adam_betas": [0.9, 0.999], "training.adam_epsilon": 1e-8}
HALF = "half precision without loss scaling"


def decoder(
    layers: int,
    width: int,
    heads: int,
    feed_forward: int,
    *,
    norm: str,
    dropout: float,
    attention_dropout: float,
    position: str = "rotary",
    cutoffs: tuple[int, ...] = (),
    factor: int = 4,
) -> ModelConfig:
    """Return a model, whose weights have a deviation of 0.02."""
    return ModelConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=feed_forward,
        classifier_hidden_size=width,  # of no model here
        position=position,
        adaptive_cutoffs=cutoffs,
        adaptive_factor=factor,
        norm=norm,
        hidden_dropout_prob=dropout,
        attention_dropout=attention_dropout,
        initializer_range=0.02,
    )


def causal_options(keys: int, segment: int, memory: int) -> MechanismOptions:
    """Return options of all mechanisms by which a query sees about as many keys before it.

    Args:
        keys: keys of a window.
        segment: tokens of a segment of the mechanisms with memories.
        memory: tokens of their memories; half of them in slots, if those are compressed.
    """
    recurrent = {"segment": segment, "memory": memory}
    return {
        "local": {"window": keys},
        "longformer": {"window": keys},
        "dilated": {"window": keys, "dilation": 2},
        "blockwise": {"block": keys},
        "disjoint": {"block": 2 * keys},
        "bigbird": {"block": keys // 4, "num_random_blocks": 3},
        "reformer": {"chunk": keys // 4, "hashes": 2},
        "sinkhorn": {"block": keys // 2},
        "performer": {"features": 256},
        "long_short": {"window": keys, "segment": 16, "segment_rank": 1},
        "transformer_xl": recurrent,
        "compressive": {
            "segment": segment,
            "memory": memory // 2,
            "compressed_memory": memory // 2,
            "ratio": 4,
            "compression": "conv",
        },
        "position_infused": recurrent,
    }


def choose(
    tasks: tuple[str, ...], values: Mapping[str, Any], source: str, why: str
) -> tuple[Choice, ...]:
    """Return choices of values on which the sources are silent, for one reason."""
    return tuple(
        Choice(tasks=tasks, field=field, value=value, source=source, why=why)
        for field, value in values.items()
    )


def half_precision(tasks: tuple[str, ...], source: str) -> Choice:
    """Return the choice of bfloat16 in place of a source's float16."""
    return Choice(
        tasks=tasks,
        field="training.precision",
        value="bf16",
        source="longspan",
        instead=(("fp16", source),),
        why=HALF,
    )


def no_pooling(tasks: tuple[str, ...]) -> tuple[Choice, ...]:
    """Return the choice of a field without effect."""
    return choose(tasks, {"model.pooling": "mean"}, "longspan", "a language model pools nothing")
