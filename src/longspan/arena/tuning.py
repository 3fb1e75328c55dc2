"""Grids of hyperparameters: all of a grid is tried on validation, what is chosen is scored on test.

A trial is an experiment like any other, run with `paths.for_trials()`: nobody looks at test then,
and its record lies apart from the results. Xiong et al. 2022 report the best run of a grid (here
the rule "best-run"); the default compares means over seeds, and selects over no seed.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from longspan.arena import protocols
from longspan.arena.budget import Budget
from longspan.arena.executors import Skipped
from longspan.arena.experiment import Experiment, override, under
from longspan.arena.grid import misfit
from longspan.arena.paths import RunPaths
from longspan.arena.run import several
from longspan.attention import MECHANISMS
from longspan.errors import OptionError, RunError, known
from longspan.results import BASELINE, Result, load, load_failure
from longspan.tasks import TASKS

SEED = "seed"  # the one name of a grid that is no field of the recipe
Grid = Mapping[str, Sequence[Any]]

RULES = {
    "mean": (
        "the combination with the highest mean, over the seeds of the grid, of the validation "
        "accuracy of the selected checkpoint; of equal ones the lower mean loss, then the first in "
        "the grid; none that has a failed trial; every seed of it is reported"
    ),
    "best-run": (
        "the trial, over combinations and seeds, with the highest validation accuracy of the "
        "selected checkpoint; of equal ones the lower loss, then the first in the grid; it alone "
        "is reported, so seeds are selected over"
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One combination of a grid with one seed."""

    changes: Mapping[str, Any]  # the values of the grid's fields
    experiment: Experiment

    def __str__(self) -> str:
        """The values, by the names of their fields."""
        return ", ".join(f"{name.split('.')[-1]}={x}" for name, x in self.changes.items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """The grid of one mechanism on one task, and its trials: seeds vary fastest."""

    grid: Grid  # "seed" included
    trials: tuple[Trial, ...]

    @property
    def experiments(self) -> list[Experiment]:
        """The experiments of the trials."""
        return [trial.experiment for trial in self.trials]

    @property
    def what(self) -> str:
        """Mechanism and task, in words."""
        first = self.trials[0].experiment
        return f"{first.mechanism} on {first.task.name}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
    """A trial that has ended: with a record, or with the kind of its failure."""

    trial: Trial
    result: Result | None
    failed: str | None

    def record(self) -> dict[str, Any]:
        """As it stands in a result's `tuning`."""
        score = self.result.scores["validation"] if self.result else None
        return {
            "changes": dict(self.trial.changes),
            "seed": self.trial.experiment.seed,
            "validation_accuracy": score.accuracy if score else None,
            "validation_loss": score.loss if score else None,
            "config_hash": self.trial.experiment.hash,
            "failed": self.failed,
        }


def search(
    protocol: str,
    task: str,
    mechanism: str,
    *,
    grid: Grid | None = None,
    seeds: Iterable[int] | None = None,
    changes: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
) -> Search:
    """The grid of a mechanism on a task.

    Args:
        protocol: name of a protocol, whose own grid for the task is the start.
        task: one of its tasks.
        mechanism: name of a mechanism.
        grid: by dotted field, or "seed": values that take the place of the protocol's, or are
            added to them; those that the protocol's grid does not have count as overrides.
        seeds: take the place of the grid's; the default where it has none is 0.
        changes: fields to override in every trial, by dotted name.
        budget: what every trial is held to; None: what the protocol says.

    Raises:
        UnknownNameError: no such protocol, task, mechanism or field (with near names).
        OptionError: there is no grid, it contradicts `changes` or `seeds`, it would be chosen on
            the test split, or torchrun has started several processes.
    """
    if several():
        raise OptionError(
            "a grid is chosen from by one process, and here are several; leave torchrun out "
            "(--workers N shares GPUs out)"
        )
    chosen = protocols.get(protocol)
    recipe = override(chosen.experiment(task, mechanism, 0), changes or {})
    recipe = under(recipe, budget or recipe.budget)
    own = chosen.grids.get(task, {})
    named = {name: _distinct(name, values) for name, values in {**own, **(grid or {})}.items()}
    there = named.pop(SEED, (0,))
    if seeds is not None and SEED in (grid or {}):
        raise OptionError(f"seeds are given twice, {list(seeds)} and in the grid {list(there)}")
    drawn = there if seeds is None else _distinct(SEED, tuple(seeds))
    _check(recipe, named, changes or {})
    trials = []
    for values in itertools.product(*named.values()):
        combination = dict(zip(named, values, strict=True))
        made = _without_own(override(recipe, combination), recipe, own)
        trials += [
            Trial(changes=combination, experiment=dataclasses.replace(made, seed=seed))
            for seed in drawn
        ]
    return Search(grid={**named, SEED: drawn}, trials=tuple(trials))


def searches(
    protocol: str,
    *,
    tasks: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
    grid: Grid | None = None,
    seeds: Sequence[int] | None = None,
    changes: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    paths: RunPaths | None = None,
) -> tuple[list[Search], list[Skipped]]:
    """The searches of a protocol, one for each task and mechanism; see `search`.

    Args:
        protocol: name of a protocol.
        tasks: some of its tasks; None: all that have a grid.
        mechanisms: names of mechanisms; None: every registered one that can be built here.
        grid: as `search` takes it, and so the four after it.
        seeds: in place of the grid's.
        changes: fields to override in every trial.
        budget: what every trial is held to.
        paths: what has been tried there was built once, as `grid` has it.

    Returns:
        The searches, and what was left out: tasks without a grid and mechanisms that do not fit,
        never one that was asked for by name (that one is refused).
    """
    found: list[Search] = []
    skipped: list[Skipped] = []
    if tasks is None:
        tasks = _with_grid(protocol, grid or {}, changes or {}, skipped)
    named = dict.fromkeys(MECHANISMS if mechanisms is None else mechanisms)
    there = paths and paths.for_trials()
    for task, mechanism in itertools.product(dict.fromkeys(tasks), named):
        made = search(
            protocol, task, mechanism, grid=grid, seeds=seeds, changes=changes, budget=budget
        )
        every, size = made.experiments, len(made.grid[SEED])
        cells = (every[n : n + size] for n in range(0, len(every), size))
        reasons = (misfit(cell, there) for cell in cells)
        if (reason := next(filter(None, reasons), None)) is None:
            found.append(made)
        elif mechanisms is not None:
            raise OptionError(reason)
        else:
            skipped.append(Skipped(made.what, reason))
    return found, skipped


def _with_grid(
    protocol: str, grid: Grid, changes: Mapping[str, Any], skipped: list[Skipped]
) -> list[str]:
    """The tasks of a protocol that a grid can be chosen on; the others that have one are told."""
    chosen, found = protocols.get(protocol), []
    for task in chosen.tasks if grid else chosen.grids:
        # options are another mechanism's
        own = {name: x for name, x in changes.items() if name.startswith("task.")}
        recipe = override(chosen.experiment(task, BASELINE, 0), own)
        if reason := _chosen_on_test(recipe, {**chosen.grids.get(task, {}), **grid}):
            skipped.append(Skipped(task, reason))
        else:
            found.append(task)
    if not (found or skipped):
        raise OptionError(_no_grid(protocol, "any of its tasks"))
    return found


def _no_grid(protocol: str, what: str) -> str:
    return (
        f"protocol {protocol!r} has no grid for {what}; give one, as "
        "--grid train.learning_rate=1e-4,3e-4"
    )


def _check(recipe: Experiment, named: Grid, changes: Mapping[str, Any]) -> None:
    """Refuse a grid from which nothing can be chosen, or not fairly."""
    task = recipe.task.name
    if not named:
        raise OptionError(_no_grid(recipe.protocol, task))
    if twice := sorted(named.keys() & changes.keys()):
        raise OptionError(
            f"{', '.join(twice)} is overridden and in the grid; give its one value as a grid, "
            f"--grid {twice[0]}={changes[twice[0]]}"
        )
    if reason := _chosen_on_test(recipe, named):
        raise OptionError(reason)


def _chosen_on_test(recipe: Experiment, grid: Grid) -> str | None:
    """Why a grid cannot be chosen fairly on the task as some combination has it, or None."""
    task = recipe.task.name
    moved = {name: _distinct(name, x) for name, x in grid.items() if name.startswith("task.")}
    combinations = [dict(zip(moved, x, strict=True)) for x in itertools.product(*moved.values())]
    specs = [override(recipe, combination).task for combination in combinations]
    if not any(TASKS[task](TASKS[task].Options(**x.options)).validation_is_test for x in specs):
        return None
    return (
        f"the validation split of {task} is its test split here, and a grid must not be chosen on "
        "test; hold training examples out, as --set task.validation=5000"
    )


def _distinct(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    """The values, each once."""
    if isinstance(values, str) or not values:
        raise OptionError(f"the grid of {name} is a list of values, got {values!r}")
    return tuple(x for n, x in enumerate(values) if x not in values[:n])


def _without_own(made: Experiment, recipe: Experiment, own: Grid) -> Experiment:
    """The experiment, whose overrides are without values that the protocol itself tries."""
    departures = {
        name: value
        for name, value in made.overrides.items()
        if name in recipe.overrides or value not in own.get(name, ())
    }
    return dataclasses.replace(made, overrides=departures)


def tried(found: Search, paths: RunPaths) -> list[Tried]:
    """What became of the trials of a search.

    Raises:
        RunError: some have not ended, or were not scored on the same examples.
    """
    ended, open_ = [], 0
    there = paths.for_trials()
    for trial in found.trials:
        record, failure = there.record_file(trial.experiment), there.failure_file(trial.experiment)
        if record.exists():
            ended.append(Tried(trial=trial, result=load(record), failed=None))
        elif failure.exists():
            ended.append(Tried(trial=trial, result=None, failed=load_failure(failure).kind))
        else:
            open_ += 1
    if open_:
        raise RunError(
            f"{open_} of {len(found.trials)} trials have not ended, so nothing is chosen; the same "
            "command continues"
        )
    _compare([one.result for one in ended if one.result])
    return ended


def _compare(results: Sequence[Result]) -> None:
    """Refuse trials that were not scored on the same examples."""
    scores = [result.scores["validation"] for result in results]
    if len(examples := {(score.examples, score.majority) for score in scores}) > 1:
        sizes = sorted(size for size, _ in examples)
        raise RunError(
            f"trials were scored on different validation examples ({sizes} of them); a grid must "
            "leave these alone"
        )
    # A grid may cut examples to several lengths: then these are other data, of the same examples.
    made: dict[str, str] = {}
    for result in results:
        first = made.setdefault(repr(result.task_options), result.data_checksum)
        if result.data_checksum != first:
            raise RunError(
                f"trials were scored on different data ({first[:12]} and "
                f"{result.data_checksum[:12]}); remove those of one of them from the trials, and "
                "pass the same source with --data"
            )


def choose(ended: Sequence[Tried], rule: str) -> list[Tried]:
    """The trials to be scored on test: all seeds of a combination, or one trial; see `RULES`.

    Raises:
        UnknownNameError: no such rule.
        RunError: every candidate has failed.
    """
    if known(rule, RULES, "rule") == "mean":
        found = itertools.groupby(ended, key=lambda one: one.trial.changes)
        groups = [list(group) for _, group in found]
    else:
        groups = [[one] for one in ended]
    whole = [group for group in groups if not any(one.failed for one in group)]
    if not whole:
        kinds = ", ".join(sorted({one.failed for one in ended if one.failed}))
        raise RunError(f"every combination of the grid has a failed trial ({kinds})")
    return max(whole, key=_merit)


def _merit(group: Sequence[Tried]) -> tuple[float, float]:
    scores = [one.result.scores["validation"] for one in group if one.result]
    accuracy = statistics.fmean(score.accuracy for score in scores)
    return accuracy, -statistics.fmean(score.loss for score in scores)


def tuning(found: Search, ended: Sequence[Tried], chosen: Sequence[Tried], rule: str) -> dict:
    """What a result says about how its recipe was chosen: the rule and the whole grid."""
    values: dict[str, Any] = dict(chosen[0].trial.changes)
    if rule == "best-run":
        values[SEED] = chosen[0].trial.experiment.seed
    return {
        "rule": f"{rule}: {RULES[rule]}",
        "grid": {name: list(several) for name, several in found.grid.items()},
        "chosen": values,
        "trials": [one.record() for one in ended],
    }
