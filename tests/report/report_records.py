"""Result records as runs would write them, with the fields that a test is about."""

import dataclasses
import math
from typing import Any

from longspan.results import Analysis, Failure, Point, Result, Score, config_hash
from longspan.results.analysis import Span

MAJORITY = {"listops": 0.1745, "text": 0.5, "image": 0.1}
CHANCE = {"listops": 0.1, "text": 0.5, "image": 0.1}


def record(
    mechanism: str = "bigbird",
    task: str = "listops",
    seed: int = 0,
    accuracy: float = 0.36,
    **changes: Any,
) -> Result:
    options = changes.pop("options", {"block": 64, "heads": 4})
    overrides = changes.pop("overrides", {})
    result = Result(
        protocol="lra-small",
        overrides=overrides,
        task=task,
        task_version=1,
        task_options={"max_length": 2000},
        data_source=f"generated {task}, seed 0",
        data_checksum="5f" * 32,
        chance=CHANCE.get(task, 0.1),
        mechanism=mechanism,
        options=options,
        backend="torch",
        model={"layers": 2, "hidden_size": 64, "heads": 2},
        training={"steps": 500, "batch": 32, "learning_rate": 1e-4},
        seed=seed,
        config_hash=config_hash({"m": mechanism, "t": task, "o": options, "x": overrides}),
        parameters=214_154,
        full_parameters=214_154,
        budget={"kind": "steps", "limit": 500},
        tuning=None,
        flops=1_234_567_890,
        attended_pairs=400_000,
        length=2000,
        selection="best validation",
        selected_step=500,
        scores=scores(accuracy, MAJORITY.get(task, 0.1)),
        answers=None,
        slices={},
        alarms=[],
        steps=500,
        curve=curve(accuracy),
        seconds=812.4,
        waiting=4.062,
        tokens_per_second=52_345.6789,
        peak_memory=1_610_612_736,
        device="cpu",
        processes=1,
        parallelism="none",
        dtype="float32",
        versions={"longspan": "0.1.0", "torch": "2.13.0"},
        git_commit="0123456789abcdef0123456789abcdef01234567",
        date="2026-03-01T12:00:00Z",
    )
    return dataclasses.replace(result, **changes)


def scores(accuracy: float, majority: float, examples: int = 2000) -> dict[str, Score]:
    return {
        "validation": Score(accuracy=accuracy + 0.01, loss=1.7, examples=1000, majority=majority),
        "test": Score(accuracy=accuracy, loss=1.8, examples=examples, majority=majority),
    }


def curve(accuracy: float, points: int = 10, steps: int = 500) -> list[Point]:
    return [
        Point(
            step=steps * i // points,
            seconds=80.0 * i,
            learning_rate=1e-4,
            train_loss=None if i == 0 else 2.3 - 0.6 * (1 - math.exp(-i / 4)),
            train_accuracy=None,
            validation_loss=2.2,
            validation_accuracy=0.1 + (accuracy - 0.1) * (1 - math.exp(-i / 3)),
        )
        for i in range(points + 1)
    ]


def failure(
    mechanism: str = "bigbird",
    task: str = "listops",
    seed: int = 2,
    kind: str = "memory",
    **changes: Any,
) -> Failure:
    run = record(mechanism, task, seed)
    shared = {field.name for field in dataclasses.fields(Failure)} - {"kind", "reason", "step"}
    values = {name: getattr(run, name) for name in shared}
    values |= {"kind": kind, "reason": "set training.gradient_accumulation_steps=4", "step": 7}
    return Failure(**{**values, **changes})


def analysis(run: Result, layers: tuple[float, ...] = (10.0, 15.0), **changes: Any) -> Analysis:
    """What might have been found in the trained model of a run."""
    deep = [Span(mean=mean, deviation=0.5) for mean in layers]
    found = Analysis(
        protocol=run.protocol,
        task=run.task,
        mechanism=run.mechanism,
        seed=run.seed,
        config_hash=run.config_hash,
        split="validation",
        samples=16,
        available=1000,
        mean_length=90.0,
        uniform=30.0,
        negative=0.0,
        span=Span(mean=sum(layers) / len(layers), deviation=1.0),
        layers=deep,
        heads=[[layer] for layer in deep],
        positions=None,
        tokens=None,
        rollout=None,
        device="cpu",
        versions={"longspan": "0.1.0"},
        date="2026-03-02T12:00:00Z",
    )
    return dataclasses.replace(found, **changes)
