"""The leaderboard as a value: one per protocol, with holes left as holes and nothing rounded."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from longspan.errors import DataError, OptionError
from longspan.report.grouping import (
    Data,
    configurations,
    data,
    grouped,
    hardware,
    labels,
    listed,
    newest,
)
from longspan.report.numbers import Number
from longspan.report.statistics import Interval, interval, mean, ranks
from longspan.results import Result


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run costs. None: not measured, or measured under several conditions."""

    parameters: Number | None
    tokens_per_second: Number | None
    peak_memory: Number | None  # bytes
    gflops: Number | None  # one example forward
    hardware: str | None  # device and number type


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A mechanism on a task: the runs that differ in nothing but their seed."""

    runs: tuple[Result, ...]
    accuracy: Number | None  # on test, mean over seeds
    interval: Interval | None
    margin: Number | None  # points above the majority class
    rank: int | None
    cost: Cost


@dataclass(frozen=True, kw_only=True)
class Column:
    """A task on one set of data; the same task on other data is another column."""

    label: str
    task: str
    version: int
    source: str
    checksum: str
    chance: float
    majority: Number | None  # of the test split
    counted: int | None  # fewest test examples that a run was scored on
    examples: int | None  # most test examples that a run was scored on


@dataclass(frozen=True, kw_only=True)
class Row:
    """A mechanism in one configuration, over all tasks."""

    label: str
    mechanism: str
    notes: tuple[int, ...]  # positions in the notes of the table
    overridden: bool
    cells: tuple[Cell | None, ...]
    mean: Number | None  # accuracy over all tasks
    rank: int | None  # by mean, among the rows that keep to the protocol
    cost: Cost  # means over all tasks; memory: the largest

    def runs(self, column: int) -> tuple[Result, ...]:
        """The runs on a task."""
        cell = self.cells[column]
        return cell.runs if cell else ()


@dataclass(frozen=True, kw_only=True)
class Table:
    """The leaderboard of a protocol."""

    protocol: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    selection: tuple[str, ...]  # rules by which checkpoints were chosen; never test
    hardware: tuple[str, ...]


def leaderboards(results: Iterable[Result]) -> list[Table]:
    """One leaderboard for each protocol found in the results.

    Raises:
        DataError: there are no results.
    """
    groups = grouped(results, lambda run: run.protocol)
    if not groups:
        raise DataError("there are no results to report; run `longspan arena` first")
    return [leaderboard(group) for _, group in sorted(groups)]


def leaderboard(results: Iterable[Result]) -> Table:
    """The leaderboard of the results of one protocol.

    Rows are mechanisms; another configuration of the same mechanism is a row of its own. Of two
    records of the same run the newer counts, so that reading a folder twice changes nothing.

    Raises:
        DataError: there are no results.
        OptionError: the results come from several protocols, whose scores cannot be compared.
    """
    runs = newest(results)
    protocols = sorted({run.protocol for run in runs})
    if not protocols:
        raise DataError("there are no results to report; run `longspan arena` first")
    if len(protocols) > 1:
        raise OptionError(
            f"one table holds one protocol, got {', '.join(protocols)}; use leaderboards()"
        )
    columns = _columns(runs)
    groups = configurations(runs)
    devices = sorted({hardware(run) for run in runs})
    remarks = [_notes(group, len(devices) > 1) for group in groups]
    notes = sorted({note for remark in remarks for note in remark})
    rows = [
        _row(group, label, columns, [notes.index(note) for note in remark])
        for group, label, remark in zip(groups, labels(groups), remarks, strict=True)
    ]
    return Table(
        protocol=protocols[0],
        columns=tuple(columns.values()),
        rows=tuple(sorted(_ranked(rows), key=_order)),
        notes=tuple(notes),
        selection=tuple(sorted({run.selection for run in runs})),
        hardware=tuple(devices),
    )


def _columns(runs: list[Result]) -> dict[Data, Column]:
    groups = sorted(grouped(runs, data))
    keys = [key for key, _ in groups]
    return {key: _column(key, group, keys) for key, group in groups}


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
        source=runs[0].data_source,
        checksum=checksum,
        chance=runs[0].chance,
        majority=tests[0].majority if tests else None,
        counted=min((test.examples for test in tests), default=None),
        examples=max((test.examples for test in tests), default=None),
    )


def _notes(runs: list[Result], several_devices: bool) -> list[str]:
    notes = []
    if runs[0].overrides:
        notes.append(f"Departs from the protocol, so not ranked: {listed(runs[0].overrides)}.")
    if several_devices:
        devices = "; ".join(sorted({hardware(run) for run in runs}))
        notes.append(f"Cost measured on {devices}: compare it only with rows that say the same.")
    return notes


def _row(runs: list[Result], label: str, columns: dict[Data, Column], notes: list[int]) -> Row:
    by_data = dict(grouped(runs, data))
    cells = tuple(
        _cell(by_data[key], column) if key in by_data else None for key, column in columns.items()
    )
    return Row(
        label=label,
        mechanism=runs[0].mechanism,
        notes=tuple(notes),
        overridden=bool(runs[0].overrides),
        cells=cells,
        mean=mean([cell.accuracy if cell else None for cell in cells]),
        rank=None,
        cost=_cost_over([cell.cost if cell else None for cell in cells]),
    )


def _cell(runs: list[Result], column: Column) -> Cell:
    runs = sorted(runs, key=lambda run: run.seed)
    tests = [run.scores["test"] for run in runs if "test" in run.scores]
    cell = Cell(
        runs=tuple(runs), accuracy=None, interval=None, margin=None, rank=None, cost=_cost(runs)
    )
    # A run without a test score leaves the mean over seeds, and all that follows, without value.
    if len(tests) < len(runs) or column.majority is None:
        return cell
    accuracies = [test.accuracy for test in tests]
    accuracy = statistics.fmean(accuracies)
    return replace(
        cell,
        accuracy=accuracy,
        interval=interval(accuracies, min(test.examples for test in tests)),
        margin=100 * (accuracy - column.majority),
    )


def _cost(runs: list[Result]) -> Cost:
    one_condition = len({(hardware(run), run.backend) for run in runs}) == 1
    memory = _largest([run.peak_memory for run in runs])
    return Cost(
        parameters=mean([run.parameters for run in runs]),
        tokens_per_second=mean([run.tokens_per_second for run in runs]) if one_condition else None,
        peak_memory=memory if one_condition else None,
        gflops=mean([run.flops / 1e9 for run in runs]),
        hardware=hardware(runs[0]) if one_condition else None,
    )


def _cost_over(costs: list[Cost | None]) -> Cost:
    """Costs over all tasks: none where one is missing, no speed or memory over several devices."""
    parts = [cost for cost in costs if cost]
    complete = len(parts) == len(costs)
    devices = {cost.hardware for cost in parts}
    one = complete and len(devices) == 1 and None not in devices
    return Cost(
        parameters=mean([cost.parameters for cost in parts]) if complete else None,
        tokens_per_second=mean([cost.tokens_per_second for cost in parts]) if one else None,
        peak_memory=_largest([cost.peak_memory for cost in parts]) if one else None,
        gflops=mean([cost.gflops for cost in parts]) if complete else None,
        hardware=parts[0].hardware if len(devices) == 1 else None,
    )


def _largest(values: Sequence[Number | None]) -> Number | None:
    """The largest value, which is known only if all are."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _ranked(rows: list[Row]) -> list[Row]:
    """The rows with their ranks; one that departs from the protocol has none and takes none."""
    means = ranks([None if row.overridden else row.mean for row in rows])
    columns = [
        ranks([None if row.overridden or cell is None else cell.accuracy for row, cell in pairs])
        for pairs in ([(row, row.cells[i]) for row in rows] for i in range(len(rows[0].cells)))
    ]
    return [
        replace(
            row,
            rank=means[i],
            cells=tuple(
                cell and replace(cell, rank=column[i])
                for cell, column in zip(row.cells, columns, strict=True)
            ),
        )
        for i, row in enumerate(rows)
    ]


def _order(row: Row) -> tuple[bool, float, str]:
    """Complete rows first, the best mean on top; then the others by name."""
    return row.mean is None, -(row.mean or 0.0), row.label
