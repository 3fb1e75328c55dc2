"""Hyperparameter search: every combination of a grid is trained and scored on validation.

A trial is an experiment whose test split is never read and whose record is kept apart from the
results. Xiong et al. 2022 report the best run of a grid (rule "best-run" here); the default
compares means over seeds, so it does not select over seeds.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from longspan.arena import protocols
from longspan.arena.executors import Skipped
from longspan.arena.experiment import Experiment, override
from longspan.arena.grid import find_cell_refusal, row_pairs, with_sources
from longspan.arena.paths import RunPaths
from longspan.arena.protocols.scopes import check_limits
from longspan.arena.protocols.starts import START_TASK
from longspan.arena.run import is_distributed
from longspan.config import Budget
from longspan.errors import OptionError
from longspan.results import BASELINE
from longspan.tasks import TASKS, build

SEED = "seed"  # the one name of a grid that is not a field of the configuration
Grid = Mapping[str, Sequence[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Values to search, for any protocol, task and mechanism.

    Attributes:
        grid: values by dotted field or "seed"; they replace those of the protocol's grid, or add
            fields to it. Added fields count as overrides.
        seeds: seeds in place of the grid's; None: the grid's, or the protocol's.
        changes: fields to override, by dotted name. Names here and in `grid` may be limited to a
            task or row, as `longspan.arena.protocols.scopes` describes.
        budget: quantity to hold equal; None: that of the protocol.
    """

    grid: Grid = dataclasses.field(default_factory=dict)
    seeds: Sequence[int] | None = None
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    budget: Budget | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One combination of a grid with one seed."""

    changes: Mapping[str, Any]  # values of the grid's fields
    experiment: Experiment

    def __str__(self) -> str:
        """Return the values by the names of their fields."""
        return ", ".join(f"{name.split('.')[-1]}={x}" for name, x in self.changes.items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """Trials of one mechanism on one task; the seed varies fastest."""

    grid: Grid  # "seed" included
    trials: tuple[Trial, ...]

    @property
    def experiments(self) -> list[Experiment]:
        """Experiments of the trials."""
        return [trial.experiment for trial in self.trials]

    @property
    def title(self) -> str:
        """Row and task, for messages."""
        first = self.trials[0].experiment
        return f"{first.row_name} on {first.task}"


def search(protocol: str, task: str, mechanism: str, space: SearchSpace) -> Search:
    """Return the trials of a mechanism, or of a reference row, on a task of a protocol.

    Raises:
        UnknownNameError: there is no such protocol, task, row or field.
        OptionError: there is no grid, it contradicts the changes or seeds, it would select on the
            test split, or torchrun has started several processes.
    """
    if is_distributed():
        raise OptionError(
            "a search runs in one process, but torchrun has started several; leave torchrun out "
            "(--workers N assigns GPUs round-robin)"
        )
    definition = protocols.get(protocol)
    changes = definition.changes(task, mechanism, space.changes)
    added = definition.changes(task, mechanism, space.grid)
    base = definition.row(task, mechanism, 0, space.changes, space.budget)
    protocol_grid = definition.changes(task, mechanism, definition.grids.get(task, {}))
    grid = {name: _distinct(name, values) for name, values in {**protocol_grid, **added}.items()}
    grid_seeds = grid.pop(SEED, definition.seeds)
    if space.seeds is not None and SEED in space.grid:
        raise OptionError(
            f"seeds are given twice: {list(space.seeds)}, and {list(grid_seeds)} in the grid"
        )
    seeds = grid_seeds if space.seeds is None else _distinct(SEED, tuple(space.seeds))
    _check(base, grid, changes)
    trials: list[Trial] = []
    for values in itertools.product(*grid.values()):
        combination = dict(zip(grid, values, strict=True))
        # For the row alone: the run that trials start from has no values of their grid.
        limited = {
            f"{task}.{mechanism}.{name}" if "." in name else name: value
            for name, value in combination.items()
        }
        every = {**space.changes, **limited}
        experiment = definition.row(task, mechanism, 0, every, space.budget)
        experiment = _without_protocol_values(experiment, base, protocol_grid)
        for seed in seeds:
            trials.append(Trial(changes=combination, experiment=experiment.with_seed(seed)))
    return Search(grid={**grid, SEED: seeds}, trials=tuple(trials))


def searches(
    protocol: str,
    space: SearchSpace,
    *,
    tasks: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
    paths: RunPaths | None = None,
) -> tuple[list[Search], list[Skipped]]:
    """Return the searches of a protocol, one for each task and mechanism.

    Args:
        protocol: name of a protocol.
        space: what to search.
        tasks: tasks of the protocol; None: all that have a grid.
        mechanisms: names of mechanisms, reference rows and variants; None: the rows of the
            protocol, such as every registered mechanism that can be built.
        paths: finished trials there are not built to test whether they fit; None: all are built.

    Returns:
        The searches, and what was left out: tasks without a grid, mechanisms that do not fit, and
        tasks that a reference row does not exist for. A task or mechanism requested by name is
        never left out.

    Raises:
        UnknownNameError: see `search`.
        OptionError: see `search`; or a mechanism requested by name does not fit.
    """
    row_searches: list[Search] = []
    skipped: list[Skipped] = []
    if tasks is None:
        tasks = _tasks_with_grid(protocol, space, skipped)
    definition = protocols.get(protocol)
    rows = dict.fromkeys(definition.default_rows if mechanisms is None else mechanisms)
    trial_paths = paths and paths.for_trials()
    pairs, left_out = row_pairs(definition, dict.fromkeys(tasks), rows)
    bases = [definition.row(*pair, 0, space.changes, space.budget) for pair in pairs]
    check_limits(space.grid, bases, definition.row_names)
    starts = [name for name in space.grid if name.endswith(START_TASK)]
    check_limits([*space.changes, *starts], with_sources(bases), definition.row_names)
    skipped += left_out
    for task, mechanism in pairs:
        if TASKS[task].info.sizes.get("test") == 0:
            raise OptionError(
                f"a search scores what it has selected on test, and {task} has no test split; "
                "import the texts again with --test 0.1 --replace"
            )
        row_search = search(protocol, task, mechanism, space)
        every, size = row_search.experiments, len(row_search.grid[SEED])
        cells = (every[n : n + size] for n in range(0, len(every), size))
        reasons = (find_cell_refusal(cell, trial_paths) for cell in cells)
        if (reason := next(filter(None, reasons), None)) is None:
            row_searches.append(row_search)
        elif mechanisms is not None:
            raise OptionError(reason)
        else:
            skipped.append(Skipped(row_search.title, reason))
    return row_searches, skipped


def sources_of(searches: Iterable[Search]) -> list[Experiment]:
    """Return the runs that the trials of searches start from, each once, in their order."""
    return with_sources(x for search in searches for y in search.experiments for x in y.sources)


def _tasks_with_grid(protocol: str, space: SearchSpace, skipped: list[Skipped]) -> list[str]:
    """Return the tasks of a protocol to search on; skip those that would select on test."""
    definition, tasks = protocols.get(protocol), []
    available = definition.available_tasks
    for task in available if space.grid else (x for x in available if x in definition.grids):
        # Options of a mechanism do not apply to the baseline.
        changes = definition.changes(task, BASELINE, space.changes)
        task_changes = {name: x for name, x in changes.items() if name.startswith("task.")}
        base = override(definition.experiment(task, BASELINE, 0), task_changes)
        grid, added = (
            definition.changes(task, BASELINE, x)
            for x in (definition.grids.get(task, {}), space.grid)
        )
        if reason := _selects_on_test(base, {**grid, **added}):
            skipped.append(Skipped(task, reason))
        else:
            tasks.append(task)
    if not (tasks or skipped):
        raise OptionError(_no_grid(protocol, "any of its tasks"))
    return tasks


def _no_grid(protocol: str, task: str) -> str:
    return (
        f"protocol {protocol!r} has no grid for {task}; pass one, such as "
        "--grid training.learning_rate=1e-4,3e-4"
    )


def _check(base: Experiment, grid: Grid, changes: Mapping[str, Any]) -> None:
    """Refuse an empty grid, a contradictory one, and selection on test."""
    if not grid:
        raise OptionError(_no_grid(base.protocol, base.task))
    if twice := sorted(grid.keys() & changes.keys()):
        raise OptionError(
            f"{', '.join(twice)} is both overridden and in the grid; pass its one value as a grid, "
            f"--grid {twice[0]}={changes[twice[0]]}"
        )
    if reason := _selects_on_test(base, grid):
        raise OptionError(reason)


def _selects_on_test(base: Experiment, grid: Grid) -> str | None:
    """Return why some combination of a grid would be selected on test, or None."""
    fields = {name: _distinct(name, x) for name, x in grid.items() if name.startswith("task.")}
    for values in itertools.product(*fields.values()):
        combination = dict(zip(fields, values, strict=True))
        config = override(base, combination).config.task
        if build(config.name, config.options).validation_is_test:
            return (
                f"the validation split of {base.task} is its test split here, and a search must "
                "not select on test; hold training examples out, as --set task.validation=5000"
            )
    return None


def _distinct(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values without repetitions."""
    if isinstance(values, str) or not values:
        raise OptionError(f"the grid of {name} must be a list of values, got {values!r}")
    return tuple(x for n, x in enumerate(values) if x not in values[:n])


def _without_protocol_values(experiment: Experiment, base: Experiment, grid: Grid) -> Experiment:
    """Remove values that the protocol itself searches from the overrides."""
    overrides = {
        name: value
        for name, value in experiment.overrides.items()
        if name in base.overrides or value not in grid.get(name, ())
    }
    return dataclasses.replace(experiment, overrides=overrides)
