"""What a grid will cost before it runs, and the order in which its results come early."""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from longspan.arena.budget import training_flops
from longspan.arena.experiment import Experiment
from longspan.arena.paths import RunPaths
from longspan.arena.resume import behind
from longspan.errors import LongspanError, NoMemoryError, RunError
from longspan.files import plain
from longspan.results import BASELINE, FAILED, Result, load, load_failure
from longspan.tasks import Task, build

if TYPE_CHECKING:
    from longspan.arena.meeting import Met

State = Literal["new", "half done", "finished", "failed"]
MEASURED = 3  # steps
# Fields of the training that a step's time follows from.
PACE = ("batch", "accumulate", "precision", "gradient_checkpointing")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """One run before it is started; what is counted is of the whole run.

    Attributes:
        name: `<mechanism>-<hash>-<seed>`.
        state: what its files say.
        reason: why it failed, or cannot run under its budget.
        steps: of the whole run; under a budget of seconds not measured yet, as many as `seconds`
            of a step would give.
        done: steps that are behind it.
        parameters: of the model.
        full_parameters: of the same model with full attention.
        flops: forward, of one example of the task's length.
        training_flops: forward and backward over all steps, every example at that length.
        seconds: of training, evaluation not counted.
        seconds_from: "record" (a finished run of the same shape on this machine), "measured"
            (steps taken now), or "FLOPs" (at the speed of matrix products: at the least).
        memory: bytes of one training step, as `training.footprint` counts them; None: the run has
            ended.
        option: what the budget of memory chose: the option's name and value.
    """

    name: str
    protocol: str
    task: str
    mechanism: str
    seed: int
    state: State
    reason: str | None
    steps: int
    done: int
    parameters: int
    full_parameters: int | None
    flops: int
    training_flops: int
    seconds: float
    seconds_from: str
    memory: int | None
    option: tuple[str, int] | None

    @property
    def left(self) -> float:
        """The share of the steps that is still to be done."""
        return 1 - self.done / self.steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over what is left to do; of memory the most."""

    runs: int
    states: dict[str, int]
    training_flops: int
    seconds: float
    memory: int


def ordered(
    experiments: Sequence[Experiment], cost: Callable[[Experiment], float] | None = None
) -> list[Experiment]:
    """Experiments in the order in which tables come early.

    Seeds outermost, as they come: the first table has every mechanism once. Within a seed the
    baseline first, since others are compared with it; then mechanisms by what they cost on all
    their tasks together, the cheapest first, each on all its tasks, cheap ones first: the rows of
    the table are complete one after the other.

    Args:
        experiments: in any order; equal costs keep it.
        cost: of a run; None: its operations.
    """
    cost = Operations() if cost is None else cost
    costs = [float(cost(x)) for x in experiments]
    totals: dict[tuple[int, str], float] = defaultdict(float)
    for x, own in zip(experiments, costs, strict=True):
        totals[x.seed, x.mechanism] += own
    seeds = list(dict.fromkeys(x.seed for x in experiments))
    rows = list(dict.fromkeys((x.seed, x.mechanism) for x in experiments))

    def rank(number: int) -> tuple[int, bool, float, int, float]:
        x = experiments[number]
        total, place = totals[x.seed, x.mechanism], rows.index((x.seed, x.mechanism))
        return seeds.index(x.seed), x.mechanism != BASELINE, total, place, costs[number]

    return [experiments[number] for number in sorted(range(len(experiments)), key=rank)]


class Operations:
    """Training operations of runs as the recipe has them, every example at the task's length.

    What seeds have in common is counted once; what has ended costs nothing.
    """

    def __init__(self, paths: RunPaths | None = None):
        """Look for what has ended in these paths; None: nowhere."""
        self.paths = paths
        self.counted: dict[str, int] = {}

    def __call__(self, experiment: Experiment) -> int:
        """Count; the models' imports come with the first run that has not ended."""
        if self.paths is not None and self.paths.record_file(experiment).exists():
            return 0
        if experiment.hash not in self.counted:
            from longspan.arena.model import forward_flops

            task = build(experiment.task.name, dict(experiment.task.options))
            step = training_flops(forward_flops(experiment, task), experiment.train.batch)
            self.counted[experiment.hash] = experiment.train.steps * step
        return self.counted[experiment.hash]


def plan(
    experiments: Sequence[Experiment], paths: RunPaths, *, measure: bool = False
) -> Iterator[Planned]:
    """What each run is, and will cost; nothing is trained and nothing written.

    Args:
        experiments: what to look at.
        paths: where their records and checkpoints are; its device is that of the estimates.
        measure: take a few real training steps of each configuration that has no record yet. Data
            sets are built then.

    Raises:
        DataError: a record is malformed, or there is no data to measure with.
        RunError: what a folder holds cannot be read.
    """
    planner = _Planner(paths, measure)
    for experiment in experiments:
        yield planner.planned(experiment)


def totals(rows: Sequence[Planned]) -> Totals:
    """Sums of what is left to do; what failed is not run again by itself."""
    left = [row for row in rows if row.state in ("new", "half done") and row.reason is None]
    states = {state: sum(row.state == state for row in rows) for state in get_args(State)}
    return Totals(
        runs=len(rows),
        states={state: count for state, count in states.items() if count},
        training_flops=sum(round(row.training_flops * row.left) for row in left),
        seconds=sum(row.seconds * row.left for row in left),
        memory=max((row.memory or 0 for row in left), default=0),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Cost:
    """What seeds have in common."""

    parameters: int
    full_parameters: int
    flops: int
    memory: int


class _Planner:
    """Looks at runs; what several have in common is found once."""

    def __init__(self, paths: RunPaths, measure: bool):
        self.paths, self.measure = paths, measure
        self.tasks: dict[str, Task] = {}
        self.costs: dict[str, _Cost] = {}
        self.found: dict[str, Met | LongspanError] = {}
        self.clocked: dict[str, tuple[float, str]] = {}
        self.records: dict[Path, list[Result]] = {}

    def planned(self, experiment: Experiment) -> Planned:
        path = self.paths.record_file(experiment)
        if path.exists():
            return _finished(experiment, load(path))
        task = self._task(experiment)
        try:
            met = self._met(experiment, task)
        except (NoMemoryError, RunError) as error:
            return self._row(experiment, experiment, task, reason=str(error))
        row = self._row(experiment, met.experiment, task)
        option = met.record.get("option")
        if option is not None:
            row = dataclasses.replace(row, option=(option, met.record["value"]))
        return row

    def _row(
        self, asked: Experiment, runs: Experiment, task: Task, reason: str | None = None
    ) -> Planned:
        cost = self._cost(runs, task)
        step = training_flops(cost.flops, runs.train.batch)
        per_step, source = self._per_step(runs, task, step)
        steps = runs.train.steps
        if asked.budget.kind == "seconds" and asked.budget.limit and runs.train == asked.train:
            steps = max(1, int(asked.budget.limit / per_step))
        failure = self.paths.failure_file(asked)
        if failure.exists():
            reason = load_failure(failure).reason
        done = behind(self.paths.run_dir(asked))
        return Planned(
            name=asked.name,
            protocol=asked.protocol,
            task=asked.task.name,
            mechanism=asked.mechanism,
            seed=asked.seed,
            state="failed" if failure.exists() else "new" if done is None else "half done",
            reason=reason,
            steps=steps,
            done=done or 0,
            parameters=cost.parameters,
            full_parameters=cost.full_parameters,
            flops=cost.flops,
            training_flops=steps * step,
            seconds=steps * per_step,
            seconds_from=source,
            memory=cost.memory,
            option=None,
        )

    def _task(self, experiment: Experiment) -> Task:
        key = experiment.task.key
        if key not in self.tasks:
            self.tasks[key] = build(experiment.task.name, dict(experiment.task.options))
            if self.measure:
                self.tasks[key].open(self.paths.cache, self.paths.data)
        return self.tasks[key]

    def _met(self, experiment: Experiment, task: Task) -> "Met":
        """How a budget is met: as was written down, or searched for; seconds are not measured."""
        from longspan.arena.meeting import Met, found, met_before

        met = met_before(experiment, self.paths.run_dir(experiment))
        if met is not None:
            return met
        if experiment.budget.kind == "seconds":
            return Met(experiment=experiment, record={})
        if experiment.hash not in self.found:
            try:
                self.found[experiment.hash] = found(experiment, task)
            except LongspanError as error:
                self.found[experiment.hash] = error
        answer = self.found[experiment.hash]
        if isinstance(answer, LongspanError):
            raise answer
        return answer

    def _cost(self, runs: Experiment, task: Task) -> _Cost:
        from longspan.arena.model import forward_flops, full_parameters, make_model
        from longspan.models import parameters
        from longspan.training.footprint import measure_step_memory

        if runs.hash not in self.costs:
            model = make_model(runs, task)
            self.costs[runs.hash] = _Cost(
                parameters=parameters(model),
                full_parameters=full_parameters(runs, task),
                flops=forward_flops(runs, task),
                memory=measure_step_memory(model, task, runs.train).total,
            )
        return self.costs[runs.hash]

    def _per_step(self, runs: Experiment, task: Task, step: int) -> tuple[float, str]:
        """Seconds of a step, and where they come from."""
        if runs.hash not in self.clocked:
            self.clocked[runs.hash] = self._clocked(runs, task, step)
        return self.clocked[runs.hash]

    def _clocked(self, runs: Experiment, task: Task, step: int) -> tuple[float, str]:
        for result in self._beside(runs):
            alone = result.device == self._device and result.processes == 1
            if alone and _shape_of(result) == _shape(runs):
                return result.seconds / result.steps, "record"
        if not self.measure:
            return step / self._rate, "FLOPs"
        from longspan.arena.model import make_model
        from longspan.training.timing import measure_step_seconds

        model, device = make_model(runs, task), self.paths.device
        seconds = measure_step_seconds(
            model, task, runs.train, seed=runs.seed, device=device, counted=MEASURED
        )
        return seconds, "measured"

    def _beside(self, experiment: Experiment) -> list[Result]:
        """The records of the experiment's protocol and task."""
        folder = self.paths.record_file(experiment).parent
        if folder not in self.records:
            files = sorted(p for p in folder.glob("*.json") if not p.name.endswith(FAILED))
            self.records[folder] = [load(path) for path in files]
        return self.records[folder]

    @functools.cached_property
    def _device(self) -> str:
        from longspan.arena.record import device_name

        return device_name(self.paths.device_type)

    @functools.cached_property
    def _rate(self) -> float:
        import torch

        from longspan.training.timing import measure_matmul_rate

        return measure_matmul_rate(torch.device(self.paths.device_type))


def _finished(experiment: Experiment, result: Result) -> Planned:
    step = training_flops(result.flops, experiment.train.batch)
    option = result.budget.get("option")
    return Planned(
        name=experiment.name,
        protocol=result.protocol,
        task=result.task,
        mechanism=result.mechanism,
        seed=result.seed,
        state="finished",
        reason=None,
        steps=result.steps,
        done=result.steps,
        parameters=result.parameters,
        full_parameters=result.full_parameters,
        flops=result.flops,
        training_flops=result.steps * step,
        seconds=result.seconds,
        seconds_from="record",
        memory=None,
        option=None if option is None else (option, result.budget["value"]),
    )


def _shape_of(result: Result) -> dict[str, Any]:
    """What of a record decides how long a step takes."""
    return {
        "task": result.task_options,
        "mechanism": result.mechanism,
        "options": result.options,
        "model": result.model,
        # a record of an earlier version may lack one: then it is of no shape
        **{name: result.training.get(name) for name in PACE},
    }


def _shape(experiment: Experiment) -> dict[str, Any]:
    """The same of an experiment."""
    config = plain(experiment.config())
    return {
        "task": config["task"]["options"],
        **{name: config[name] for name in ("mechanism", "options", "model")},
        **{name: config["train"][name] for name in PACE},
    }
