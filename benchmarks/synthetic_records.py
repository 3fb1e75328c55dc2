"""Records as runs of a protocol would write them, without the runs: for measuring and testing.

    python benchmarks/synthetic_records.py FOLDER --seeds 10

Configurations, sizes of the sets and the points of the curves are those of the protocol; scores
are drawn. Which examples are answered rightly follows from a difficulty that all runs of a task
share, as in truth, so that paired comparisons have something to find. `longspan results check`
finds nothing wrong with them.
"""

import argparse
import functools
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from longspan import __version__
from longspan.arena import Experiment, get
from longspan.attention import MECHANISMS, options_of
from longspan.files import to_json_types
from longspan.results import Point, Result, Score, Slice, pack
from longspan.tasks import TASKS, Task

PROTOCOL = "lra-small"
GROUPS = 8  # of the examples, by each of the properties
PROPERTIES = ("length", "depth")


def records(
    protocol: str = PROTOCOL, seeds: int = 10, mechanisms: list[str] | None = None
) -> Iterator[Result]:
    """All mechanisms on all tasks of a protocol."""
    recipe = get(protocol)
    for task in recipe.tasks:
        for mechanism in mechanisms or sorted(MECHANISMS):
            for seed in range(seeds):
                yield record(recipe.experiment(task, mechanism, seed))


def record(experiment: Experiment) -> Result:
    """What a run of the experiment might have written; the same for the same experiment."""
    kind = TASKS[experiment.task.name]
    task = kind(kind.Options(**experiment.task.options))
    # of a mechanism on a task, and of one run of it
    usual = _generator(experiment.task.name, experiment.mechanism)
    luck = _generator(experiment.task.name, experiment.mechanism, experiment.seed)
    skill = float(usual.uniform(0.0, 1.0)) + float(luck.normal(0.0, 0.05))
    curve = _curve(experiment, task, skill, luck)
    best = max(curve, key=lambda p: (p.validation_accuracy or 0.0, -(p.validation_loss or 0.0)))
    right = _right(task, skill, luck)
    examples, train = len(right), experiment.train
    cost = float(usual.uniform(0.5, 2.0))
    seconds = curve[-1].seconds
    return Result(
        protocol=experiment.protocol,
        overrides=dict(experiment.overrides),
        task=task.info.name,
        task_version=task.info.version,
        task_options=to_json_types(experiment.task.complete()),
        data_source=f"drawn, as {task.info.name}",
        data_checksum=hashlib.sha256(task.info.name.encode()).hexdigest(),
        chance=task.chance,
        mechanism=experiment.mechanism,
        options=to_json_types({**options_of(experiment.mechanism), **experiment.options}),
        backend="torch",
        model=to_json_types(vars(experiment.model)),
        training=to_json_types(vars(train)),
        seed=experiment.seed,
        config_hash=experiment.hash,
        parameters=200_000 + int(usual.integers(0, 100_000)),
        full_parameters=214_154,
        budget=experiment.budget.record(training.steps),
        tuning=None,
        flops=int(1e8 * task.length / 1000 * cost),
        attended_pairs=int(task.length * min(task.length, 256)),
        length=task.length,
        selection=training.selection,
        selected_step=best.step if training.selection == "best validation" else curve[-1].step,
        scores={
            "validation": Score(
                accuracy=best.validation_accuracy or 0.0,
                loss=best.validation_loss or 0.0,
                examples=_size(task, "validation"),
                majority=_majority(task, _size(task, "validation")),
            ),
            "test": Score(
                accuracy=int(right.sum()) / examples,
                loss=1.5 - skill + float(luck.normal(0.0, 0.01)),
                examples=examples,
                majority=_majority(task, examples),
            ),
        },
        answers=pack(right.astype(int).tolist(), [1] * examples),
        slices=_slices(task, right),
        alarms=[],
        steps=training.steps,
        curve=curve,
        seconds=seconds,
        waiting=0.005 * seconds,
        tokens_per_second=training.steps * training.batch_size * 0.7 * task.length / seconds,
        peak_memory=int(2**30 * cost),
        device="cpu, 2 threads",
        processes=1,
        parallelism="none",
        dtype="bfloat16 mixed" if training.precision == "bf16" else "float32",
        versions={"longspan": __version__, "python": "3.11.7", "torch": "2.13.0"},
        git_commit="0123456789ab",
        date=f"2026-03-{1 + experiment.seed % 28:02d}T12:00:00+00:00",
    )


def _generator(*words: object) -> np.random.Generator:
    digest = hashlib.sha256(repr(words).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _size(task: Task, split: str) -> int:
    asked = getattr(task.options, split, None)
    return asked if isinstance(asked, int) else task.info.sizes[split]


def _majority(task: Task, examples: int) -> float:
    return math.ceil(1.1 * task.chance * examples) / examples


def _right(task: Task, skill: float, luck: np.random.Generator) -> np.ndarray:
    """Which test examples are answered rightly: the easier ones, mostly."""
    difficulty = _difficulty(task.info.name, _size(task, "test"))
    accuracy = task.chance + 0.4 * min(1.0, max(0.05, skill)) * (1 - task.chance)
    return luck.uniform(size=len(difficulty)) < np.clip(accuracy + 0.6 * (0.5 - difficulty), 0, 1)


@functools.cache
def _difficulty(name: str, examples: int) -> np.ndarray:
    return _generator(name).uniform(size=examples)


def _slices(task: Task, right: np.ndarray) -> dict[str, list[Slice]]:
    found = {}
    for name in PROPERTIES:
        group = _generator(task.info.name, name).integers(0, GROUPS, size=len(right))
        found[name] = [
            Slice(
                label=f"{100 * number} to {100 * number + 99}",
                accuracy=int(right[group == number].sum()) / int((group == number).sum()),
                examples=int((group == number).sum()),
            )
            for number in range(GROUPS)
        ]
    return found


def _curve(
    experiment: Experiment, task: Task, skill: float, luck: np.random.Generator
) -> list[Point]:
    train, examples = experiment.train, _size(task, "validation")
    steps = list(range(training.evaluate_every, training.steps + 1, training.evaluate_every))
    if not steps or steps[-1] != training.steps:
        steps.append(training.steps)
    speed = float(luck.uniform(0.05, 0.2))
    points = []
    for step in steps:
        grown = 1 - math.exp(-5 * step / training.steps)
        top = task.chance + 0.4 * min(1.0, max(0.05, skill)) * (1 - task.chance) * grown
        hits = int(luck.binomial(examples, min(0.99, max(0.01, top))))
        points.append(
            Point(
                step=step,
                seconds=speed * step,
                learning_rate=training.learning_rate * (1 - step / training.steps) + 1e-9,
                train_loss=2.3 - grown + float(luck.normal(0.0, 0.02)),
                train_accuracy=top,
                validation_loss=2.3 - 0.9 * grown + float(luck.normal(0.0, 0.01)),
                validation_accuracy=hits / examples,
            )
        )
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--protocol", default=PROTOCOL)
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    written = [one.save(args.folder) for one in records(args.protocol, args.seeds)]
    print(f"{len(written)} records below {args.folder}")


if __name__ == "__main__":
    main()
