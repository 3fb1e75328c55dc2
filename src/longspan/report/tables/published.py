"""Published scores, costs and other figures next to ours, each with its protocol.

Sources of figures other than scores of tasks: tables 2 and 3 of Long Range Arena (Tay et al. 2021),
tables 1 and 2 of Simple Local Attentions Remain Competitive (Xiong et al. 2022).
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from operator import attrgetter
from typing import Any, NamedTuple

from longspan.errors import OptionError
from longspan.metrics import METRICS, Metric
from longspan.report.leaderboard.values import Cell, Leaderboard, Row
from longspan.report.numbers import Number, magnitude, quotient, ratio, score, significant
from longspan.report.statistics.intervals import mean
from longspan.report.tables.columns import mean_score_on, mechanism_entry
from longspan.report.tables.leaderboard import interval_text
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import BASELINE

ABOUT = (
    "Figures that others published, and ours on the same task and length. Protocols differ: a "
    "difference may come from data, model size, training or checkpoint selection. Speed and memory "
    f"depend on the hardware: compare the columns over {BASELINE}. The ratio of ours to the "
    "published figure is given for FLOPs under the same protocol, counted as multiply-adds: half "
    "of the operations counted elsewhere in this report."
)
_LENGTH_TOLERANCE = 0.03  # "4K" is 4000 or 4096 tokens


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """A figure that others published.

    Attributes:
        task: task that it was measured on; of pretraining, a name that no task has.
        quantity: name of a metric or of one of `QUANTITIES`.
        value: stored value of the metric, percentages as fractions; else in the quantity's unit.
        protocol: protocol that it was obtained under.
        source: publication.
        length: tokens of an example; None where the protocol decides.
        condition: how it was measured.
    """

    task: str
    mechanism: str
    quantity: str
    value: Number
    protocol: str
    source: str
    length: int | None = None
    condition: str = ""

    def __post_init__(self):
        """Check that a percentage is a fraction.

        Raises:
            OptionError: it is above 1 or negative.
        """
        if self.metric and self.metric.unit == "%" and not 0 <= self.value <= 1:
            raise OptionError(
                f"a published {self.quantity} must be a fraction from 0 to 1, got {self.value} "
                f"({self.mechanism} on {self.task}); divide percentages by 100"
            )

    @property
    def metric(self) -> Metric | None:
        """Metric of a score; None for another quantity."""
        return METRICS.get(self.quantity)


@functools.cache
def read_published() -> tuple[PublishedFigure, ...]:
    """Read the published scores of every task, then the figures of tables, missing ones left out.

    Tables hold values as printed, in display units.
    """
    scores, tables = (
        json.loads(resources.files("longspan").joinpath(name).read_text("utf-8"))
        for name in ("published.json", "report/published_figures.json")
    )
    figures = [PublishedFigure(quantity=one.pop("metric"), **one) for one in scores]
    return (*figures, *(one for table in tables for one in _read_table(table)))


def _read_table(table: dict[str, Any]) -> Iterator[PublishedFigure]:
    about = {name: table[name] for name in ("protocol", "source", "condition")}
    for mechanism, values in table["rows"].items():
        for column, value in zip(table["columns"], values, strict=True):
            metric = METRICS.get(column["quantity"])
            stored = value / metric.scale if metric and value is not None else value
            if stored is not None:
                yield PublishedFigure(mechanism=mechanism, value=stored, **about, **column)


def _scaled(value: Number | None, factor: float) -> Number | None:
    return None if value is None else value * factor


def _quantity(
    title: str,
    our_value: Callable[[Cell], Number | None] = lambda _: None,
    show: Callable[[Number], str] = significant,
) -> Column:
    return Column(title, "score", value=our_value, show=show)


def _steps_per_second(cell: Cell) -> Number | None:
    # Without a common condition there is no speed.
    if cell.cost.tokens_per_second is None:
        return None
    return mean([run.steps / run.seconds if run.seconds else None for run in cell.runs])


def _train_accuracy(cell: Cell) -> Number | None:
    is_accuracy = bool(cell.runs) and cell.runs[0].metric == "accuracy"
    return _scaled(mean_score_on(cell.runs, "train"), 100) if is_accuracy else None


# Other quantities than scores: columns whose subject is a cell of ours.
QUANTITIES = {
    "gflops": _quantity("GFLOPs, forward", lambda cell: _scaled(cell.cost.gflops, 0.5)),
    "steps_per_second": _quantity("Training, steps/s", _steps_per_second),
    "memory": _quantity("Peak memory, GB", lambda cell: _scaled(cell.cost.peak_memory, 1e-9)),
    "train_accuracy": _quantity("Training accuracy, %", _train_accuracy),
    "words_per_second": _quantity("Training, words/s", show=magnitude),
}
_COMPARABLE = ("gflops",)  # ours under the same protocol should equal the published one
_ON_HARDWARE = ("steps_per_second", "memory", "words_per_second")  # only one device compares


def _column_of(figure: PublishedFigure) -> Column:
    """Return the column of the quantity of a figure; that of a score is its metric."""
    metric = figure.metric
    if metric is None:
        return QUANTITIES[figure.quantity]

    def our_score(cell: Cell) -> float | None:
        if cell.score is None:
            return None
        return mean([run.scores["test"].metrics.get(figure.quantity) for run in cell.runs])

    return _quantity(metric.title, our_score, lambda value: score(value, metric))


class Comparison(NamedTuple):
    """A published figure, and our value for the same row, task and length if there is one.

    Attributes:
        published_base: published figure of the baseline under the same conditions.
        label: row of ours.
        protocol: our protocol, with the budget.
        ours: our value.
        interval: interval of our score, where its metric is the main one of our runs.
        our_base: our value of the baseline, on the same hardware where that matters.
        ratio: our value over the published one, where they should be equal.
    """

    published: PublishedFigure
    published_base: Number | None
    label: str | None = None
    protocol: str | None = None
    ours: Number | None = None
    interval: str = ""
    our_base: Number | None = None
    ratio: float | None = None

    def show(self, value: Number | None, detail: str = "") -> Entry:
        """Return a value of the quantity as an entry."""
        if value is None:
            return Entry(value=None)
        return Entry(value=value, text=_column_of(self.published).show(value), detail=detail)


def compare_figures(board: Leaderboard, figures: Iterable[PublishedFigure]) -> list[Comparison]:
    """Compare published figures with the rows of the same name on a leaderboard.

    A figure without a value of ours is included if it belongs to the leaderboard's protocol, or is
    a score on one of its tasks.
    """
    figures, tasks = tuple(figures), {column.task for column in board.columns}
    order = attrgetter("task", "mechanism", "protocol", "source")
    scores = sorted((one for one in figures if one.metric), key=order)
    comparisons = []
    for figure in (*scores, *(one for one in figures if not one.metric)):
        base = None if figure.metric else published_base(figure, figures)
        matches = list(_row_comparisons(board, figure, base))
        if not matches and (
            figure.protocol == board.protocol or (figure.metric and figure.task in tasks)
        ):
            matches = [Comparison(published=figure, published_base=base)]
        comparisons += matches
    return comparisons


def published_base(figure: PublishedFigure, figures: Iterable[PublishedFigure]) -> Number | None:
    """Return the published figure of the baseline under the same conditions, or None."""
    key = attrgetter("task", "quantity", "protocol", "source", "length")
    same = (one for one in figures if one.mechanism == BASELINE and key(one) == key(figure))
    return next((one.value for one in same), None)


def _row_comparisons(
    board: Leaderboard, figure: PublishedFigure, base: Number | None
) -> Iterable[Comparison]:
    """Yield a comparison for each of our rows with a value."""
    for i, column in enumerate(board.columns):
        for row in board.rows if column.task == figure.task else ():
            cell = row.cells[i]
            value = _our_value(cell, figure) if row.row_name == figure.mechanism else None
            if value is None:
                continue
            is_same = board.protocol == figure.protocol and not row.is_overridden
            is_main = figure.metric is not None and cell.runs[0].metric == figure.quantity
            yield Comparison(
                published=figure,
                published_base=base,
                label=row.label,
                protocol=f"{board.title} with {row.overrides}" if row.overrides else board.title,
                ours=value,
                interval=interval_text(cell.interval, column.metric)
                if is_main and cell.interval
                else "",
                our_base=None if figure.metric else _our_base(board, i, row, figure),
                ratio=quotient(value, figure.value)
                if is_same and figure.quantity in _COMPARABLE
                else None,
            )


def is_at_length(length: int, figure: PublishedFigure) -> bool:
    """Return whether a length is that of a published figure; a figure may have none."""
    published = figure.length
    return published is None or abs(length - published) <= _LENGTH_TOLERANCE * published


def _our_value(cell: Cell, figure: PublishedFigure) -> Number | None:
    """Return our value at the published length, or None."""
    if not cell.runs or not is_at_length(cell.runs[0].length, figure):
        return None
    return _column_of(figure).value(cell)  # type: ignore[return-value]


def _our_base(board: Leaderboard, i: int, row: Row, figure: PublishedFigure) -> Number | None:
    """Return our value of the baseline under the overrides of a row, or None."""
    baseline = board.baseline_of(row)
    base = baseline.cells[i] if baseline else Cell()
    same = base.cost.hardware == row.cells[i].cost.hardware
    return _our_value(base, figure) if same or figure.quantity not in _ON_HARDWARE else None


COLUMNS = (
    Column("Mechanism", "text", value=lambda x: mechanism_entry(x.published.mechanism)),
    Column("Task", "text", value=lambda x: x.published.task),
    Column("Quantity", "text", value=lambda x: _column_of(x.published).name),
    Column("Length", "lower", "Tokens.", lambda x: x.published.length, lambda n: f"{n:,}"),
    Column("Published", "score", value=lambda x: x.show(x.published.value)),
    Column(
        name=f"Published over {BASELINE}",
        kind="higher",
        value=lambda x: quotient(x.published.value, x.published_base),
        show=ratio,
    ),
    Column(
        "Ours", "score", "Of a score with its 95 % interval.", lambda x: x.show(x.ours, x.interval)
    ),
    Column(
        name=f"Ours over {BASELINE}",
        kind="higher",
        value=lambda x: quotient(x.ours, x.our_base),
        show=ratio,
    ),
    Column(
        name="Ratio",
        kind="higher",
        about="Ours over published, where they should be equal.",
        value=lambda x: x.ratio,
        show=ratio,
    ),
    Column("Our protocol", "text", value=lambda x: x.protocol),
    Column("Our row", "text", value=lambda x: x.label),
    Column("Published protocol", "text", value=lambda x: x.published.protocol),
    Column("Condition", "text", value=lambda x: x.published.condition),
    Column("Source", "text", value=lambda x: x.published.source),
)


def published(board: Leaderboard, figures: Iterable[PublishedFigure]) -> list[Table]:
    """Return the table of published figures that concern a leaderboard, if there are any."""
    comparisons = compare_figures(board, figures)
    # Without a cost the columns of costs are empty.
    shown = [x for x in COLUMNS if any(x.entry(y).value is not None for y in comparisons)]
    title = f"Published and own figures, {board.title}"
    name = f"{board.title}-published"
    return (
        [make_table(name, title, shown, comparisons, metric=board.metric, about=ABOUT)]
        if comparisons
        else []
    )
