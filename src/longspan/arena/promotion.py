"""From trials to results: what a grid's rule chose is scored on test, once, without training."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan.arena.budget import Budget
from longspan.arena.executors import Executor, GridCallback, Skipped
from longspan.arena.experiment import Experiment
from longspan.arena.grid import arena
from longspan.arena.lock import hold_lock
from longspan.arena.paths import RunPaths
from longspan.arena.tuning import RULES, Grid, Search, choose, searches, tried, tuning
from longspan.errors import LongspanError, RunError, known
from longspan.files import plain
from longspan.results import FAILED, Result, as_asked, load, pack, write_record
from longspan.tasks import Task, build
from longspan.tasks.base import Report


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settled:
    """What came of searches."""

    results: list[Result]
    failed: list[Skipped]
    moved: list[Skipped]  # records of earlier choices, with their new paths


def tune(
    protocol: str,
    paths: RunPaths,
    callback: GridCallback,
    *,
    tasks: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
    grid: Grid | None = None,
    seeds: Sequence[int] | None = None,
    changes: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    rule: str = "mean",
    executor: Executor | None = None,
    retry_failed: bool = False,
) -> Settled:
    """Try the grids of a protocol on validation, choose by a rule, and score the choice on test.

    The same call continues what was interrupted. With a larger grid it runs what is missing and
    chooses anew; records of an earlier choice are moved aside, never removed.

    Args:
        protocol: name of a protocol.
        paths: where trials and results go.
        callback: told about trials and results.
        tasks: some of its tasks; None: all that have a grid.
        mechanisms: names of mechanisms; None: every registered one that can be built here.
        grid: values by dotted field or "seed", over those of the protocol's grid.
        seeds: in place of the grid's.
        changes: fields to override in every trial, by dotted name.
        budget: what every trial is held to; None: what the protocol says.
        rule: one of `RULES`.
        executor: where the trials run, as `arena` takes it.
        retry_failed: run again the trials that failed earlier.

    Raises:
        UnknownNameError: no such name or field (with near names).
        OptionError: the grid cannot be tried, or not fairly.
    """
    known(rule, RULES, "rule")
    found, skipped = searches(
        protocol,
        tasks=tasks,
        mechanisms=mechanisms,
        grid=grid,
        seeds=seeds,
        changes=changes,
        budget=budget,
        paths=paths,
    )
    experiments = [experiment for search in found for experiment in search.experiments]
    _, failed = arena(
        experiments, paths.for_trials(), callback, executor=executor, retry_failed=retry_failed
    )
    settled = settle(found, paths, callback, rule)
    return dataclasses.replace(settled, failed=[*skipped, *failed, *settled.failed])


def settle(
    found: Sequence[Search], paths: RunPaths, callback: GridCallback, rule: str = "mean"
) -> Settled:
    """Choose from searches whose trials have ended, and score what was chosen on test.

    A search that cannot be settled yet is reported, and the others go on.
    """
    settled = Settled(results=[], failed=[], moved=[])
    for number, search in enumerate(found, 1):
        try:
            ended = tried(search, paths)
            chosen = choose(ended, rule)
            note = plain(tuning(search, ended, chosen, rule))
            for one in chosen:
                callback.on_run_begin(number, len(found), one.trial.experiment)
                result, moved = promote(one.trial.experiment, note, paths, callback.on_build)
                settled.results.append(result)
                settled.moved.extend(moved)
                callback.on_run_end(result)
            settled.moved.extend(_rivals_aside([one.trial.experiment for one in chosen], paths))
        except LongspanError as error:
            settled.failed.append(Skipped(search.what, str(error)))
    return settled


def promote(
    experiment: Experiment,
    note: dict[str, Any],
    paths: RunPaths,
    report: Report | None = None,
) -> tuple[Result, list[Skipped]]:
    """Score a trial's saved model on test, and write its record and model among the results.

    A trial that was promoted with the same note before is not looked at again. Another record of
    the same run is moved aside.

    Args:
        experiment: the trial's.
        note: how it was chosen, for `Result.tuning`.
        paths: where the results are.
        report: told when the task's data has to be built.

    Raises:
        DataError: the trial's record or model is absent or damaged, or the data is another.
        RunError: the folder cannot be written.

    Returns:
        The result, and what was moved.
    """
    path, trial = paths.record_file(experiment), paths.for_trials().record_file(experiment)
    if path.exists() and (there := load(path)).tuning == note:
        return there, []
    # What brings the model's imports is imported only where something is left to score.
    from longspan.training.checkpoint import Checkpoints

    task = build(experiment.task.name, dict(experiment.task.options))
    task.open(paths.cache, paths.data, report)
    with hold_lock(paths.run_dir(experiment), "run"):
        result = _tested(load(trial), trial, task, note, paths)
        tried_in = Checkpoints(paths.for_trials().run_dir(experiment))
        Checkpoints(paths.run_dir(experiment)).adopt(tried_in)
        moved = [_aside(path)] if path.exists() else []
        write_record(result, path)
    return result, moved


def _tested(
    trial: Result, record: Path, task: Task, note: dict[str, Any], paths: RunPaths
) -> Result:
    from longspan.arena.record import sliced
    from longspan.arena.rescore import answered_again

    tested = answered_again(record, trial, task, "test", paths)
    return dataclasses.replace(
        trial,
        scores={**trial.scores, "test": tested.score},
        answers=pack(tested.right.tolist(), tested.asked.tolist()),
        slices=sliced(task, "test", tested),
        tuning=note,
    )


def _rivals_aside(chosen: Sequence[Experiment], paths: RunPaths) -> list[Skipped]:
    """Move the records of earlier choices from grids of the same recipe."""
    kept = [paths.record_file(experiment) for experiment in chosen]
    here, moved = load(kept[0]), []
    for path in sorted(kept[0].parent.glob(f"{here.mechanism}-*.json")):
        if path.name.endswith(FAILED) or path in kept:
            continue
        there = load(path)
        if there.tuning is not None and _same_but_for_grids(there, here):
            moved.append(_aside(path))
    return moved


def _same_but_for_grids(*results: Result) -> bool:
    """Whether two results differ in nothing but fields of their grids."""
    fields = {field for result in results for field in (result.tuning or {}).get("grid", ())}
    one, two = (_fixed(result, fields) for result in results)
    return one == two


def _fixed(result: Result, fields: Iterable[str]) -> dict[str, Any]:
    result = as_asked(result)
    parts = {
        "task": result.task_options,
        "options": result.options,
        "model": result.model,
        "train": result.training,
    }
    values = {f"{part}.{name}": x for part, several in parts.items() for name, x in several.items()}
    values["mechanism"] = result.mechanism
    # What steps are held equal to is a field of the recipe already.
    kind, limit = result.budget["kind"], result.budget["limit"]
    values["budget"] = (kind, limit) if kind != "steps" else None
    return {name: value for name, value in values.items() if name not in fields}


def _aside(path: Path) -> Skipped:
    """Move a record among the trials, beside those that went before it."""
    folder = path.parent / "trials" / "replaced"
    number = 1
    while (target := folder / f"{path.stem}.{number}.json").exists():
        number += 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    except OSError as error:
        raise RunError(f"cannot move {path} to {target}: {error.strerror or error}") from error
    return Skipped(path.name, f"the grid was chosen from anew; it is now {target}")
