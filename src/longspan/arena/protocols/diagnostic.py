"""Can a mechanism look a token up? Small models on recall and copying, which full attention solves.

Not a published recipe: sizes at which two layers of full attention solve both in minutes on a CPU
(100.0 % of recall, 94.3 % of copying at seed 0), so that what a mechanism loses is its own. Raise
`task.length` and the other size_options to find where it breaks.
"""

from typing import Any

from longspan.arena.experiment import ModelSpec, TaskSpec
from longspan.arena.protocols.base import Parts, Protocol, register
from longspan.training import TrainConfig

OPTIONS: dict[str, dict[str, Any]] = {
    "recall": {
        "train": 20_000,
        "validation": 500,
        "test": 2_000,
        "length": 128,
        "pairs": 4,
        "queries": 12,
        "vocabulary": 16,
        "power": 1.0,
    },
    "copying": {
        "train": 20_000,
        "validation": 500,
        "test": 2_000,
        "length": 128,
        "count": 4,
        "symbols": 8,
    },
}
MODEL = ModelSpec(
    width=64,
    layers=2,
    heads=1,
    feed_forward=128,
    classifier=128,
    dropout=0.0,
    attention_dropout=0.0,
    initializer=0.125,
)
TRAIN = TrainConfig(
    steps=2_000,
    batch=64,
    learning_rate=2e-3,
    warmup=100,
    schedule="linear",
    evaluate_every=250,
    clip=1.0,
    weight_decay=0.01,
    evaluation_batch=256,
)


def parts(task: str) -> Parts:
    """The recipe of one task."""
    return TaskSpec(name=task, options=OPTIONS[task]), MODEL, TRAIN


register(
    Protocol(
        name="diagnostic",
        summary="Associative recall and copying at sizes that full attention solves in minutes.",
        source="longspan",
        tasks=tuple(OPTIONS),
        differs="Not a published recipe; windows and ranks are far below the length.",
        parts=parts,
        settings={
            "local": {"window": 8},
            "dilated": {"window": 8, "dilation": 2},
            "longformer": {"window": 8},
            "blockwise": {"block": 8},
            "disjoint": {"block": 16},
            "strided_local": {"block": 8},
            "bigbird": {"block": 8, "num_random_blocks": 1},
            "sparse_transformer": {"kind": "strided", "stride": 8},
            "reformer": {"chunk": 8},
            "sinkhorn": {"block": 8},
            "synthesizer": {"scores": "dense"},
            "performer": {"features": 64},
            "linformer": {"rank": 16},
            "nystrom": {"landmarks": 16, "conv_kernel_size": 15},
            "long_short": {"window": 8, "rank": 8},
            "transformer_xl": {"segment": 32, "memory": 32, "backprop_through_memory": True},
            "compressive": {
                "segment": 32,
                "memory": 32,
                "compressed_memory": 16,
                "backprop_through_memory": True,
            },
            "position_infused": {"segment": 32, "memory": 32, "backprop_through_memory": True},
        },
    )
)
