"""Leaderboards from records: one for each protocol and budget."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from longspan.errors import DataError
from longspan.report.leaderboard import grouping, levels
from longspan.report.leaderboard.grouping import Data, Group
from longspan.report.leaderboard.ranking import rank_rows, row_order
from longspan.report.leaderboard.values import (
    UNSCORED,
    Cell,
    Leaderboard,
    Mean,
    Row,
    TaskColumn,
    common_metric,
)
from longspan.report.mechanisms import family_of
from longspan.report.statistics.intervals import interval
from longspan.report.statistics.noise import SeedVariance, measure_noise, pool_seeds, read_sample
from longspan.report.statistics.survival import read_survival, shared_goal
from longspan.results import Failure, Result


def build_leaderboards(
    results: Iterable[Result], failures: Iterable[Failure] = ()
) -> list[Leaderboard]:
    """Build one leaderboard for each protocol and budget in the records.

    A row is one configuration of a mechanism, or a reference row. Of two records of one run the
    newer counts. A task with a failed run has no score in its row.

    Raises:
        DataError: there are no records, or the example scores of one are damaged.
    """
    runs = grouping.newest_results(results)
    failed = grouping.open_failures(runs, failures)
    races = sorted({*map(race_of, runs), *map(race_of, failed)})
    if not races:
        raise DataError("there are no results to report; run `longspan arena` first")
    return [
        _build(
            [run for run in runs if race_of(run) == race],
            [one for one in failed if race_of(one) == race],
        )
        for race in races
    ]


def race_of(run: Result | Failure) -> tuple[str, str]:
    """Return the protocol and budget, which runs of one leaderboard share."""
    return run.protocol, grouping.budget_of(run)


def _build(runs: list[Result], failed: list[Failure]) -> Leaderboard:
    protocol, budget = race_of(runs[0] if runs else failed[0])
    places = grouping.place_data(runs)
    tasks = _columns(runs, failed, places)
    columns = tuple(tasks.values())
    means = levels.choose_means(columns)
    groups = grouping.add_failures(grouping.split_rows(runs), failed)
    devices = sorted({grouping.hardware_of(run) for run in runs})
    tables = grouping.shared_overrides(groups)
    notes_by_row = [
        grouping.notes_of(group, places, is_ranked=is_ranked, several_devices=len(devices) > 1)
        for group, (_, is_ranked) in zip(groups, tables, strict=True)
    ]
    notes = sorted({note for row_notes in notes_by_row for note in row_notes})
    labels = grouping.label_rows(groups, tables)
    outcomes = [_outcomes(group, tasks, places) for group in groups]
    pooled = _pool_tables(outcomes, tables)
    rows = []
    for group, label, row_notes, table, outcome in zip(
        groups, labels, notes_by_row, tables, outcomes, strict=True
    ):
        at = tuple(notes.index(note) for note in row_notes)
        cells = tuple(map(_cell, outcome, columns, pooled[table[0]]))
        rows.append(_row(group, label, table, cells, at, means, columns))
    metric = means[0].metric if means else common_metric(columns)
    rows.sort(key=lambda row: (row.overrides, *row_order(row, metric, columns)))
    placed, contrasts = rank_rows(rows, columns, means)
    return Leaderboard(
        protocol=protocol,
        budget=budget or None,
        columns=columns,
        means=means,
        rows=tuple(placed),
        notes=tuple(notes),
        selection=tuple(sorted({run.config.training.selection for run in runs})),
        hardware=tuple(devices),
        contrasts=tuple(contrasts),
    )


def _columns(
    runs: list[Result], failures: list[Failure], places: Mapping[Data, Data]
) -> dict[Data, TaskColumn]:
    """Return the tasks; baselines and sizes are those of the data of the column itself."""
    groups = dict(
        grouping.group_runs(
            [x for x in runs if places[grouping.data_of(x)] == grouping.data_of(x)],
            grouping.data_of,
        )
    )
    present = {key[:2] for key in groups}
    for failure in failures:
        key = (failure.task, failure.config.task.version)
        if key not in present:
            groups[*key, ""] = []
    keys = sorted(groups)
    return {key: _column(key, groups[key], keys) for key in keys}


def _column(key: Data, runs: list[Result], keys: list[Data]) -> TaskColumn:
    task, version, checksum = key
    same_task = [other for other in keys if other[0] == task]
    label = task
    if len({other[1] for other in same_task}) > 1:
        label += f" v{version}"
    if sum(other[1] == version for other in same_task) > 1:
        label += f" [{checksum[:8]}]"
    tests = [run.scores["test"] for run in runs if "test" in run.scores]
    return TaskColumn(
        label=label,
        task=task,
        version=version,
        metric=runs[0].main if runs else UNSCORED,
        source=runs[0].data_source if runs else "",
        checksum=checksum,
        chance=runs[0].chance if runs else None,
        majority=tests[0].majority_baseline if tests else None,
        has_rules=not runs or levels.has_rules(runs),
        rule=levels.best_rule(runs, "test"),
        floor=levels.best_floor(runs, "test"),
        num_scored=min((test.num_examples for test in tests), default=None),
        num_examples=max((test.num_examples for test in tests), default=None),
        goal=shared_goal(runs),
    )


Outcome = tuple[list[Result], list[Failure]]  # of a row on a task, by seed


def _outcomes(
    group: Group,
    columns: dict[Data, TaskColumn],
    places: Mapping[Data, Data],
) -> list[Outcome]:
    """Return the runs of a row on each task."""
    finished = dict(grouping.group_runs(group[0], lambda run: places[grouping.data_of(run)]))
    # Failures record no checksum; of several columns theirs is the first in which the row has runs.
    order = sorted(columns, key=lambda key: key not in finished)
    first = {key[:2]: key for key in reversed(order)}
    lost = dict(
        grouping.group_runs(group[1], lambda one: first.get((one.task, one.config.task.version)))
    )
    return [
        (
            sorted(finished.get(key, []), key=lambda run: run.seed),
            sorted(lost.get(key, []), key=lambda one: one.seed),
        )
        for key in columns
    ]


def _pool_tables(
    outcomes: Sequence[list[Outcome]], tables: Sequence[tuple[str, bool]]
) -> dict[str, list[SeedVariance | None]]:
    """Return the seed variance of the ranked rows of each table, by task."""
    variances = {}
    for name in dict.fromkeys(name for name, _ in tables):
        ranked = [x for x, table in zip(outcomes, tables, strict=True) if table == (name, True)]
        by_task = zip(*ranked, strict=True) if ranked else [() for _ in outcomes[0]]
        variances[name] = [
            pool_seeds([scores_of(runs) for runs, lost in rows if _has_score(runs, lost)])
            for rows in by_task
        ]
    return variances


def _has_score(runs: Sequence[Result], failures: Sequence[Failure]) -> bool:
    """Return whether the runs of a row on a task have a score.

    A mean over the seeds that survived would estimate another quantity.
    """
    return bool(runs) and not failures and all("test" in run.scores for run in runs)


def scores_of(runs: Sequence[Result]) -> list[float]:
    """Return the test score of each run."""
    return [run.score("test") for run in runs]


def _cell(outcome: Outcome, column: TaskColumn, pooled: SeedVariance | None) -> Cell:
    """Return a cell; `pooled` is the seed variance of its table."""
    runs, failures = outcome
    cell = Cell(runs=tuple(runs), cost=levels.cost_of_runs(runs), failures=tuple(failures))
    sample = read_sample(runs)
    if not _has_score(runs, failures):
        return cell
    values = scores_of(runs)
    score = statistics.fmean(values)
    num_examples = min(run.scores["test"].num_examples for run in runs)
    about = (column.metric, num_examples, sample)
    noise = measure_noise(values, *about, pooled, data=runs[0].data_checksum)
    scored = replace(
        cell,
        score=score,
        interval=interval(noise, *about),
        noise=noise,
        margin=None if column.floor is None else score - column.floor.value,
        survival=read_survival(runs, column.goal),
    )
    return replace(scored, is_at_chance=levels.is_at_chance(scored, column))


def _family(group: Group) -> str | None:
    """Return the family that the records name, else the registered one; None for references."""
    first = grouping.first_run(group)
    if first.reference is not None:
        return None
    recorded_families = (run.family for run in group[0] if run.family is not None)
    return next(recorded_families, family_of(first.mechanism))


def _row(
    group: Group,
    label: str,
    table: tuple[str, bool],
    cells: tuple[Cell, ...],
    notes: tuple[int, ...],
    means: Sequence[Mean],
    columns: Sequence[TaskColumn],
) -> Row:
    first = grouping.first_run(group)
    return Row(
        label=label,
        mechanism=first.mechanism,
        reference=first.reference,
        variant=None if first.reference else first.named_row,
        family=_family(group),
        notes=notes,
        is_overridden=bool(first.overrides),
        overrides=table[0],
        is_ranked=table[1],
        cells=cells,
        means=levels.mean_cells(means, cells, columns),
        cost=levels.cost_over_tasks([cell.cost for cell in cells]),
        parameter_excess=grouping.largest_excess(group[0]),
    )
