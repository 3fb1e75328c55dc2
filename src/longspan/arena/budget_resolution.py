"""Budget resolution: the number of steps, the mechanism's size or the micro-batches it allows."""

import bisect
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.arena.experiment import Experiment
from longspan.arena.model import is_dense, make_model
from longspan.arena.run_state import read_state, write_state
from longspan.arena.stages import (
    mean_cost,
    most_steps,
    stage_flops,
    stage_seconds,
    stages_of,
)
from longspan.attention import MECHANISMS
from longspan.bounds import MOST_STEPS
from longspan.config import TrainingConfig, replace_fields
from longspan.errors import InputError, NoMemoryError, OptionError, RunError
from longspan.files import to_json_types
from longspan.launch import launched_processes
from longspan.results import ResolvedBudget
from longspan.tasks import Task

SMALLEST = 8  # smallest size tried under a memory budget
_PATIENCE = 0.1  # share of a budget of seconds that timing its steps may take
MICROBATCHES = "training.gradient_accumulation_steps"
_WARMUP, _INTERVAL = "training.warmup_steps", "training.evaluate_every"


def apply_budget(experiment: Experiment, resolved: ResolvedBudget | None) -> Experiment:
    """Return the experiment as it runs under its resolved budget."""
    if resolved is None:
        return experiment
    return dataclasses.replace(
        experiment, config=replace_fields(experiment.config, resolved.changes)
    )


def resolve_budget(
    experiment: Experiment, task: Task, run_dir: Path, device: str | None = None
) -> ResolvedBudget | None:
    """Find the changes with which an experiment keeps its budget, or read those found before.

    Args:
        experiment: experiment with the requested configuration.
        task: task, open where steps are to be timed.
        run_dir: claimed directory of the run, which keeps the answer.
        device: device, as for `fit`.

    Returns:
        None for a budget of steps, which changes nothing.

    Raises:
        NoMemoryError: no size of the mechanism fits the limit.
        RunError: the limit allows no step, the mechanism rejects every size, or seconds would be
            timed by one of several processes.
    """
    state = read_state(run_dir)
    if state is not None and state.resolved_budget is not None:
        return state.resolved_budget
    resolved = find_resolution(experiment, task, device)
    if resolved is not None and state is not None:
        write_state(run_dir, dataclasses.replace(state, resolved_budget=resolved))
    return resolved


def find_resolution(
    experiment: Experiment, task: Task, device: str | None = None
) -> ResolvedBudget | None:
    """Find the changes with which an experiment keeps its budget; see `resolve_budget`."""
    kind = experiment.config.budget.kind
    return None if kind == "steps" else _RESOLVERS[kind](experiment, task, device)


def _resolve_flops(experiment: Experiment, task: Task, device: str | None) -> ResolvedBudget:
    """Count every example at the task's length, as if no batch were shorter."""
    costs, limit = stage_flops(experiment.config, task), _limit(experiment)
    cost = f"costs {sum(costs):.3g} FLOPs, and the budget is {limit:.3g}"
    return _of_steps(experiment, costs, cost, "flops")


def _resolve_seconds(experiment: Experiment, task: Task, device: str | None) -> ResolvedBudget:
    if launched_processes() > 1:
        raise RunError(
            f"{experiment.name}: a budget of seconds is timed by one process, but several were "
            "launched; use flops=..., or set training.steps"
        )
    training, limit = experiment.config.training, _limit(experiment)
    patience = _PATIENCE * limit / max(1, len(training.stages))
    costs = stage_seconds(experiment, task, device=device, patience=patience)
    cost = f"takes {sum(costs):.3g} s, and the budget is {limit:g} s"
    return _of_steps(experiment, costs, cost, "seconds")


def _of_steps(
    experiment: Experiment, costs: Sequence[float], cost: str, unit: str
) -> ResolvedBudget:
    """Return a budget's steps; refuse none, and more than a configuration may have.

    Args:
        experiment: experiment.
        costs: cost of a step in each stage.
        cost: cost of one step, of several stages of one in each, and the limit, for messages.
        unit: unit of the costs.
    """
    training = experiment.config.training
    steps = most_steps(training, costs, _limit(experiment))
    if steps < 1:
        each = f" in each of {len(costs)} stages" if training.stages else ""
        raise RunError(
            f"{experiment.name}: one step{each} {cost}; raise it, or lower training.batch_size"
        )
    if steps > MOST_STEPS:
        raise RunError(
            f"{experiment.name}: the budget allows {steps:,} steps, and a run has at most "
            f"{MOST_STEPS:,}; lower it"
        )
    measurements: dict[str, Any] = {f"{unit}_per_step": mean_cost(training, costs, steps)}
    if training.stages:
        measurements["stages"] = [*costs]
    return ResolvedBudget(changes=scale_steps(training, steps), measurements=measurements)


def scale_steps(training: TrainingConfig, steps: int) -> dict[str, Any]:
    """Return the changes to another number of steps; warmup and evaluation interval scale.

    So do those of the stages that have their own.
    """

    def scaled(fields: Mapping[str, Any]) -> dict[str, int]:
        warmup, interval = (fields.get(name) for name in (_WARMUP, _INTERVAL))
        changes = {}
        if warmup is not None:
            changes[_WARMUP] = max(1, round(warmup * steps / training.steps)) if warmup else 0
        if interval is not None:
            changes[_INTERVAL] = max(1, -(-interval * steps // training.steps))
        return changes

    stages = [
        dataclasses.replace(stage, changes={**stage.changes, **scaled(stage.changes)})
        for stage in training.stages
    ]
    own = {_WARMUP: training.warmup_steps, _INTERVAL: training.evaluate_every}
    changes: dict[str, Any] = {"training.steps": steps, **scaled(own)}
    if tuple(stages) != training.stages:
        changes["training.stages"] = to_json_types([dataclasses.asdict(x) for x in stages])
    return changes


def _resolve_memory(experiment: Experiment, task: Task, device: str | None) -> ResolvedBudget:
    """Choose the largest power of two for the mechanism's size option that fits the limit.

    Sizes with which the mechanism is full attention are no candidates.
    """
    option, limit = MECHANISMS[experiment.mechanism].size_option, _limit(experiment)
    sizes: Iterable[int | None] = [None]
    if option:
        sizes = _sparse_sizes(experiment, task, f"mechanism.{option}")
    candidates: list[tuple[int | None, int]] = []
    for size in sizes:
        needed = _step_bytes(experiment, task, {f"mechanism.{option}": size} if size else {})
        if needed is not None:
            candidates.append((size, needed))
            # Sizes grow, and with them bytes, except between the smallest ones.
            if needed > limit and len(candidates) > 1 and needed > candidates[-2][1]:
                break
    if not candidates:
        raise RunError(
            f"{experiment.name}: the mechanism rejects every size that a budget of memory tries "
            f"({SMALLEST}, {2 * SMALLEST}, {4 * SMALLEST}, ...); change its other options, or omit "
            "the budget"
        )
    fitting = [(size, needed) for size, needed in candidates if needed <= limit]
    if not fitting:
        least = min(needed for _, needed in candidates)
        raise NoMemoryError(
            f"{experiment.name}: a step needs at least {least:,} bytes, and the budget is "
            f"{limit:,.0f}; raise it, or lower training.batch_size"
        )
    size, needed = fitting[-1]
    return ResolvedBudget(
        changes={f"mechanism.{option}": size} if size else {},
        measurements=to_json_types({"bytes": needed, "candidates": candidates}),
    )


def _resolve_microbatch(experiment: Experiment, task: Task, device: str | None) -> ResolvedBudget:
    """Split the batch into the fewest micro-batches of which a step fits the limit."""
    limit = _limit(experiment)
    batch_size = min(stage.training.batch_size for stage in experiment.config.stages())
    # The documents of a micro-batch are each other's negatives: split, they are another loss.
    most = 1 if task.head.compares_examples else batch_size
    candidates: dict[int, int] = {}

    def fits(number: int) -> bool:
        needed = _step_bytes(experiment, task, {MICROBATCHES: number})
        assert needed is not None, "a batch can be split into any number up to its size"
        candidates[number] = needed
        return needed <= limit

    # Two micro-batches may need more than one, since the second holds the gradients of the first.
    # From two on, more of them need less.
    number = 1 if fits(1) else 2 + bisect.bisect_left(range(2, most + 1), True, key=fits)
    if number > most:
        how = "one example at a time" if most > 1 else "with a batch that cannot be split"
        raise NoMemoryError(
            f"{experiment.name}: a step needs at least {min(candidates.values()):,} bytes, {how}, "
            f"and the budget is {limit:,.0f}; raise it, or set training.gradient_checkpointing=true"
        )
    measurements = {"bytes": candidates[number], "candidates": sorted(candidates.items())}
    return ResolvedBudget(changes={MICROBATCHES: number}, measurements=to_json_types(measurements))


def _sparse_sizes(experiment: Experiment, task: Task, option: str) -> Iterator[int]:
    """Yield powers of two, ascending, with which the mechanism is not full attention."""
    accepted, sparse = None, None
    sizes = [SMALLEST * 2**n for n in range(64) if SMALLEST * 2**n < task.length] or [SMALLEST]
    for size in sizes:
        try:
            dense = is_dense(replace_fields(experiment.config, {option: size}), task)
        except (InputError, OptionError):
            continue  # rejected by the mechanism
        accepted = accepted or size
        if dense:
            break
        yield (sparse := size)
    if accepted is not None and sparse is None:
        raise RunError(
            f"{experiment.name}: {option}={accepted} is full attention on {task.length} tokens, "
            "and no smaller size is tried; raise task.length, lower other sizes of the mechanism, "
            "or leave it out"
        )


def _step_bytes(experiment: Experiment, task: Task, changes: dict) -> int | None:
    """Return the bytes of a training step; None for a size that the mechanism rejects."""
    try:
        config = replace_fields(experiment.config, changes)
        return step_memory(dataclasses.replace(experiment, config=config), task)
    except (InputError, OptionError):
        return None


def step_memory(experiment: Experiment, task: Task) -> int:
    """Return the bytes of a training step, of the largest one of all stages."""
    from longspan.training.footprint import measure_step_memory

    needed = []
    for config, stage_task in stages_of(experiment.config, task):
        model = make_model(dataclasses.replace(experiment, config=config), stage_task)
        needed.append(measure_step_memory(model, stage_task, config.training).total)
    return max(needed)


def _limit(experiment: Experiment) -> float:
    limit = experiment.config.budget.limit
    assert limit is not None, "every budget but that of steps has a limit"
    return limit


Resolver = Callable[[Experiment, Task, str | None], ResolvedBudget]
_RESOLVERS: dict[str, Resolver] = {
    "flops": _resolve_flops,
    "seconds": _resolve_seconds,
    "memory": _resolve_memory,
    "microbatch": _resolve_microbatch,
}
