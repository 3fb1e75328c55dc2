"""Self-pretraining: a model is pretrained on the inputs of each task, then trained on its labels.

Amos, Berant and Gupta, "Never Train from Scratch", 2024 (https://arxiv.org/abs/2310.02980);
IdoAmos/not-from-scratch, configs/experiment/lra. Every task of Long Range Arena is two runs: of
`masked_TASK`, then of `TASK`, which starts from the weights of the first one. In the compute-tied
protocols both share the budget of one run from scratch.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal

from longspan.arena.protocols import _lra, lra_scaled, s4_style
from longspan.arena.protocols.base import Choice, Protocol, Recipe, get, register
from longspan.config import ModelConfig, TrainingConfig
from longspan.tasks import TASKS
from longspan.tasks.masked_inputs import PREFIX

PAPER = "Amos et al. 2024"
SHARE = 0.4  # of the budget that pretraining takes, in the compute-tied experiments of the paper
TIED = (
    "Pretraining takes {share:.0%} of the examples that the run of {of} from scratch would see, "
    "training on the labels the others; warmup takes the same share of the steps as there. "
)


def _recipe(
    epochs: int,
    per_epoch: int,
    rate: float,
    warmup: int,
    batch: int = 32,
    decay: float = 0.0,
    schedule: Literal["constant", "cosine"] = "constant",
) -> TrainingConfig:
    return TrainingConfig(
        steps=epochs * per_epoch,
        batch_size=batch,
        learning_rate=rate,
        warmup_steps=warmup,
        schedule=schedule,
        weight_decay=decay,
        adam_betas=(0.9, 0.999),
        adam_epsilon=1e-8,
        evaluate_every=per_epoch,
        eval_batch_size=batch,
        checkpoint_every=1_000,
    )


MODELS: dict[str, ModelConfig] = {
    task: dataclasses.replace(model, position="rotary") for task, model in s4_style.MODELS.items()
}
# Epochs, and steps in one: training examples of the source // batch. A batch of 32 pairs has 64
# texts.
PRETRAINING = {
    "listops": _recipe(100, 96_000 // 32, 1e-3, 2_000),
    "text": _recipe(32, 25_000 // 32, 5e-4, 5_000, decay=0.1),
    "retrieval": _recipe(32, 147_086 // 32, 5e-3, 2_000, batch=64),
    "image": _recipe(50, 45_000 // 32, 1e-3, 2_500),
    "pathfinder": _recipe(50, 160_000 // 32, 1e-3, 2_500),
    "path_x": _recipe(200, 160_000 // 32, 1e-3, 5_000),
}
TRAIN = {
    "listops": _recipe(100, 96_000 // 32, 1e-4, 2_000),
    "text": _recipe(65, 25_000 // 32, 5e-4, 2_000, decay=0.1, schedule="cosine"),
    "retrieval": _recipe(32, 147_086 // 32, 5e-4, 5_000),
    "image": _recipe(200, 45_000 // 50, 1e-3, 2_000, batch=50),
    "pathfinder": _recipe(200, 160_000 // 32, 5e-4, 5_000),
    "path_x": _recipe(200, 160_000 // 32, 5e-4, 5_000),
}


def with_masked(tasks: Iterable[str]) -> tuple[str, ...]:
    """Return the names of tasks, each behind that of the task of its masked inputs."""
    return tuple(name for task in tasks for name in (f"{PREFIX}{task}", task))


def recipe(task: str) -> Recipe:
    """Return the recipe of one task, or of its masked inputs."""
    base = task.removeprefix(PREFIX)
    is_masked = task != base
    return Recipe(
        task_options=s4_style.OPTIONS[base],
        model=MODELS[base],
        training=(PRETRAINING if is_masked else TRAIN)[base],
        start=None if is_masked else f"{PREFIX}{task}",
    )


def tie_compute(
    recipe: Callable[[str], Recipe], scratch: Callable[[str], Recipe], share: float
) -> Callable[[str], Recipe]:
    """Return recipes in which both stages share the examples of a run from scratch.

    Args:
        recipe: recipes of tasks that start from that of their masked inputs, and of these.
        scratch: recipe of a run of the task from scratch.
        share: share of the examples that pretraining sees; both texts of a pair are examples.
    """

    def tied(task: str) -> Recipe:
        own, base = recipe(task), task.removeprefix(PREFIX)
        whole = scratch(base).training
        sequences = whole.steps * whole.batch_size * _num_sequences(base)
        part = share if task != base else 1 - share
        per_step = own.training.batch_size * _num_sequences(task)
        return own._replace(training=_shorten(own.training, round(part * sequences / per_step)))

    return tied


def _num_sequences(task: str) -> int:
    """Return the sequences of an example."""
    return 2 if TASKS[task].info.head == "pair_classification" else 1


def _shorten(training: TrainingConfig, steps: int) -> TrainingConfig:
    """Return the recipe with another number of steps, and as large a share of warmup."""
    return dataclasses.replace(
        training,
        steps=steps,
        warmup_steps=round(training.warmup_steps * steps / training.steps),
        evaluate_every=min(training.evaluate_every, steps),
    )


def _scaled(task: str) -> Recipe:
    """Return the recipe of lra-scaled, for the task or for its masked inputs."""
    base = task.removeprefix(PREFIX)
    start = None if task != base else f"{PREFIX}{task}"
    return lra_scaled.recipe(base)._replace(start=start)


CHOICES = (
    Choice(
        tasks=tuple(f"{PREFIX}{task}" for task in TRAIN),
        field="model.pooling",
        value="mean",
        source="longspan",
        why="it is not used in pretraining; both runs have one architecture",
    ),
    Choice(
        tasks=("path_x",),
        field="model.pooling",
        value="mean",
        source="longspan",
        instead=(("max", f"{PAPER}, hyperparameters in its appendix"),),
        why="models of this library average the tokens or read one of them",
    ),
    Choice(
        tasks=("text", f"{PREFIX}text"),
        field="task.validation",
        value=5000,
        source="longspan",
        instead=(("test", s4_style.READERS),),
        why="the best checkpoint on validation is scored, and test must not select it",
    ),
)
DIFFERS = (
    "The loss of masked pixels is cross entropy over gray levels on Image too (L1 in the source), "
    "and no second input channel says which pixels are masked. Of each example the share of "
    "masked tokens is exact but for rounding, in place of a draw for each token. Path-X averages "
    "the pixels (their maximum in the source), and the mechanism decides how far it attends "
    "(windows of 4,096 in the source). The classifier has a hidden layer as wide as the model. "
    "All weights start from one normal distribution, with Xavier's deviation for a square map. The "
    "source stops after a day on one GPU; here all epochs are run. ListOps and Pathfinder are "
    "generated unless task.source says otherwise. Options of mechanisms are those of the LRA code."
)
SOURCE = f"{PAPER}; {s4_style.SPT} (two stages, sizes, training)"

OF_IMAGES = dict.fromkeys(with_masked(_lra.IMAGES), _lra.EXCEPTIONS["image"])
SCALED = get("lra-scaled")
PUBLISHED = register(
    Protocol(
        name="self-pretraining",
        summary=(
            "Every task in two runs: masked inputs of the task, then its labels from those weights."
        ),
        source=SOURCE,
        tasks=with_masked(TRAIN),
        differs=DIFFERS,
        recipe=recipe,
        mechanism_options=_lra.SETTINGS,
        task_mechanism_options=OF_IMAGES,
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
register(
    dataclasses.replace(
        SCALED,
        name="self-pretraining-scaled",
        summary=(
            "Self-pretraining at the cost of a run of lra-scaled: 40 % of its examples with masked "
            "inputs, 60 % with labels."
        ),
        tasks=with_masked(SCALED.tasks),
        differs=TIED.format(share=SHARE, of="lra-scaled") + SCALED.differs,
        recipe=tie_compute(_scaled, lra_scaled.recipe, SHARE),
        task_mechanism_options={
            name: SCALED.task_mechanism_options[name.removeprefix(PREFIX)]
            for name in with_masked(SCALED.task_mechanism_options)
        },
    )
)
