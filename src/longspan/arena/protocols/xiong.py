"""The recipe of "Simple Local Attentions Remain Competitive for Long-Context Tasks".

Xiong et al. (Wenhan), NAACL 2022. Its code is pull request 192 of facebookresearch/xformers (never
merged): config_nystrom.json and run_grid_search.py below xformers/benchmarks/LRA. Scores are the
best of a grid, on the three text tasks.
"""

import dataclasses
from typing import Any

from longspan.arena.protocols import lra_small
from longspan.arena.protocols.base import Choice, MechanismOptions, Protocol, Recipe, register
from longspan.config import ModelConfig, TrainingConfig

PULL = "facebookresearch/xformers pull request 192"
GRID = f"{PULL}, run_grid_search.py at 61554f67"
CONFIG = f"{PULL}, code/config_nystrom.json"
MODEL = ModelConfig(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
    classifier_hidden_size=128,
    pooling="cls",
    hidden_dropout_prob=0.0,
    attention_dropout=0.0,
)
TEXT = TrainingConfig(
    steps=20_000,
    batch_size=32,
    learning_rate=1e-4,
    warmup_steps=2_000,
    schedule="linear",
    evaluate_every=100,
    weight_decay=0.0,
    precision="bf16",
    eval_batch_size=32,
)
TRAIN = {
    "listops": dataclasses.replace(
        TEXT, steps=10_000, weight_decay=0.02, precision="no", evaluate_every=50
    ),
    "text": TEXT,
    "retrieval": dataclasses.replace(TEXT, steps=30_000, weight_decay=0.01),
}
OPTIONS = {"text": {"length": 4000}, "retrieval": {"length": 4000}}
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "listops": {
        "training.learning_rate": (1e-4, 3e-4),
        "training.warmup_steps": (2_000,),
        "training.weight_decay": (0.02, 0.05),
        "seed": (1234, 42, 3, 12),
    },
    "text": {
        "training.learning_rate": (1e-4, 3e-4, 5e-5),
        "training.warmup_steps": (2_000,),
        "training.weight_decay": (0.0, 0.02, 0.05),
        "seed": (1234, 32, 3, 4321),
    },
    "retrieval": {
        "training.learning_rate": (1e-4, 3e-4),
        "training.warmup_steps": (2_000, 8_000),
        "training.weight_decay": (0.01, 0.0),
        "seed": (14, 3, 5),
    },
}
SETTINGS: MechanismOptions = {
    **lra_small.SETTINGS,
    "local": {"window": 8},
    "longformer": {**lra_small.LONGFORMER, "window": 8},
    "sinkhorn": {"block": 8},
    "reformer": {"hashes": 2},
    "performer": {"features": 256},
    "nystrom": {"landmarks": 64, "conv_kernel_size": 35},
    "long_short": {"window": 8, "rank": 32, "variant": "xiong"},
}


def _sized(block: int, rank: int) -> MechanismOptions:
    """Return options by task; disjoint blocks are twice as large, for as many keys."""
    return {
        "blockwise": {"block": block},
        "disjoint": {"block": 2 * block},
        "linformer": {"rank": rank},
    }


EXCEPTIONS = {
    "listops": {**_sized(8, 128), "performer": {"features": 64}},
    "text": {**_sized(16, 256), "reformer": {"hashes": 4}},
    "retrieval": _sized(32, 256),
}


def recipe(task: str) -> Recipe:
    """Return the recipe of one task: the first combination of its grid."""
    return Recipe(task_options=OPTIONS.get(task, {}), model=MODEL, training=TRAIN[task])


# Values of the configuration that the grid replaces, and those that other states of the grid try.
REPLACED = {"listops": 1_000, "text": 8_000, "retrieval": 800}
OTHERS = {
    ("listops", "training.learning_rate"): (2e-4, 5e-5),
    ("listops", "training.warmup_steps"): (3_000,),
    ("listops", "training.weight_decay"): (0.0, 1.0),
    ("text", "training.learning_rate"): (2e-4,),
    ("text", "training.warmup_steps"): (3_000, 8_000),
    ("text", "training.weight_decay"): (0.01,),
}


def _grid_choice(task: str, field: str) -> Choice:
    first, *others = GRIDS[task][field]
    other = f"{PULL}, earlier states of run_grid_search.py, and xformers v0.0.22"
    config = ((REPLACED[task], CONFIG),) if field == "training.warmup_steps" else ()
    return Choice(
        tasks=(task,),
        field=field,
        value=first,
        source=GRID,
        instead=(
            *((value, GRID) for value in others),
            *((value, other) for value in OTHERS.get((task, field), ())),
            *config,
        ),
        why="the first of the grid of the paper's time; which value was best is not published",
    )


def _block(task: str, block: int, earlier: tuple[int, ...]) -> Choice:
    return Choice(
        tasks=(task,),
        field="mechanism.blockwise.block",
        value=block,
        source=CONFIG,
        instead=tuple((size, f"{PULL}, an earlier run_grid_search.py") for size in earlier),
        why="the state nearest to the paper in time",
    )


CHOICES = (
    *(
        _grid_choice(task, field)
        for task, grid in GRIDS.items()
        for field in grid
        if field != "seed"
    ),
    Choice(
        tasks=tuple(TRAIN),
        field="model.hidden_dropout_prob",
        value=0.0,
        source=GRID,
        instead=((0.1, CONFIG),),
        why="the grid replaces the configuration's value",
    ),
    Choice(
        tasks=tuple(TRAIN),
        field="model.pooling",
        value="cls",
        source=CONFIG,
        why="the grid's key for pooling is misspelled and has no effect; the value is the same",
    ),
    Choice(
        tasks=("text", "retrieval"),
        field="task.length",
        value=4000,
        source="facebookresearch/xformers, benchmarks/LRA/setup, which cuts there",
        instead=((4096, f"{CONFIG}: padded to it"),),
        why="the last 96 positions hold padding alone",
    ),
    Choice(
        tasks=("text",),
        field="task.validation",
        value=5000,
        source="longspan",
        instead=(("test", CONFIG),),
        why="the best checkpoint on validation is scored, and test must not select it",
    ),
    Choice(
        tasks=("text", "retrieval"),
        field="training.precision",
        value="bf16",
        source="longspan",
        instead=(("fp16", CONFIG),),
        why=lra_small.HALF,
    ),
    Choice(
        tasks=("listops",),
        field="training.steps",
        value=10_000,
        source=CONFIG,
        instead=((5_000, lra_small.CONFIG),),
        why="the protocol is the pull request",
    ),
    Choice(
        tasks=tuple(TRAIN),
        field="mechanism.nystrom.landmarks",
        value=64,
        source=f"{CONFIG} at e32e701c",
        instead=((128, f"{CONFIG}, an earlier state, and xformers v0.0.22"),),
        why="the state nearest to the paper in time",
    ),
    Choice(
        tasks=("text",),
        field="mechanism.reformer.hashes",
        value=4,
        source=GRID,
        instead=((2, CONFIG),),
        why="the grid replaces the configuration's value",
    ),
    _block("text", 16, (8,)),
    _block("listops", 8, (16, 32)),
    _block("retrieval", 32, (8,)),
)

register(
    Protocol(
        name="xiong",
        summary="The small models and the grid of Simple Local Attentions Remain Competitive.",
        source=f"Xiong et al. 2022, NAACL; {PULL}",
        tasks=tuple(TRAIN),
        differs=(
            "The recipe is the first combination of the grid; the paper reports the best. All "
            "validation and test examples are scored; the source drops the last batch. The "
            "summary token is global for mechanisms with global tokens, as in the source. The "
            "local window of the source is `local`; `longformer` also has the global projections "
            "that the source leaves out. The initialization is ours; mechanisms that the source "
            "lacks have the options of lra-small, and those that carry positions get none from "
            "the model. Image and Pathfinder are in its configuration but not in its grid or "
            "tables, and are left out. ListOps is generated unless task.source says otherwise."
        ),
        recipe=recipe,
        mechanism_options=SETTINGS,
        task_mechanism_options=EXCEPTIONS,
        choices=CHOICES,
        grids=GRIDS,
    )
)
