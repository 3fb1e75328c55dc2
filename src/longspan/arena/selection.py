"""Selection of trials on validation, and the one scoring of their models on test."""

import dataclasses
import functools
import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from longspan.arena.callbacks import GridCallback
from longspan.arena.executors import Executor, Skipped
from longspan.arena.experiment import Experiment
from longspan.arena.grid import arena
from longspan.arena.paths import RunPaths
from longspan.arena.protocols.starts import PREFIX
from longspan.arena.provenance import code_differences, code_version
from longspan.arena.run import clean_up
from longspan.arena.run_state import check_code, hold_lock
from longspan.arena.search import (
    SEED,
    Search,
    SearchSpace,
    Trial,
    searches,
    sources_of,
)
from longspan.config import flatten
from longspan.config.model import SCALE, SCALED
from longspan.errors import LongspanError, RunError, check_name
from longspan.files import to_json_types
from longspan.results import (
    FAILED,
    Result,
    TrialRecord,
    Tuning,
    load_failure,
    load_result,
    write_record,
)
from longspan.tasks import Task, build
from longspan.tasks.base import HELD_OUT, ProgressCallback

RULES = {
    "mean": (
        "the combination with the best mean, over the seeds of the grid, of the main validation "
        "metric of the selected checkpoint; of equal ones the lower mean loss, then the first in "
        "the grid; no combination with a failed trial; every seed is reported"
    ),
    "best-run": (
        "the trial, over combinations and seeds, with the best main validation metric of the "
        "selected checkpoint; of equal ones the lower loss, then the first in the grid; it alone "
        "is reported, so seeds are selected over"
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialResult:
    """A trial that has ended: its record, or the kind of its failure."""

    trial: Trial
    result: Result | None
    failure: str | None

    def record(self) -> TrialRecord:
        """Return the entry in the tuning of a result."""
        scores = self.result.scores if self.result else {}
        score, test = scores.get("validation"), scores.get("test")
        return TrialRecord(
            changes=to_json_types(dict(self.trial.changes)),
            seed=self.trial.experiment.seed,
            config_hash=self.trial.experiment.hash,
            metrics=score.metrics if score else None,
            loss=score.loss if score else None,
            failure=self.failure,
            test_metrics=test.metrics if test else None,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Outcome of searches: results, failures, and records of earlier selections that moved."""

    results: list[Result]
    failed: list[Skipped]
    moved: list[Skipped]


def tune(
    protocol: str,
    paths: RunPaths,
    callback: GridCallback,
    *,
    tasks: Sequence[str] | None = None,
    mechanisms: Sequence[str] | None = None,
    space: SearchSpace | None = None,
    rule: str = "mean",
    executor: Executor | None = None,
    retry_failed: bool = False,
    score_trials: bool = False,
) -> SearchResult:
    """Search the grids of a protocol on validation, and score the selected trials on test.

    The same call resumes an interrupted search. A larger grid runs the missing trials and selects
    again; records of an earlier selection are moved, never removed.

    Args:
        protocol: name of a protocol.
        paths: paths of trials and results.
        callback: receives trials and results.
        tasks: tasks of the protocol; None: all that have a grid.
        mechanisms: names of mechanisms; None: every registered one that can be built.
        space: what to search; None: the grids of the protocol.
        rule: key of `RULES`.
        executor: executes the trials, as for `arena`.
        retry_failed: retry trials that failed earlier.
        score_trials: score every trial on test after the selection, which does not read it.

    Raises:
        UnknownNameError: there is no such name or field.
        OptionError: the grid is invalid, or would select on test.
    """
    check_name(rule, RULES, "rule")
    row_searches, skipped = searches(
        protocol, space or SearchSpace(), tasks=tasks, mechanisms=mechanisms, paths=paths
    )
    run_all = functools.partial(arena, executor=executor, retry_failed=retry_failed)
    _, missing = run_all(sources_of(row_searches), paths, callback)
    experiments = [experiment for search in row_searches for experiment in search.experiments]
    _, failed = run_all(experiments, paths.for_trials(), callback)
    outcome = select_and_score(row_searches, paths, callback, rule, score_trials=score_trials)
    return dataclasses.replace(outcome, failed=[*skipped, *missing, *failed, *outcome.failed])


def select_and_score(
    searches: Sequence[Search],
    paths: RunPaths,
    callback: GridCallback,
    rule: str = "mean",
    *,
    score_trials: bool = False,
) -> SearchResult:
    """Select from searches whose trials have ended, and score the selected trials on test.

    A search that cannot be selected from yet is reported, and the others continue. With
    `score_trials` all trials are scored on test, after the selection.
    """
    outcome = SearchResult(results=[], failed=[], moved=[])
    for number, search in enumerate(searches, 1):
        try:
            ended = _load_trials(search, paths)
            selected = select_trials(ended, rule)
            if score_trials:
                ended = [_with_test(one, paths) for one in ended]
            tuning = _tuning(search, ended, selected, rule)
            for one in selected:
                experiment = one.trial.experiment
                callback.on_run_begin(number, len(searches), experiment)
                result, moved = _score_selected(experiment, tuning, paths, callback.on_build)
                outcome.results.append(result)
                outcome.moved.extend(moved)
                callback.on_run_end(result)
                callback.close_run(number)
            experiments = [one.trial.experiment for one in selected]
            outcome.moved.extend(_move_earlier_selections(experiments, paths))
        except LongspanError as error:
            outcome.failed.append(Skipped(search.title, str(error)))
    return outcome


def _load_trials(search: Search, paths: RunPaths) -> list[TrialResult]:
    """Load the trials of a search."""
    ended, unfinished = [], 0
    trial_paths = paths.for_trials()
    for trial in search.trials:
        record = trial_paths.record_file(trial.experiment)
        failure = trial_paths.failure_file(trial.experiment)
        if record.exists():
            ended.append(TrialResult(trial=trial, result=load_result(record), failure=None))
        elif failure.exists():
            kind = load_failure(failure).kind
            ended.append(TrialResult(trial=trial, result=None, failure=kind))
        else:
            unfinished += 1
    if unfinished:
        raise RunError(
            f"{unfinished} of {len(search.trials)} trials have not finished, so nothing is "
            "selected; run the same command to resume"
        )
    _check_comparable([one.result for one in ended if one.result])
    return ended


def _check_comparable(results: Sequence[Result]) -> None:
    """Refuse trials that were not scored on the same examples."""
    scores = [result.scores["validation"] for result in results]
    if len(sizes := {(score.num_targets, score.majority_baseline) for score in scores}) > 1:
        raise RunError(
            f"trials were scored on different validation examples "
            f"({sorted(size for size, _ in sizes)} targets); remove the option that decides them "
            "from the grid"
        )
    # A grid may cut examples to several lengths: other data, of the same examples.
    checksums: dict[str, str] = {}
    for result in results:
        options = json.dumps(result.config.task.options, sort_keys=True)
        first = checksums.setdefault(options, result.data_checksum)
        if result.data_checksum != first:
            raise RunError(
                f"trials were scored on different data ({first[:12]} and "
                f"{result.data_checksum[:12]}); remove the trials of one of them, and pass the "
                "same source with --data"
            )


def select_trials(ended: Sequence[TrialResult], rule: str) -> list[TrialResult]:
    """Return the trials to score on test: all seeds of a combination, or one; see `RULES`.

    Raises:
        UnknownNameError: there is no such rule.
        RunError: every candidate has failed.
    """
    if check_name(rule, RULES, "rule") == "mean":
        by_changes = itertools.groupby(ended, key=lambda one: one.trial.changes)
        groups = [list(group) for _, group in by_changes]
    else:
        groups = [[one] for one in ended]
    complete = [group for group in groups if not any(one.failure for one in group)]
    if not complete:
        kinds = ", ".join(sorted({one.failure for one in ended if one.failure}))
        raise RunError(f"every combination of the grid has a failed trial ({kinds})")
    return max(complete, key=_merit)


def _merit(group: Sequence[TrialResult]) -> tuple[float, float]:
    results = [one.result for one in group if one.result]
    mean = statistics.fmean(result.score("validation") for result in results)
    loss = statistics.fmean(result.scores["validation"].loss for result in results)
    return results[0].main.signed(mean), -loss


def _tuning(
    search: Search, ended: Sequence[TrialResult], selected: Sequence[TrialResult], rule: str
) -> Tuning:
    changes = dict(selected[0].trial.changes)
    if rule == "best-run":
        changes[SEED] = selected[0].trial.experiment.seed
    return Tuning(
        rule=f"{rule}: {RULES[rule]}",
        grid={name: to_json_types(list(values)) for name, values in search.grid.items()},
        chosen=to_json_types(changes),
        trials=[one.record() for one in ended],
    )


def _score_selected(
    experiment: Experiment, tuning: Tuning, paths: RunPaths, report: ProgressCallback | None = None
) -> tuple[Result, list[Skipped]]:
    """Score a trial's saved model on test, and copy its record and model to the results.

    A trial scored before under the same tuning is loaded. Another record of the same run is moved.

    Args:
        experiment: experiment of the trial.
        tuning: how it was selected.
        paths: paths of the results.
        report: receives the progress of building the data set.

    Returns:
        The result, and the records that moved.
    """
    path = paths.record_file(experiment)
    if path.exists() and (existing := load_result(path)).tuning == tuning:
        clean_up(paths.run_dir(experiment))
        if dataclasses.asdict(existing)["tuning"] != dataclasses.asdict(tuning):
            existing = dataclasses.replace(existing, tuning=tuning)
            write_record(existing, path)
        return existing, []
    # Imported only where something remains to be scored.
    from longspan.training.checkpoint import Checkpoints

    config = experiment.config.task
    task = build(config.name, config.options)
    task.open(paths.cache, paths.data, report)
    with hold_lock(paths.run_dir(experiment), "run"):
        result = _score_on_test(experiment, task, tuning, paths)
        trial_checkpoints = Checkpoints(paths.for_trials().run_dir(experiment))
        Checkpoints(paths.run_dir(experiment)).adopt(trial_checkpoints)
        moved = [_move(path)] if path.exists() else []
        write_record(result, path)
    return result, moved


def _with_test(one: TrialResult, paths: RunPaths) -> TrialResult:
    """Score a trial on test and write the score into its record, unless it has one or failed."""
    from longspan.arena.finished_run import evaluate_run

    if one.result is None or "test" in one.result.scores:
        return one
    record, trial = _load_trial(one.trial.experiment, paths)
    scores = {**trial.scores, "test": evaluate_run(record, "test", paths)[0].score}
    result = dataclasses.replace(trial, scores=scores)
    write_record(result, record)
    return dataclasses.replace(one, result=result)


def _load_trial(experiment: Experiment, paths: RunPaths) -> tuple[Path, Result]:
    """Return the file of a trial and its record, with the code of this process, which scores it.

    Raises:
        RunError: other code trained it, and changes are not accepted.
    """
    record = paths.for_trials().record_file(experiment)
    trial, here = load_result(record), code_version(experiment)
    differing = code_differences(trial.code_version, here) if trial.source_files else []
    check_code(str(record), differing, accept_changes=paths.accept_changes)
    if differing:
        earlier = [*trial.earlier_code, trial.code_version]
        trial = dataclasses.replace(trial, **vars(here), earlier_code=earlier)
    return record, trial


def _score_on_test(experiment: Experiment, task: Task, tuning: Tuning, paths: RunPaths) -> Result:
    """Score the model of a trial on test."""
    from longspan.arena.finished_run import evaluate_selected
    from longspan.arena.record import pack_test_scores, score_slices

    record, trial = _load_trial(experiment, paths)
    final = evaluate_selected(record, trial, task, paths)
    return dataclasses.replace(
        trial,
        scores={**trial.scores, **final.scores},
        rules={split: task.rule_scores(split) for split in HELD_OUT},
        example_scores=pack_test_scores(task, final.test),
        slices=score_slices(task, "test", final.test),
        inference=final.inference,
        tuning=tuning,
    )


def _move_earlier_selections(selected: Sequence[Experiment], paths: RunPaths) -> list[Skipped]:
    """Move the records of earlier selections from grids of the same configuration."""
    files = [paths.record_file(experiment) for experiment in selected]
    current, moved = load_result(files[0]), []
    for path in sorted(files[0].parent.glob(f"{current.row_name}-*.json")):
        if path.name.endswith(FAILED) or path in files:
            continue
        other = load_result(path)
        if other.tuning is None or other.row_name != current.row_name:
            continue
        if _differ_in_grid_only(other, current):
            moved.append(_move(path))
    return moved


def _differ_in_grid_only(one: Result, two: Result) -> bool:
    """Return whether two results differ in fields of their grids alone."""
    grids = {name for result in (one, two) if result.tuning for name in result.tuning.grid}
    if SCALE in grids:
        grids |= {f"model.{name}" for name in SCALED}
    has_starts = any(name.startswith(PREFIX) for name in grids)  # which decide the whole start
    first, second = (
        {
            name: x
            for name, x in flatten(result.config).items()
            if name not in grids and not (has_starts and name.startswith(PREFIX))
        }
        for result in (one, two)
    )
    return first == second


def _move(path: Path) -> Skipped:
    """Move a record to the trials, next to those moved before."""
    folder = path.parent / "trials" / "replaced"
    number = 1
    while (target := folder / f"{path.stem}.{number}.json").exists():
        number += 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    except OSError as error:
        raise RunError(f"cannot move {path} to {target}: {error.strerror or error}") from error
    return Skipped(path.name, f"the search selected again; the record is now {target}")
