"""Plans of grids: the cost of each run before it starts, and the order of execution."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.run_state import FinishedRuns, read_state
from longspan.config import RunConfig
from longspan.errors import LongspanError, NoMemoryError, RunError
from longspan.results import (
    FAILED,
    ResolvedBudget,
    Result,
    load_result,
)
from longspan.space import check_memory
from longspan.tasks import Task, build
from longspan.tasks.base import ProgressCallback
from longspan.training.checkpoint_names import saved_step

State = Literal["new", "interrupted", "finished", "failed"]
_MEASURED_STEPS = 3
# Training fields that decide the time of a step.
_STEP_FIELDS = (
    *("batch_size", "gradient_accumulation_steps", "precision", "gradient_checkpointing", "stages"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run before it starts; figures are those of the whole run.

    Attributes:
        name: `<row>-<hash>-<seed>`.
        protocol: name of the protocol.
        task: name of the task.
        mechanism: name of the mechanism.
        row_name: name of the reference row, else of the mechanism.
        seed: seed.
        state: state of its files.
        reason: why it failed, or cannot run: under its budget, or in the memory of this machine.
        steps: optimizer steps.
        done: steps before the last checkpoint.
        num_parameters: parameters of the model.
        full_num_parameters: parameters of the same model with `full`.
        flops: forward FLOPs of one example of the task's length.
        training_flops: FLOPs of training, every example at the length of its stage.
        seconds: training time, without evaluation.
        seconds_from: "record" (a finished run of the same shape on this machine), "measured"
            (steps timed now), or "FLOPs" (at the rate of matrix products, a lower bound).
        memory: bytes of one training step, of the largest of all stages; None: not measured.
        size_option: option and value that a budget of memory chose.
    """

    name: str
    protocol: str
    task: str
    mechanism: str
    row_name: str
    seed: int
    state: State
    reason: str | None = None
    steps: int
    done: int
    num_parameters: int
    full_num_parameters: int | None
    flops: int
    training_flops: int
    seconds: float
    seconds_from: str
    memory: int | None = None
    size_option: tuple[str, int] | None = None

    @property
    def remaining(self) -> float:
        """Share of the steps that remain."""
        return 1 - self.done / self.steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over what remains to be run; of memory the maximum."""

    runs: int
    states: dict[str, int]
    training_flops: int
    seconds: float
    memory: int | None


def plan(
    experiments: Sequence[Experiment],
    paths: RunPaths,
    *,
    measure: bool = False,
    on_build: ProgressCallback | None = None,
) -> Iterator[PlannedRun]:
    """Yield the cost of each run; nothing is trained and nothing is written.

    Args:
        experiments: runs to plan.
        paths: paths of records and checkpoints, and the device to estimate for.
        measure: time a few real training steps of each configuration without a record, and count
            the memory of a step. Builds data sets.
        on_build: receives the progress of building them.

    Raises:
        DataError: a record is invalid, or the data to measure with is missing.
        RunError: a run directory cannot be read.
    """
    planner = _Planner(paths, measure, on_build)
    for experiment in experiments:
        yield planner.plan(experiment)


def sum_up(rows: Sequence[PlannedRun]) -> Totals:
    """Sum up what remains; failed runs are not retried by themselves."""
    left = [row for row in rows if row.state in ("new", "interrupted") and row.reason is None]
    states = {state: sum(row.state == state for row in rows) for state in get_args(State)}
    memory = [row.memory for row in left if row.memory is not None]
    return Totals(
        runs=len(rows),
        states={state: count for state, count in states.items() if count},
        training_flops=sum(round(row.training_flops * row.remaining) for row in left),
        seconds=sum(row.seconds * row.remaining for row in left),
        memory=max(memory, default=None),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Cost:
    """Cost that the seeds of a configuration share."""

    num_parameters: int
    full_num_parameters: int
    flops: int
    step_flops: float
    memory: int | None
    refusal: str | None
    seconds: float  # of a step
    seconds_from: str


class _Planner:
    """Plan runs; figures that several runs share are computed once."""

    def __init__(self, paths: RunPaths, measure: bool, on_build: ProgressCallback | None):
        self.paths, self.measure, self.on_build = paths, measure, on_build
        self.tasks: dict[str, Task] = {}
        self.costs: dict[str, _Cost] = {}
        self.resolved: dict[str, ResolvedBudget | LongspanError | None] = {}
        self.records: dict[Path, list[Result]] = {}

    def plan(self, experiment: Experiment) -> PlannedRun:
        from longspan.arena.budget_resolution import apply_budget

        path = self.paths.record_file(experiment)
        if path.exists():
            return _finished_run(experiment, load_result(path))
        task = self._task(experiment)
        try:
            resolved = self._resolve(experiment, task)
        except (NoMemoryError, RunError) as error:
            return self._row(experiment, experiment, task, reason=str(error))
        row = self._row(experiment, apply_budget(experiment, resolved), task)
        return dataclasses.replace(row, size_option=_size_option(resolved))

    def _row(
        self, requested: Experiment, effective: Experiment, task: Task, reason: str | None = None
    ) -> PlannedRun:
        config, budget = effective.config, requested.config.budget
        cost = self._cost(effective, task)
        reason = reason or cost.refusal
        steps = config.training.steps
        if budget.kind == "seconds" and budget.limit and config == requested.config:
            steps = max(1, int(budget.limit / cost.seconds))
        if (failure := FinishedRuns(self.paths).failure(requested)) is not None:
            reason = failure.reason
        done = saved_step(self.paths.run_dir(requested))
        started: State = "new" if done is None else "interrupted"
        return PlannedRun(
            **_identity(requested),
            state=started if failure is None else "failed",
            reason=reason,
            steps=steps,
            done=done or 0,
            num_parameters=cost.num_parameters,
            full_num_parameters=cost.full_num_parameters,
            flops=cost.flops,
            training_flops=round(steps * cost.step_flops),
            seconds=steps * cost.seconds,
            seconds_from=cost.seconds_from,
            memory=cost.memory,
        )

    def _task(self, experiment: Experiment) -> Task:
        config = experiment.config.task
        if config.key not in self.tasks:
            self.tasks[config.key] = build(config.name, config.options)
            if self.measure:
                self.tasks[config.key].open(self.paths.cache, self.paths.data, self.on_build)
        return self.tasks[config.key]

    def _resolve(self, experiment: Experiment, task: Task) -> ResolvedBudget | None:
        """Return the budget's changes, stored or found now; seconds are not timed."""
        from longspan.arena.budget_resolution import find_resolution

        state = read_state(self.paths.run_dir(experiment))
        if state is not None and state.resolved_budget is not None:
            return state.resolved_budget
        if experiment.config.budget.kind == "seconds":
            return None
        if experiment.hash not in self.resolved:
            try:
                self.resolved[experiment.hash] = find_resolution(experiment, task)
            except LongspanError as error:
                self.resolved[experiment.hash] = error
        resolved = self.resolved[experiment.hash]
        if isinstance(resolved, LongspanError):
            raise resolved
        return resolved

    def _cost(self, effective: Experiment, task: Task) -> _Cost:
        from longspan.arena.model import forward_flops, full_num_parameters, num_parameters
        from longspan.arena.stages import mean_step_flops

        if effective.hash not in self.costs:
            config = effective.config
            parameters, step_flops = num_parameters(config, task), mean_step_flops(config, task)
            memory, refusal = self._fit(effective, task, parameters)
            can_run = self.measure and refusal is None
            seconds, source = self._time(effective, task, None if can_run else step_flops)
            self.costs[effective.hash] = _Cost(
                num_parameters=parameters,
                full_num_parameters=full_num_parameters(config, task),
                flops=forward_flops(config, task),
                step_flops=step_flops,
                memory=memory,
                refusal=refusal,
                seconds=seconds,
                seconds_from=source,
            )
        return self.costs[effective.hash]

    def _fit(
        self, effective: Experiment, task: Task, parameters: int
    ) -> tuple[int | None, str | None]:
        """Return the bytes of a step, if they are to be measured, and why a run does not fit."""
        from longspan.arena.budget_resolution import step_memory
        from longspan.arena.model import TRAINING_COPIES, check_parameters

        name, device, memory = effective.mechanism, self.paths.device_type, None
        # Shards of processes are checked by none of them alone.
        copies = 1 if self.paths.parallel == "fsdp" else TRAINING_COPIES
        try:
            check_parameters(name, parameters, copies, device)
            memory = step_memory(effective, task) if self.measure else None
            if memory is not None and device == "cpu":  # whose operators the count is of
                remedy = "lower training.batch_size, or use --budget microbatch=SIZE"
                check_memory(memory, f"a training step of {name}", remedy)
        except NoMemoryError as error:
            return memory, str(error)
        return memory, None

    def _time(
        self, effective: Experiment, task: Task, step_flops: float | None
    ) -> tuple[float, str]:
        """Return the seconds of a step and their origin; with FLOPs, no step is run."""
        for result in self._neighbors(effective):
            is_same_machine = result.device == self._device and result.world_size == 1
            if is_same_machine and _shape(result.effective_config) == _shape(effective.config):
                return result.seconds / result.steps, "record"
        if step_flops is not None:
            return step_flops / self._rate, "FLOPs"
        from longspan.arena.stages import mean_step_seconds

        timing = {"device": self.paths.device, "timed_steps": _MEASURED_STEPS}
        return mean_step_seconds(effective, task, **timing), "measured"

    def _neighbors(self, experiment: Experiment) -> list[Result]:
        """Return the records of the experiment's protocol and task."""
        folder = self.paths.record_file(experiment).parent
        if folder not in self.records:
            files = sorted(p for p in folder.glob("*.json") if not p.name.endswith(FAILED))
            self.records[folder] = [load_result(path) for path in files]
        return self.records[folder]

    @functools.cached_property
    def _device(self) -> str:
        from longspan.arena.provenance import device_name

        return device_name(self.paths.device_type)

    @functools.cached_property
    def _rate(self) -> float:
        import torch

        from longspan.training.timing import measure_matmul_rate

        return measure_matmul_rate(torch.device(self.paths.device_type))


def _identity(experiment: Experiment) -> dict[str, Any]:
    names = ("name", "protocol", "task", "mechanism", "row_name", "seed")
    return {name: getattr(experiment, name) for name in names}


def _finished_run(experiment: Experiment, result: Result) -> PlannedRun:
    from longspan.arena.stages import mean_step_flops, training_flops

    config = result.effective_config
    if config.training.stages:
        step = mean_step_flops(config, build(config.task.name, config.task.options))
    else:
        step = training_flops(result.flops, config.training.batch_size)
    return PlannedRun(
        **_identity(experiment),
        state="finished",
        steps=result.steps,
        done=result.steps,
        num_parameters=result.num_parameters,
        full_num_parameters=result.full_num_parameters,
        flops=result.flops,
        training_flops=round(result.steps * step),
        seconds=result.seconds,
        seconds_from="record",
        size_option=_size_option(result.resolved_budget),
    )


def _size_option(resolved: ResolvedBudget | None) -> tuple[str, int] | None:
    """Return the mechanism's option that a budget of memory chose, with its value."""
    changes = resolved.changes if resolved else {}
    sizes = [(x.partition(".")[2], n) for x, n in changes.items() if x.startswith("mechanism.")]
    return sizes[0] if sizes else None


def _shape(config: RunConfig) -> list[Any]:
    """Return the parts of a configuration that decide the time of a step."""
    training = config.training
    fields = [getattr(training, x) for x in _STEP_FIELDS]
    return [config.task, config.mechanism, config.model, *fields]
