"""Write synthetic records of a protocol's runs, without training, for benchmarks and tests.

    python benchmarks/synthetic_records.py FOLDER --seeds 10

Configurations, split sizes and evaluation steps are those of the protocol; scores are random. All
runs of a task share the difficulty of each example, so paired comparisons find differences, as with
real runs. `longspan results check` accepts the records except for parameters, FLOPs and pairs,
which are random too. Tasks must be scored by accuracy.
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
from longspan.attention import MECHANISMS
from longspan.results import Inference, Point, Result, Score, Slice, pack_scores
from longspan.tasks import TASKS, Task
from longspan.tasks.base import HELD_OUT
from longspan.training.schedule import compute_learning_rate

PROTOCOL = "lra-small"
METRIC = "accuracy"
GROUPS = 8  # of the examples, by each property
PROPERTIES = ("length", "depth")


def records(
    protocol: str = PROTOCOL, seeds: int = 10, mechanisms: list[str] | None = None
) -> Iterator[Result]:
    """Yield records of all mechanisms on all tasks of a protocol."""
    recipe = get(protocol)
    for task in recipe.tasks:
        for mechanism in mechanisms or sorted(MECHANISMS):
            for seed in range(seeds):
                yield record(recipe.experiment(task, mechanism, seed))


def record(experiment: Experiment) -> Result:
    """Return the record of an experiment, deterministically."""
    config, training = experiment.config, experiment.config.training
    kind = TASKS[experiment.task]
    task = kind(kind.Options(**config.task.options))
    by_cell = _generator(experiment.task, experiment.mechanism)
    by_run = _generator(experiment.task, experiment.mechanism, experiment.seed)
    skill = float(by_cell.uniform(0.0, 1.0)) + float(by_run.normal(0.0, 0.05))
    curve = _curve(experiment, task, skill, by_run)
    best = max(curve, key=lambda point: (point.validation_metrics[METRIC], -point.validation_loss))
    correct = _correct(task, skill, by_run)
    cost = float(by_cell.uniform(0.5, 2.0))
    seconds = curve[-1].seconds
    return Result(
        protocol=experiment.protocol,
        config=config,
        overrides=dict(experiment.overrides),
        seed=experiment.seed,
        config_hash=experiment.hash,
        device="cpu, 2 threads",
        versions={"longspan": __version__, "python": "3.11.7", "torch": "2.13.0"},
        git_commit="0123456789ab",
        source_files={},
        changed_files={},
        added_files={},
        date=f"2026-03-{1 + experiment.seed % 28:02d}T12:00:00+00:00",
        data_source=f"synthetic {task.info.name}",
        data_checksum=hashlib.sha256(task.info.name.encode()).hexdigest(),
        metric=METRIC,
        chance=task.chance,
        selected_on="validation",
        selected_step=(best if training.selection == "best validation" else curve[-1]).step,
        resolved_budget=None,
        tuning=None,
        family=None,
        backend_used="torch",
        num_parameters=200_000 + int(by_cell.integers(0, 100_000)),
        full_num_parameters=214_154,
        flops=int(1e8 * task.length / 1000 * cost),
        attended_pairs=int(task.length * min(task.length, 256)),
        length=task.length,
        scores={
            "validation": _score(
                task,
                "validation",
                best.validation_metrics[METRIC],
                best.validation_loss or 0.0,
            ),
            "test": _score(
                task, "test", float(correct.mean()), 1.5 - skill + float(by_run.normal(0.0, 0.01))
            ),
            # As many training examples as validation has.
            "train": _score(task, "validation", best.validation_metrics[METRIC], 1.0),
        },
        rules={x: {rule.name: 0.25 for rule in task.rules} for x in HELD_OUT},
        example_scores=pack_scores(METRIC, np.stack([correct, np.ones(len(correct))], axis=1)),
        slices=_slices(task, correct),
        alarms=[],
        steps=training.steps,
        curve=curve,
        seconds=seconds,
        data_wait_seconds=0.005 * seconds,
        tokens_per_second=training.steps * training.batch_size * _mean_length(task) / seconds,
        peak_memory=int(2**30 * cost),
        inference=Inference(examples_per_second=500 / cost, peak_memory=int(2**28 * cost)),
        world_size=1,
        parallelism="none",
        dtype="bfloat16 mixed" if training.precision == "bf16" else "float32",
    )


def _generator(*words: object) -> np.random.Generator:
    digest = hashlib.sha256(repr(words).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _mean_length(task: Task) -> int:
    return task.length if task.image_side else task.length * 7 // 10


def _size(task: Task, split: str) -> int:
    size = getattr(task.options, split, None)
    return size if isinstance(size, int) else task.info.sizes[split]


def _score(task: Task, split: str, accuracy: float, loss: float) -> Score:
    size = _size(task, split)
    return Score(
        metrics={METRIC: accuracy},
        loss=loss,
        num_examples=size,
        num_targets=size,
        majority_baseline=math.ceil(1.1 * task.chance * size) / size,
    )


def _correct(task: Task, skill: float, random: np.random.Generator) -> np.ndarray:
    """Draw correct (1) or wrong (0) for each test example; easier ones are correct more often."""
    difficulty = _difficulty(task.info.name, _size(task, "test"))
    chances = np.clip(_accuracy(task, skill) + 0.6 * (0.5 - difficulty), 0, 1)
    return (random.uniform(size=len(difficulty)) < chances).astype(float)


def _accuracy(task: Task, skill: float, trained: float = 1.0) -> float:
    return task.chance + 0.4 * min(1.0, max(0.05, skill)) * (1 - task.chance) * trained


@functools.cache
def _difficulty(name: str, size: int) -> np.ndarray:
    return _generator(name).uniform(size=size)


def _slices(task: Task, correct: np.ndarray) -> dict[str, list[Slice]]:
    found = {}
    for name in PROPERTIES:
        group = _generator(task.info.name, name).integers(0, GROUPS, size=len(correct))
        found[name] = [
            Slice(
                label=f"{100 * number} to {100 * number + 99}",
                value=float(correct[group == number].mean()),
                num_targets=int((group == number).sum()),
            )
            for number in range(GROUPS)
        ]
    return found


def _curve(
    experiment: Experiment, task: Task, skill: float, random: np.random.Generator
) -> list[Point]:
    training, size = experiment.config.training, _size(task, "validation")
    steps = list(range(training.evaluate_every, training.steps + 1, training.evaluate_every))
    if not steps or steps[-1] != training.steps:
        steps.append(training.steps)
    speed = float(random.uniform(0.05, 0.2))
    points = []
    for step in steps:
        trained = 1 - math.exp(-5 * step / training.steps)
        accuracy = _accuracy(task, skill, trained)
        correct = int(random.binomial(size, min(0.99, max(0.01, accuracy))))
        points.append(
            Point(
                step=step,
                seconds=speed * step,
                learning_rate=compute_learning_rate(training, step - 1),
                train_loss=2.3 - trained + float(random.normal(0.0, 0.02)),
                validation_loss=2.3 - 0.9 * trained + float(random.normal(0.0, 0.01)),
                train_metrics={METRIC: accuracy},
                validation_metrics={METRIC: correct / size},
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
