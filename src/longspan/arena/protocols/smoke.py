"""Smoke protocol: shows in minutes on two CPU cores that training on ListOps and Text runs.

Its scores rank nothing: the first operator alone decides short ListOps, and 60 steps are too few
for Text. The arena's first table is that of `quick`.
"""

import dataclasses
from typing import Any

from longspan.arena.protocols.base import Protocol, Recipe, register
from longspan.config import ModelConfig, TrainingConfig

MODEL = ModelConfig(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
    classifier_hidden_size=128,
    attention_dropout=0.0,
)
LISTOPS = TrainingConfig(
    steps=300,
    batch_size=32,
    learning_rate=1e-3,
    warmup_steps=30,
    schedule="linear",
    evaluate_every=100,
    max_grad_norm=1.0,
    weight_decay=0.01,
    eval_batch_size=128,
)
TEXT = dataclasses.replace(LISTOPS, steps=60, batch_size=16, warmup_steps=6, evaluate_every=30)
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


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    return Recipe(task_options=OPTIONS[task], model=MODEL, training=TRAIN[task])


register(
    Protocol(
        name="smoke",
        summary="Half a minute a run: short ListOps and bytes of IMDB, to see that training runs.",
        source="longspan",
        tasks=tuple(OPTIONS),
        differs=("Not a published recipe. ListOps is LRA's generator at shorter length and depth."),
        recipe=recipe,
        mechanism_options={
            "local": {"window": 16},
            "dilated": {"window": 16, "dilation": [1, 2]},
            "longformer": {
                "window": [8, 32],
                "first_global": True,
                "global_projections": True,
            },
            "blockwise": {"block": 16},
            "disjoint": {"block": 32},
            "strided_local": {"block": 16},
            "bigbird": {"block": 16, "num_random_blocks": 1},
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
