"""How an experiment meets its budget: the steps and options that it then runs with.

What was found is written into the run's work folder, so that an interrupted run goes on with the
same steps and options, and measures nothing again.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from longspan.arena.budget import scaled, training_flops
from longspan.arena.experiment import Experiment
from longspan.arena.model import forward_flops, make_model, model_config
from longspan.attention import MECHANISMS
from longspan.errors import InputError, LongspanError, NoMemoryError, OptionError, RunError
from longspan.files import plain, read_json, sweep, write_json
from longspan.models.layers import mechanism
from longspan.tasks import Task

FILE = "budget.json"
SMALLEST = 8  # size of a mechanism that is tried; steps with smaller ones take ages
PATIENCE = 0.1  # share of a budget of seconds that its measurement may take


@dataclasses.dataclass(frozen=True, kw_only=True)
class Met:
    """An experiment that meets its budget.

    Attributes:
        experiment: as it runs: its steps and options are those that the budget allows.
        record: for `Result.budget`: "kind", "limit", how it was met, and under "asked" what the
            recipe said where the budget says something else, by dotted name.
    """

    experiment: Experiment
    record: dict[str, Any]


def meet(experiment: Experiment, task: Task, work: Path, device: str | None = None) -> Met:
    """Find the steps and options with which an experiment meets its budget, or read them again.

    Args:
        experiment: the experiment as the protocol has it.
        task: open where seconds are to be measured.
        work: the run's folder, where the answer is kept.
        device: as `fit` takes it.

    Raises:
        NoMemoryError: no size of the mechanism stays below the limit.
        RunError: the limit buys no step, seconds would be measured by one of several processes, or
            what was written down cannot be read.
    """
    if (met := met_before(experiment, work)) is not None:
        return met
    met = found(experiment, task, device)
    ran = {"options": dict(met.experiment.options), **_paced(met.experiment)}
    sweep(work / FILE)
    write_json(work / FILE, {"runs": ran, "record": met.record})
    return met


def met_before(experiment: Experiment, work: Path) -> Met | None:
    """What needs no search: equal steps, or an answer that is kept in the run's folder."""
    if experiment.budget.kind == "steps":
        return Met(experiment=experiment, record=experiment.budget.record(experiment.train.steps))
    path = work / FILE
    return _read(experiment, path) if path.exists() else None


def found(experiment: Experiment, task: Task, device: str | None = None) -> Met:
    """The answer to a budget other than equal steps, searched for; `meet` keeps it."""
    changed, facts = WAYS[experiment.budget.kind](experiment, task, device)
    held = experiment.budget.record(experiment.train.steps)
    # As JSON reads it back, so that a record equals what is kept of it.
    record = plain({**held, **facts, "asked": _asked(experiment, changed)})
    return Met(experiment=changed, record=record)


def _read(experiment: Experiment, path: Path) -> Met:
    try:
        there = read_json(path)
        ran, record = there["runs"], there["record"]
        paced = {name.partition(".")[2]: ran[name] for name in _paced(experiment)}
        train = dataclasses.replace(experiment.train, **paced)
        changed = dataclasses.replace(experiment, options=ran["options"], train=train)
    except (TypeError, KeyError, LongspanError) as error:
        raise RunError(f"{path} is no record of a budget; remove it: it is made again") from error
    return Met(experiment=changed, record=record)


def _paced(experiment: Experiment) -> dict[str, int]:
    """What the number of steps moves, by dotted name."""
    train = experiment.train
    return {f"train.{name}": getattr(train, name) for name in ("steps", "warmup", "evaluate_every")}


def _asked(before: Experiment, after: Experiment) -> dict[str, Any]:
    """What the recipe said where it now says something else."""
    old, new = before.config()["options"], after.config()["options"]
    told = {f"options.{name}": x for name, x in old.items() if new[name] != x}
    paced = _paced(after)
    return told | {name: x for name, x in _paced(before).items() if paced[name] != x}


Way = tuple[Experiment, dict[str, Any]]


def _by_flops(experiment: Experiment, task: Task, device: str | None) -> Way:
    """At the task's length: shorter batches cost less, and are not counted as such."""
    step = training_flops(forward_flops(experiment, task), experiment.train.batch)
    steps = int(_limit(experiment) // step)
    if steps < 1:
        raise RunError(
            f"{experiment.name}: one step costs {step:.3g} operations, and the budget is "
            f"{_limit(experiment):.3g}; raise it, or lower train.batch"
        )
    return _over(experiment, steps), {"steps": steps, "flops_per_step": step}


def _by_seconds(experiment: Experiment, task: Task, device: str | None) -> Way:
    from longspan.training.timing import measure_step_seconds

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RunError(
            f"{experiment.name}: a budget of seconds is measured by one process, and here are "
            "several; take flops=..., or set train.steps"
        )
    limit = _limit(experiment)
    step = measure_step_seconds(
        make_model(experiment, task),
        task,
        experiment.train,
        seed=experiment.seed,
        device=device,
        patience=PATIENCE * limit,
    )
    steps = int(limit / step)
    if steps < 1:
        raise RunError(
            f"{experiment.name}: one step takes {step:.3g} s, and the budget is {limit:g} s; "
            "raise it, or lower train.batch"
        )
    return _over(experiment, steps), {"steps": steps, "seconds_per_step": step}


def _by_memory(experiment: Experiment, task: Task, device: str | None) -> Way:
    """The largest size on a ladder of powers of two that stays below the limit."""
    knob, limit = MECHANISMS[experiment.mechanism].knob, _limit(experiment)
    if knob is None:
        return _unsized(experiment, task)
    searched = list(_climbed(_measuring(experiment, task, knob), task.length, limit))
    if _is_idle(experiment, task, searched, knob):
        # No option of this recipe: another one decides.
        return _unsized(experiment, task, {"searched": searched})
    fitting = [(size, need) for size, need in searched if need is not None and need <= limit]
    if not fitting:
        size, least = min((x for x in searched if x[1] is not None), key=lambda x: x[1] or 0)
        raise NoMemoryError(
            f"{experiment.name}: a step needs {least:,} bytes with {knob}={size}, and the budget "
            f"is {limit:,.0f}; raise it, or lower train.batch"
        )
    size, needed = max(fitting)
    facts = {"steps": experiment.train.steps, "option": knob, "value": size}
    return _sized(experiment, knob, size), {**facts, "bytes": needed, "searched": searched}


def _unsized(experiment: Experiment, task: Task, facts: dict[str, Any] | None = None) -> Way:
    """A mechanism without a size to choose runs as it is, if it can."""
    needed, limit = step_bytes(experiment, task), _limit(experiment)
    if needed > limit:
        raise NoMemoryError(
            f"{experiment.name}: a step needs {needed:,} bytes, and the budget is {limit:,.0f}; "
            "raise it, or lower train.batch (there is no size to choose)"
        )
    steps = experiment.train.steps
    return experiment, {"steps": steps, "option": None, "bytes": needed, **(facts or {})}


def _is_idle(
    experiment: Experiment, task: Task, searched: list[tuple[int, int | None]], knob: str
) -> bool:
    """Whether a size changes nothing: neither bytes, nor operations, nor attended pairs."""
    sizes = [size for size, needed in searched if needed is not None]
    if len({needed for _, needed in searched if needed is not None}) > 1:
        return False
    attentions = [
        mechanism(model_config(_sized(experiment, knob, size), task), layer=0) for size in sizes
    ]
    T, width = task.length, experiment.model.width
    return len({(x.pairs(T), x.flops(T, width)) for x in attentions}) < 2


def step_bytes(experiment: Experiment, task: Task) -> int:
    """Bytes of one training step, as `footprint` counts them."""
    from longspan.training.footprint import measure_step_memory

    return measure_step_memory(make_model(experiment, task), task, experiment.train).total


def _measuring(experiment: Experiment, task: Task, knob: str) -> Callable[[int], int | None]:
    """Bytes of a step with a size; None where the mechanism cannot have it."""

    def measured(size: int) -> int | None:
        try:
            return step_bytes(_sized(experiment, knob, size), task)
        except (InputError, OptionError):
            return None

    return measured


def _climbed(
    measured: Callable[[int], int | None], length: int, limit: float
) -> Iterator[tuple[int, int | None]]:
    """Sizes 8, 16, 32, ... up to the length with their bytes, until they only grow past the limit.

    Very small sizes may need more than middling ones: going on ends where bytes exceed the limit
    and those of the size before.
    """
    sizes, before = (SMALLEST * 2**n for n in range(64)), None
    for size in itertools.takewhile(lambda size: size <= length, sizes):
        needed = measured(size)
        yield size, needed
        if needed is not None and before is not None and needed > max(limit, before):
            return
        before = needed if needed is not None else before


def _sized(experiment: Experiment, knob: str, size: int) -> Experiment:
    return dataclasses.replace(experiment, options={**experiment.options, knob: size})


def _over(experiment: Experiment, steps: int) -> Experiment:
    return dataclasses.replace(experiment, train=scaled(experiment.train, steps))


def _limit(experiment: Experiment) -> float:
    limit = experiment.budget.limit
    if limit is None:
        raise OptionError(f"a budget of {experiment.budget.kind} has no limit")
    return limit


WAYS: dict[str, Callable[[Experiment, Task, str | None], Way]] = {
    "flops": _by_flops,
    "seconds": _by_seconds,
    "memory": _by_memory,
}
