"""Protocols `pretrain` and `finetune`: the recipes of the commands of these names.

They cover every registered task of a kind, those of imports and plug-ins included.
"""

import dataclasses
from collections.abc import Iterable

from longspan.arena.protocols import own
from longspan.arena.protocols.base import GENERIC, Protocol, Recipe
from longspan.config import ModelConfig, TrainingConfig
from longspan.tasks import TASKS, build
from longspan.tasks.info import LANGUAGE_MODELING

PRETRAIN, FINETUNE = "pretrain", "finetune"
CORPUS = "long_documents"  # name that protocols with pretraining give their corpus
EVALUATIONS = 10
PRETRAINING_STEPS, PRETRAINING_BATCH = 10_000, 16
FINETUNING_EPOCHS, FINETUNING_BATCH = 4, 16
FEWEST_STEPS, MOST_STEPS = 200, 20_000
UNKNOWN_STEPS = 2_000  # of a task whose number of examples is not known before it is built

MODEL = ModelConfig(
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=1_024,
    classifier_hidden_size=256,
    attention_dropout=0.0,
    initializer_range=0.02,
)


def pretraining_recipe(task: str) -> Recipe:
    """Return the recipe of a corpus: a small model, with the task's own length and masks.

    Positions of left-to-right models are rotary: learned ones end with the segment, and texts that
    are generated are longer.
    """
    training = _training(PRETRAINING_STEPS, PRETRAINING_BATCH, 5e-4, warmup=20)
    model = MODEL
    if TASKS[task].info.head == "causal_lm":
        model = dataclasses.replace(MODEL, position="rotary")
    return Recipe(task_options={}, model=model, training=training)


def finetuning_recipe(task: str) -> Recipe:
    """Return the recipe of a task: the largest learning rate and most epochs of BERT's grid."""
    size = build(task, {}).sizes["train"]
    batch = FINETUNING_BATCH if size is None else min(FINETUNING_BATCH, size)
    steps = UNKNOWN_STEPS
    if size is not None:
        steps = min(max(FINETUNING_EPOCHS * size // batch, FEWEST_STEPS), MOST_STEPS)
    return Recipe(task_options={}, model=MODEL, training=_training(steps, batch, 5e-5, warmup=10))


def _training(steps: int, batch: int, learning_rate: float, *, warmup: int) -> TrainingConfig:
    return TrainingConfig(
        steps=steps,
        batch_size=batch,
        learning_rate=learning_rate,
        warmup_steps=steps // warmup,
        schedule="linear",
        evaluate_every=steps // EVALUATIONS,
        max_grad_norm=1.0,
        weight_decay=0.01,
    )


def known_tasks(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are registered tasks; others may come with an import or a plug-in."""
    return tuple(name for name in names if name in TASKS)


def corpus_imports(path: str) -> dict[str, str]:
    """Return the command that imports the corpus of a protocol with pretraining, by its name."""
    return {CORPUS: f"longspan data import corpus {CORPUS} {path}"}


def _corpora() -> set[str]:
    return {name for name, cls in TASKS.items() if cls.info.head in LANGUAGE_MODELING}


def make_pretrain() -> Protocol:
    """Return the protocol of all corpora."""
    return Protocol(
        name=PRETRAIN,
        summary="Language modeling of one corpus: the recipe of `longspan pretrain`.",
        source="longspan",
        tasks=tuple(sorted(_corpora())),
        differs=(
            "Not a published recipe. A model of 4 layers and width 256, 10,000 steps of 16 "
            "examples; masks are RoBERTa's, positions of left-to-right models rotary. --start "
            "continues a checkpoint, whose architecture it keeps."
        ),
        recipe=pretraining_recipe,
        mechanism_options=own.OPTIONS,
    )


def make_finetune() -> Protocol:
    """Return the protocol of all tasks but corpora."""
    return Protocol(
        name=FINETUNE,
        summary="One task from a given checkpoint: the recipe of `longspan finetune`.",
        source="Devlin et al. 2019, https://arxiv.org/abs/1810.04805, appendix A.3",
        tasks=tuple(sorted(TASKS.keys() - _corpora())),
        differs=(
            "Of the grid of the paper (batches of 16 or 32, learning rates of 5e-5, 3e-5 or 2e-5, "
            "2 to 4 epochs) one combination; at least 200 and at most 20,000 steps. Architecture "
            "and mechanism are those of the checkpoint."
        ),
        recipe=finetuning_recipe,
        mechanism_options=own.OPTIONS,
    )


GENERIC |= {PRETRAIN: make_pretrain, FINETUNE: make_finetune}
