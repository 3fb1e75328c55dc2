"""Diagnostic protocol: recall and copying with small models, which full attention solves.

Not a published recipe. Two layers of full attention solve both tasks in minutes on a CPU (100.0 %
of recall, 94.3 % of copying, seed 0), so a lower score is due to the mechanism. Raise `task.length`
and the other task options to find the limit of a mechanism.
"""

from typing import Any

from longspan.arena.protocols.base import MechanismOptions, Protocol, Recipe, register
from longspan.config import ModelConfig, TrainingConfig

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
MODEL = ModelConfig(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=1,
    intermediate_size=128,
    classifier_hidden_size=128,
    hidden_dropout_prob=0.0,
    attention_dropout=0.0,
    initializer_range=0.125,
)
TRAIN = TrainingConfig(
    steps=2_000,
    batch_size=64,
    learning_rate=2e-3,
    warmup_steps=100,
    schedule="linear",
    evaluate_every=250,
    max_grad_norm=1.0,
    weight_decay=0.01,
    eval_batch_size=256,
)

# Windows and ranks far below the length.
SETTINGS: MechanismOptions = {
    "local": {"window": 8},
    "dilated": {"window": 8, "dilation": 2},
    "longformer": {"window": 8, "first_global": True, "global_projections": True},
    "blockwise": {"block": 8},
    "disjoint": {"block": 16},
    "strided_local": {"block": 8},
    "bigbird": {"block": 8, "num_random_blocks": 1},
    "sparse_transformer": {"stride": 8},
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
}


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    return Recipe(task_options=OPTIONS[task], model=MODEL, training=TRAIN)


register(
    Protocol(
        name="diagnostic",
        summary="Associative recall and copying at sizes that full attention solves in minutes.",
        source="longspan",
        tasks=tuple(OPTIONS),
        differs="Not a published recipe; windows and ranks are far below the length.",
        recipe=recipe,
        mechanism_options=SETTINGS,
    )
)
