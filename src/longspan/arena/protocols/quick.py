"""Minutes on two CPU cores, to see that everything runs and who learns first."""

import dataclasses
from typing import Any

from longspan.arena.experiment import ModelSpec, TaskSpec
from longspan.arena.protocols.base import Parts, Protocol, register
from longspan.training import TrainConfig

MODEL = ModelSpec(
    width=64, layers=2, heads=2, feed_forward=128, classifier=128, attention_dropout=0.0
)
LISTOPS = TrainConfig(
    steps=300,
    batch=32,
    learning_rate=1e-3,
    warmup=30,
    schedule="linear",
    evaluate_every=100,
    clip=1.0,
    weight_decay=0.01,
    evaluation_batch=128,
)
TEXT = dataclasses.replace(LISTOPS, steps=60, batch=16, warmup=6, evaluate_every=30)
TRAIN = {"listops": LISTOPS, "text": TEXT}

OPTIONS: dict[str, dict[str, Any]] = {
    "listops": {
        "train": 20_000,
        "validation": 500,
        "test": 2_000,
        "min_length": 80,
        "max_length": 256,
        "max_depth": 5,
        "max_args": 6,
    },
    "text": {"length": 1024, "train": 4_000, "validation": 200, "test": 500},
}


def parts(task: str) -> Parts:
    """The recipe of one task."""
    return TaskSpec(name=task, options=OPTIONS[task]), MODEL, TRAIN[task]


register(
    Protocol(
        name="quick",
        summary="Minutes on two CPU cores: short ListOps, and bytes of IMDB when they are there.",
        source="longspan",
        tasks=tuple(OPTIONS),
        differs=("Not a published recipe. ListOps is LRA's generator at shorter length and depth."),
        parts=parts,
        settings={
            "local": {"window": 16},
            "dilated": {"window": 16, "dilation": [1, 2]},
            "longformer": {"window": [8, 32]},
            "blockwise": {"block": 16},
            "disjoint": {"block": 32},
            "strided_local": {"block": 16},
            "bigbird": {"block": 16, "num_random_blocks": 1},
            "sparse_transformer": {"kind": "strided"},
            "reformer": {"chunk": 16},
            "sinkhorn": {"block": 16},
            "synthesizer": {"scores": "dense"},
            "performer": {"features": 64},
            "linformer": {"rank": 64},
            "nystrom": {"landmarks": 32, "conv_kernel_size": 15},
            "long_short": {"window": 16, "rank": 16},
            "transformer_xl": {"segment": 64, "memory": 64, "backprop_through_memory": True},
            "compressive": {
                "segment": 64,
                "memory": 64,
                "compressed_memory": 32,
                "backprop_through_memory": True,
            },
            "position_infused": {"segment": 64, "memory": 64, "backprop_through_memory": True},
        },
    )
)
