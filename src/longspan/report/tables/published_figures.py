"""Published costs and other figures next to ours, and both as ratios to the baseline."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from longspan.report.leaderboard.values import Cell, Leaderboard
from longspan.report.numbers import Number, magnitude, ratio, significant
from longspan.report.published_figures import PublishedFigure
from longspan.report.statistics.intervals import mean
from longspan.report.tables.columns import mean_score_on
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import BASELINE

ABOUT = (
    "Published figures other than test scores, and ours on the same task and length. Speed and "
    f"memory depend on the hardware: compare the columns over {BASELINE}. The ratio of ours to the "
    "published figure is given for FLOPs under the same protocol, counted as multiply-adds: half "
    "of the operations counted elsewhere in this report."
)
LENGTH_TOLERANCE = 0.03  # "4K" is 4000 or 4096 tokens


class Quantity(NamedTuple):
    """A published quantity.

    Attributes:
        title: name and unit.
        show: function from a value to its text.
        own: function from our runs on a task to our value; None where there is none yet.
        depends_on_hardware: only values of one device compare.
        is_comparable: our value under the same protocol should equal the published one.
    """

    title: str
    show: Callable[[Number | None], str] = significant
    own: Callable[[Cell], Number | None] = lambda _: None
    depends_on_hardware: bool = False
    is_comparable: bool = False


def _halved_gflops(cell: Cell) -> Number | None:
    return None if cell.cost.gflops is None else cell.cost.gflops / 2


def _steps_per_second(cell: Cell) -> Number | None:
    # Without a common condition there is no speed.
    if cell.cost.tokens_per_second is None:
        return None
    return mean([run.steps / run.seconds if run.seconds else None for run in cell.runs])


def _gigabytes(cell: Cell) -> Number | None:
    return None if cell.cost.peak_memory is None else cell.cost.peak_memory / 1e9


def _train_accuracy(cell: Cell) -> Number | None:
    if not cell.runs or cell.runs[0].metric != "accuracy":
        return None
    score = mean_score_on(cell.runs, "train")
    return None if score is None else 100 * score


QUANTITIES = {
    "gflops": Quantity("GFLOPs, forward", own=_halved_gflops, is_comparable=True),
    "steps_per_second": Quantity(
        "Training, steps/s", own=_steps_per_second, depends_on_hardware=True
    ),
    "memory": Quantity("Peak memory, GB", own=_gigabytes, depends_on_hardware=True),
    "train_accuracy": Quantity("Training accuracy, %", own=_train_accuracy),
    "perplexity": Quantity("Perplexity"),
    "words_per_second": Quantity("Training, words/s", magnitude, depends_on_hardware=True),
    "exact_match": Quantity("Exact match, %"),
    "f1": Quantity("F1, %"),
    "mrr": Quantity("Mean reciprocal rank, %"),
    "accuracy": Quantity("Accuracy, %"),
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A published figure, and our value for the same mechanism, task and length if there is one.

    Attributes:
        published_base: published figure of the baseline under the same conditions.
        label: row of ours.
        own: our value.
        own_base: our value of the baseline, on the same hardware where that matters.
        is_same_protocol: our row was obtained under the protocol of the publication.
    """

    published: PublishedFigure
    published_base: Number | None
    label: str | None = None
    own: Number | None = None
    own_base: Number | None = None
    is_same_protocol: bool = False

    @property
    def quantity(self) -> Quantity:
        """Quantity of the figure."""
        return QUANTITIES[self.published.quantity]

    @property
    def ratio(self) -> float | None:
        """Our value over the published one, where they should be equal."""
        if not (self.quantity.is_comparable and self.is_same_protocol):
            return None
        return _quotient(self.own, self.published.value)


def compare_figures(board: Leaderboard, figures: Sequence[PublishedFigure]) -> list[Comparison]:
    """Compare published figures with the rows of a leaderboard.

    Figures without a value of ours are included if they belong to the leaderboard's protocol.
    """
    found = []
    for figure in figures:
        base = published_base(figure, figures)
        own = _own_rows(board, figure, base)
        if not own and figure.protocol == board.protocol:
            own = [Comparison(published=figure, published_base=base)]
        found += own
    return found


def published_base(figure: PublishedFigure, figures: Iterable[PublishedFigure]) -> Number | None:
    """Return the published figure of the baseline under the same conditions, or None."""
    key = attrgetter("task", "quantity", "protocol", "source", "length")
    same = (one for one in figures if one.mechanism == BASELINE and key(one) == key(figure))
    return next((one.value for one in same), None)


def _own_rows(board: Leaderboard, figure: PublishedFigure, base: Number | None) -> list[Comparison]:
    """Return a comparison for each of our rows with a value."""
    quantity = QUANTITIES[figure.quantity]
    rows = []
    for i, column in enumerate(board.columns):
        for row in board.rows:
            cell = row.cells[i]
            if (row.row_name, column.task) != (figure.mechanism, figure.task) or cell is None:
                continue
            own = _own_value(cell, figure)
            if own is not None:
                rows.append(
                    Comparison(
                        published=figure,
                        published_base=base,
                        label=row.label,
                        own=own,
                        own_base=_own_base(board, i, cell, figure, quantity),
                        is_same_protocol=board.protocol == figure.protocol
                        and not row.is_overridden,
                    )
                )
    return rows


def is_at_length(length: int, figure: PublishedFigure) -> bool:
    """Return whether a length is that of a published figure; a figure may have none."""
    published = figure.length
    return published is None or abs(length - published) <= LENGTH_TOLERANCE * published


def _own_value(cell: Cell, figure: PublishedFigure) -> Number | None:
    """Return our value at the published length, or None."""
    if not cell.runs or not is_at_length(cell.runs[0].length, figure):
        return None
    return QUANTITIES[figure.quantity].own(cell)


def _own_base(
    board: Leaderboard, i: int, cell: Cell, figure: PublishedFigure, quantity: Quantity
) -> Number | None:
    base = board.baseline.cells[i] if board.baseline else None
    if base is None:
        return None
    if quantity.depends_on_hardware and base.cost.hardware != cell.cost.hardware:
        return None
    return _own_value(base, figure)


def _quotient(value: Number | None, base: Number | None) -> float | None:
    return value / base if value is not None and base else None


def _shown(x: Comparison, value: Number | None) -> Entry:
    return Entry(value=value, text=x.quantity.show(value))


COLUMNS = (
    Column(
        name="Mechanism",
        kind="text",
        value=lambda x: Entry(
            value=x.published.mechanism,
            text=x.published.mechanism,
            mechanism=x.published.mechanism,
        ),
    ),
    Column("Task", "text", value=lambda x: x.published.task),
    Column("Quantity", "text", value=lambda x: x.quantity.title),
    Column("Length", "lower", "Tokens.", lambda x: x.published.length, lambda n: f"{n:,}"),
    Column("Published", "higher", value=lambda x: _shown(x, x.published.value)),
    Column(
        name=f"Published over {BASELINE}",
        kind="higher",
        value=lambda x: _quotient(x.published.value, x.published_base),
        show=ratio,
    ),
    Column("Ours", "higher", value=lambda x: _shown(x, x.own)),
    Column(
        name=f"Ours over {BASELINE}",
        kind="higher",
        value=lambda x: _quotient(x.own, x.own_base),
        show=ratio,
    ),
    Column(
        name="Ratio",
        kind="higher",
        about="Ours over published, where they should be equal.",
        value=lambda x: x.ratio,
        show=ratio,
    ),
    Column("Our row", "text", value=lambda x: x.label),
    Column("Published protocol", "text", value=lambda x: x.published.protocol),
    Column("Condition", "text", value=lambda x: x.published.condition),
    Column("Source", "text", value=lambda x: x.published.source),
)


def published_figures(board: Leaderboard, figures: Sequence[PublishedFigure]) -> list[Table]:
    """Return the table of published figures that concern a leaderboard, if there are any."""
    found = compare_figures(board, figures)
    if not found:
        return []
    title = f"Published and own costs and other figures, {board.title}"
    name = f"{board.title}-published-figures"
    return [make_table(name, title, COLUMNS, found, about=ABOUT)]
