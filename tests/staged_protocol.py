"""Protocol with stages as a file of a user: three toy tasks, two of which start from the first."""

import tiny
import toy_heads
from longspan.arena.protocols import Protocol, Recipe
from longspan.arena.protocols.base import NamedRow
from longspan.config import ModelConfig, TrainingConfig
from longspan.tasks import TASKS as REGISTERED
from longspan.tasks import register as register_task

MODEL = ModelConfig(**tiny.MODEL, hidden_dropout_prob=0.0, attention_dropout=0.0)
TRAINING = TrainingConfig(**{**tiny.TRAIN, "steps": 4, "evaluate_every": 2}, schedule="constant")
SOURCE = "toy_masked"
TASKS = (SOURCE, "toy_labels", "toy_span")


def recipe(task):
    return Recipe({}, MODEL, TRAINING, start=None if task == SOURCE else SOURCE)


def make():
    """Register the toy tasks and return the protocol."""
    for cls in toy_heads.TOYS:
        if cls.info.name not in REGISTERED:
            register_task(cls)
    scratch = NamedRow(
        kind="reference row",
        name="scratch",
        tasks=("toy_labels",),
        changes={"start.task": None},
        source="a test",
    )
    wide = NamedRow(
        kind="reference row",
        name="wide", tasks=("toy_labels",), changes={"mechanism.window": 3}, source="a test",
        mechanism="local",
    )  # fmt: skip
    return Protocol(
        name="staged", summary="", source="a test", tasks=TASKS, differs="", recipe=recipe,
        mechanism_options={}, named_rows=(scratch, wide),
    )  # fmt: skip


FILE = """
import staged_protocol
from longspan.arena.protocols import register

register(staged_protocol.make())
"""
