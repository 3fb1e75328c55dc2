"""Quick protocol: which mechanism reaches far, which looks things up, and at what cost?

Needle asks whether information from any position reaches the last one. Recall asks for the value
that was bound to a key, so whether a mechanism finds a position by its content. Full attention
solves both in seconds on a CPU core; windows and ranks are below the length, so a mechanism
that fails is limited by its design, its settings or its speed of learning, not by the task.
"""

import dataclasses
from typing import Any

from longspan.arena.protocols import diagnostic
from longspan.arena.protocols.base import MechanismOptions, Protocol, Recipe, register

OPTIONS: dict[str, dict[str, Any]] = {
    # Two kinds of filler keep test examples out of train; more of them take longer to learn.
    "needle": {
        "train": 20_000,
        "validation": 500,
        "test": 2_000,
        "length": 128,
        "symbols": 8,
        "noise": 2,
    },
    "recall": {
        "train": 20_000,
        "validation": 500,
        "test": 2_000,
        "length": 32,
        "pairs": 2,
        "queries": 12,
        "vocabulary": 8,
        "power": 1.0,
    },
}


TRAIN = {
    "needle": dataclasses.replace(
        diagnostic.TRAIN, steps=300, batch_size=32, warmup_steps=30, evaluate_every=60
    ),
    "recall": dataclasses.replace(
        diagnostic.TRAIN, steps=600, warmup_steps=100, evaluate_every=120
    ),
}

# A quarter of the length, as on needle: one segment has no memory to use, two compress nothing.
SHORTER: MechanismOptions = {
    "transformer_xl": {"segment": 8, "memory": 8},
    "compressive": {"segment": 8, "memory": 8, "compressed_memory": 4},
    "position_infused": {"segment": 8, "memory": 8},
}


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    return Recipe(task_options=OPTIONS[task], model=diagnostic.MODEL, training=TRAIN[task])


register(
    Protocol(
        name="quick",
        summary="Reach (needle) and look-up (recall) of every mechanism, in minutes on two cores.",
        source="longspan",
        tasks=tuple(OPTIONS),
        differs=(
            "Not a published recipe: one-headed models of two layers and width 64 at length 128 "
            "and 32. It says what a mechanism can do with a window, block or rank of 8 to 16, not "
            "how well it does on real text."
        ),
        recipe=recipe,
        mechanism_options=diagnostic.SETTINGS,
        task_mechanism_options={"recall": SHORTER},
    )
)
