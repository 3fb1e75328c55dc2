"""The leaderboard: one per protocol and budget, with holes left as holes and nothing rounded."""

import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from longspan.errors import DataError, OptionError
from longspan.report import standings
from longspan.report.averages import averaged, averages
from longspan.report.costs import cost, cost_over
from longspan.report.grouping import (
    Data,
    Group,
    budget,
    configurations,
    data,
    first_of,
    grouped,
    hardware,
    joined,
    labels,
    newest,
    unresolved,
)
from longspan.report.remarks import excess, remarks
from longspan.report.rows import Average, Cell, Column, Row, Table
from longspan.report.significance import Sample, sample
from longspan.report.statistics import interval
from longspan.results import Failure, Result

NOTHING = "there are no results to report; run `longspan arena` first"


def leaderboards(results: Iterable[Result], failures: Iterable[Failure] = ()) -> list[Table]:
    """One leaderboard for each protocol and budget found in the results and failures.

    Raises:
        DataError: there is nothing to report.
    """
    runs = list(results)
    lost = unresolved(runs, failures)
    keys = sorted({*map(_race, runs), *map(_race, lost)})
    if not keys:
        raise DataError(NOTHING)
    return [
        leaderboard(
            [run for run in runs if _race(run) == key], [one for one in lost if _race(one) == key]
        )
        for key in keys
    ]


def _race(run: Result | Failure) -> tuple[str, str]:
    """What runs must share to stand in one table."""
    return run.protocol, budget(run)


def leaderboard(results: Iterable[Result], failures: Iterable[Failure] = ()) -> Table:
    """The leaderboard of the results of one protocol under one budget.

    Rows are mechanisms; another configuration of the same mechanism is a row of its own. Of two
    records of the same run the newer counts, so that reading a folder twice changes nothing. A
    task that a run failed on has no score, and its cell says why.

    Raises:
        DataError: there is nothing to report, or the answers of a record are damaged.
        OptionError: the results come from several protocols or budgets, whose scores cannot be
            compared.
    """
    runs = newest(results)
    lost = unresolved(runs, failures)
    protocol, held = _one_race(runs, lost)
    columns = _columns(runs, lost)
    means = averages(tuple(columns.values()))
    groups = joined(configurations(runs), lost)
    devices = sorted({hardware(run) for run in runs})
    said = [remarks(group, len(devices) > 1) for group in groups]
    notes = sorted({note for several in said for note in several})
    rows, samples = [], []
    titles = labels([[*ended, *failed] for ended, failed in groups])
    for group, title, own in zip(groups, titles, said, strict=True):
        cells, answers = _cells(group, columns)
        places = tuple(notes.index(note) for note in own)
        rows.append(_row(group, title, cells, places, means, tuple(columns.values())))
        samples.append(answers)
    ranked, pairs = standings.standing(rows, samples, means)
    return Table(
        protocol=protocol,
        budget=held or None,
        columns=tuple(columns.values()),
        averages=means,
        rows=tuple(sorted(ranked, key=_order)),
        notes=tuple(notes),
        selection=tuple(sorted({run.selection for run in runs})),
        hardware=tuple(devices),
        pairs=tuple(pairs),
    )


def _one_race(runs: list[Result], failures: list[Failure]) -> tuple[str, str]:
    """The protocol and budget that all of them share."""
    races = sorted({*map(_race, runs), *map(_race, failures)})
    if not races:
        raise DataError(NOTHING)
    if len(races) > 1:
        names = ", ".join(f"{name} (equal {held})" if held else name for name, held in races)
        raise OptionError(
            f"one table holds one protocol under one budget, got {names}; use leaderboards()"
        )
    return races[0]


def _columns(runs: list[Result], failures: list[Failure]) -> dict[Data, Column]:
    groups = {key: group for key, group in grouped(runs, data)}
    there = {key[:2] for key in groups}
    for one in failures:
        if (one.task, one.task_version) not in there:
            groups[one.task, one.task_version, ""] = []
    keys = sorted(groups)
    return {key: _column(key, groups[key], keys) for key in keys}


def _column(key: Data, runs: list[Result], keys: list[Data]) -> Column:
    task, version, checksum = key
    same_task = [other for other in keys if other[0] == task]
    label = task
    if len({other[1] for other in same_task}) > 1:
        label += f" v{version}"
    if sum(other[1] == version for other in same_task) > 1:
        label += f" [{checksum[:8]}]"
    tests = [run.scores["test"] for run in runs if "test" in run.scores]
    return Column(
        label=label,
        task=task,
        version=version,
        source=runs[0].data_source if runs else "",
        checksum=checksum,
        chance=runs[0].chance if runs else None,
        majority=tests[0].majority if tests else None,
        counted=min((test.examples for test in tests), default=None),
        examples=max((test.examples for test in tests), default=None),
    )


def _cells(
    group: Group, columns: dict[Data, Column]
) -> tuple[tuple[Cell | None, ...], list[Sample | None]]:
    """The cells of a row, and the answers behind those that have a score."""
    ended = dict(grouped(group[0], data))
    lost = dict(grouped(group[1], _where(columns, ended)))
    cells: list[Cell | None] = []
    answers: list[Sample | None] = []
    for key, column in columns.items():
        runs = sorted(ended.get(key, []), key=lambda run: run.seed)
        failed = sorted(lost.get(key, []), key=lambda one: one.seed)
        scored = sample(runs)
        cell = _cell(runs, failed, column, scored) if runs or failed else None
        cells.append(cell)
        answers.append(scored if cell and cell.accuracy is not None else None)
    return tuple(cells), answers


def _where(
    columns: dict[Data, Column], ended: Collection[Data]
) -> Callable[[Failure], Data | None]:
    """Of a failure, which noted no data, the column: of its task, the first that the row has."""
    order = sorted(columns, key=lambda key: key not in ended)
    places = {key[:2]: key for key in reversed(order)}
    return lambda one: places.get((one.task, one.task_version))


def _cell(
    runs: list[Result], failures: list[Failure], column: Column, answers: Sample | None
) -> Cell:
    tests = [run.scores["test"] for run in runs if "test" in run.scores]
    cell = Cell(
        runs=tuple(runs),
        accuracy=None,
        interval=None,
        margin=None,
        rank=None,
        cost=cost(runs),
        failures=tuple(failures),
    )
    # A run without a test score leaves the mean over seeds, and all that follows, without value:
    # a mean over the seeds that survived would be of another thing.
    if not tests or failures or len(tests) < len(runs) or column.majority is None:
        return cell
    accuracies = [test.accuracy for test in tests]
    accuracy = statistics.fmean(accuracies)
    return replace(
        cell,
        accuracy=accuracy,
        interval=interval(accuracies, min(test.examples for test in tests), answers),
        margin=100 * (accuracy - column.majority),
    )


def _row(
    group: Group,
    label: str,
    cells: tuple[Cell | None, ...],
    notes: tuple[int, ...],
    means: Sequence[Average],
    columns: Sequence[Column],
) -> Row:
    first = first_of(group)
    values = tuple(averaged(one, cells, columns) for one in means)
    alone = cells[0].accuracy if cells[0] else None
    return Row(
        label=label,
        mechanism=first.mechanism,
        notes=notes,
        overridden=bool(first.overrides),
        cells=cells,
        averages=values,
        mean=values[0] if values else alone,
        rank=None,
        cost=cost_over([cell.cost if cell else None for cell in cells]),
        excess=excess(group[0]),
    )


def _order(row: Row) -> tuple[bool, float, str]:
    """Complete rows first, the best mean on top; then the others by name."""
    return row.mean is None, -(row.mean or 0.0), row.label
