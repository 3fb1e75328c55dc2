"""Data and training of state-space models (S4 and its successors), with a Transformer.

Gu et al., "Efficiently Modeling Long Sequences with Structured State Spaces", 2022
(state-spaces/s4, configs/experiment/lra); Amos et al., "Never Train from Scratch", 2024
(IdoAmos/not-from-scratch), who train Transformers this way. Continuous pixels, characters, an end
symbol, and ten times the updates of LRA: not comparable with the other protocols.
"""

import math
from typing import Any

from longspan.arena.protocols import _lra
from longspan.arena.protocols.base import Choice, Protocol, Recipe, register
from longspan.config import ModelConfig, TrainingConfig

S4 = "state-spaces/s4 at e757cef, configs/experiment/lra"
READERS = "state-spaces/s4 at e757cef, src/dataloaders/lra.py"
SPT = "IdoAmos/not-from-scratch at f919137, configs/experiment/lra"


def _encoder(layers: int, width: int, heads: int, expansion: int) -> ModelConfig:
    return ModelConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=expansion * width,
        classifier_hidden_size=width,
        position="sinusoidal",
        hidden_dropout_prob=0.0,
        attention_dropout=0.0,
        # Xavier's for a square map
        initializer_range=round(1 / math.sqrt(width), 4),
    )


def _recipe(epochs: int, per_epoch: int, batch: int, rate: float, warmup: int) -> TrainingConfig:
    return TrainingConfig(
        steps=epochs * per_epoch,
        batch_size=batch,
        learning_rate=rate,
        warmup_steps=warmup,
        schedule="cosine",
        weight_decay=0.05,
        adam_betas=(0.9, 0.999),
        adam_epsilon=1e-8,
        evaluate_every=per_epoch,
        eval_batch_size=batch,
        checkpoint_every=1_000,
    )


MODELS = {
    "listops": _encoder(6, 512, 8, 4),
    "text": _encoder(6, 512, 8, 4),
    "retrieval": _encoder(4, 128, 4, 4),
    "image": _encoder(3, 64, 4, 2),
    "pathfinder": _encoder(4, 128, 8, 1),
    "path_x": _encoder(4, 128, 4, 1),
}
# Epochs of the source, and steps in one: its training examples // batch.
TRAIN = {
    "listops": _recipe(40, 96_000 // 32, 32, 1e-3, 12_000),
    "text": _recipe(32, 25_000 // 16, 16, 1e-3, 5_000),
    "retrieval": _recipe(20, 147_086 // 64, 64, 1e-3, 5_000),
    "image": _recipe(200, 45_000 // 50, 50, 1e-3, 18_000),
    "pathfinder": _recipe(200, 160_000 // 64, 64, 5e-4, 50_000),
    "path_x": _recipe(50, 160_000 // 16, 16, 5e-4, 50_000),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "listops": {"end": True},
    "text": {"length": 4096, "vocabulary": "characters", "minimum": 15, "end": True},
    "retrieval": {"length": 4000, "vocabulary": "characters", "minimum": 1, "end": True},
    # the reader of S4 turns gray with Pillow and draws its validation split from seed 42
    "image": {"pixels": "continuous", "grayscale": "pil", "split": "random", "seed": 42},
    "pathfinder": {"pixels": "continuous", "split": "random"},
    "path_x": {"pixels": "continuous", "split": "random"},
}


def recipe(task: str) -> Recipe:
    """Return the recipe of one task."""
    return Recipe(task_options=OPTIONS[task], model=MODELS[task], training=TRAIN[task])


# S4's own, in the order of TRAIN
RATES = (0.01, 0.01, 0.01, 0.01, 0.004, 0.001)
SPT_RATES = (0.05, 0.05, 0.05, 1e-3, 5e-4, 5e-4)
FILES = ("listops", "imdb", "aan", "cifar", "pathfinder", "pathx")


def _sizes() -> tuple[Choice, ...]:
    return tuple(
        Choice(
            tasks=(task,),
            field="model.hidden_size",
            value=MODELS[task].hidden_size,
            source=f"{SPT}/transformer-lra-{name}{'-small' if name == 'pathx' else ''}.yaml",
            instead=((512 if name == "cifar" else 256, f"{S4}/s4-{name}.yaml"),),
            why="the mechanisms stand in a Transformer, whose sizes these are, not S4's layers",
        )
        for task, name in zip(TRAIN, FILES, strict=True)
    )


def _rates() -> tuple[Choice, ...]:
    chosen = []
    for task, name, own, spt in zip(TRAIN, FILES, RATES, SPT_RATES, strict=True):
        value = TRAIN[task].learning_rate
        others = [(own, f"{S4}/s4-{name}.yaml")]
        if name == "pathx":
            others.append((0.002, f"{S4}/s4-pathx.yaml, another state of the file"))
        if spt != value:
            others.append((spt, f"{SPT}/transformer-lra-{name}.yaml"))
        chosen.append(
            Choice(
                tasks=(task,),
                field="training.learning_rate",
                value=value,
                source="Amos et al. 2024, within their grid for Transformers",
                instead=tuple(others),
                why="the rates of state-space layers, and the 0.05 of LRA's other rule, are no "
                "peak for a Transformer",
            )
        )
    return tuple(chosen)


CHOICES = (
    *_sizes(),
    *_rates(),
    Choice(
        tasks=tuple(TRAIN),
        field="training.weight_decay",
        value=0.05,
        source=S4,
        instead=((0.0, f"{SPT}, except text"), (0.1, f"{SPT}, text")),
        why="the protocol trains as S4 does, where a Transformer can be trained so",
    ),
    Choice(
        tasks=tuple(TRAIN),
        field="training.schedule",
        value="cosine",
        source=S4,
        instead=(("constant", f"{SPT}, except text"),),
        why="the protocol trains as S4 does",
    ),
    Choice(
        tasks=("text",),
        field="training.steps",
        value=49_984,
        source=f"{S4}/s4-imdb.yaml: 32 epochs of 25,000 // 16 = 1,562 steps",
        instead=((50_000, "the length of its schedule"),),
        why="epochs are what ends the source's run",
    ),
    Choice(
        tasks=("retrieval",),
        field="training.steps",
        value=45_960,
        source=f"{S4}/s4-aan.yaml: 20 epochs of 147,086 // 64 = 2,298 steps",
        instead=((50_000, "the length of its schedule"),),
        why="epochs are what ends the source's run",
    ),
    Choice(
        tasks=("text",),
        field="task.validation",
        value=5000,
        source="longspan",
        instead=(("test", READERS),),
        why="the best checkpoint on validation is scored, and test must not select it",
    ),
    Choice(
        tasks=tuple(TRAIN),
        field="model.position",
        value="sinusoidal",
        source="longspan, as in LRA's code",
        why="the configurations name no positions (and rotary ones as off)",
    ),
)

register(
    Protocol(
        name="s4-style",
        summary="Continuous pixels, characters and long training, as S4 and its line report LRA.",
        source=f"{S4} (data, training); {SPT} (Transformer sizes)",
        tasks=tuple(TRAIN),
        differs=(
            "A Transformer encoder, where S4 has state-space layers; sizes of Amos et al., the "
            "training of S4, the learning rate of the former. No pretraining. A classifier with a "
            "hidden layer, as wide as the model (one linear layer in most configurations). Amos et "
            "al. restrict Path-X to windows of 4,096 and pool its maximum; here the mechanism "
            "decides and the mean is pooled. All weights start from one normal distribution, with "
            "Xavier's deviation for a square map. ListOps and Pathfinder are generated here unless "
            "task.source says otherwise. Options of mechanisms are those of the LRA code."
        ),
        recipe=recipe,
        mechanism_options=_lra.SETTINGS,
        task_mechanism_options=_lra.EXCEPTIONS,
        choices=CHOICES,
        grids={
            task: {
                "training.learning_rate": (1e-3, 5e-4, 1e-4),
                "training.batch_size": (8, 32, 128),
            }
            for task in TRAIN
        },
    )
)
