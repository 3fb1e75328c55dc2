"""The leaderboard as a table: one row for each configuration of a mechanism."""

from collections import Counter
from collections.abc import Sequence

from longspan.metrics import Metric
from longspan.report.leaderboard.means import FAILED, SIXTH, mean_baseline
from longspan.report.leaderboard.values import (
    Cell,
    Leaderboard,
    Mean,
    Placement,
    Row,
    TaskColumn,
)
from longspan.report.numbers import (
    MISSING,
    Number,
    count,
    metric_name,
    score,
    score_difference,
    signed,
)
from longspan.report.statistics.intervals import Interval
from longspan.report.tables.columns import (
    FAMILY_ABOUT,
    GFLOPS,
    INFERENCE_MEMORY,
    INFERENCE_SPEED,
    MEMORY,
    PARAMETERS,
    TOKENS_PER_SECOND,
    score_entry,
)
from longspan.report.tables.table import Column, Entries, Entry, Table, make_table
from longspan.results import BASELINE

# The one rule behind ranks, bold and underlined type, ties and arrows; docs/arena.md repeats it.
RULE = (
    "One row beats another if its score is better and the difference is significant: two-sided "
    "p < 0.05 in a paired test over the same seeds and test examples, for the pair alone. Where "
    "two rows share no scored examples, their 95 % intervals must not overlap.\n"
    "Rank: 1 + the number of rows that beat this one. Bold: the best score. Underlined: the second "
    "best, below one row alone. ≈: not the best score, but no row beats it; a wide interval is "
    f"enough for that. Where no row beats another, none of these is marked. ↑: beats {BASELINE}. "
    f"↓: is beaten by {BASELINE}."
)
LEGEND = (
    "Scores: mean over seeds on test. Below: the 95 % interval, the margin over the majority class "
    "(accuracy only), and the number of seeds.\n"
    f"{RULE}\n"
    "Intervals cover seeds and test examples where the score of every example was recorded, else "
    "seeds. For a single seed, or seeds that tie, they cover test examples and say nothing about "
    "other seeds.\n"
    f"A mean needs a score on each of its tasks, in one metric. In a mean of six, {SIXTH} counts "
    f"as {100 * FAILED:.0f} % where nothing was learned. Costs need all tasks; memory is the "
    "largest."
)


RANK = Column(
    name="Rank",
    kind="lower",
    about="By the first mean, or the only task.",
    value=lambda row: row.placement and row.placement.rank,
)


def leaderboard(board: Leaderboard) -> Table:
    """Return the leaderboard, best row first, baselines without learning last."""
    columns = _columns(board)
    return make_table(
        f"{board.title}-leaderboard",
        _title(board),
        columns,
        board.rows,
        metric=board.metric,
        about=LEGEND,
        footer=[_baseline(board, *line, len(columns)) for line in baselines(board)],
        notes=(*_numbered(board.notes), *_intervals(board)),
    )


def _title(board: Leaderboard) -> str:
    metric = board.metric
    if metric is None:
        return f"Leaderboard of {board.title}: test scores"
    return f"Leaderboard of {board.title}: test {metric_name(metric)}"


def _columns(board: Leaderboard) -> list[Column]:
    return [
        Column("Mechanism", "text", value=_name),
        *(_task_column(board, i) for i in range(len(board.columns))),
        *(_mean_column(board.means, i) for i in range(len(board.means))),
        *([RANK] if any(row.placement for row in board.rows) else []),
        Column(
            name="Parameters",
            kind="lower",
            about=f"Below: difference from {BASELINE}.",
            value=_parameters,
        ),
        TOKENS_PER_SECOND,
        MEMORY,
        *_measured(board, INFERENCE_SPEED, INFERENCE_MEMORY),
        GFLOPS,
        Column("Family", "text", FAMILY_ABOUT, lambda row: row.family),
    ]


def _measured(board: Leaderboard, *columns: Column) -> list[Column]:
    """Return the columns in which a row has a value."""
    return [
        column
        for column in columns
        if any(column.entry(row).value is not None for row in board.rows)
    ]


def _name(row: Row) -> Entry:
    marks = "".join(f"[{note + 1}]" for note in row.notes)
    return Entry(value=row.label, text=f"{row.label} {marks}".strip(), mechanism=row.label)


def _task_column(board: Leaderboard, i: int) -> Column:
    column = board.columns[i]
    metric = column.metric
    name = column.label
    if board.metric is None:
        name += f" ({metric_name(metric)})"
    if column.num_scored is None:
        about = "No run has a score."
    else:
        about = (
            f"{metric.title}, {column.num_scored} of {column.num_examples} test examples, "
            f"{column.source}."
        )
    kind = "higher" if metric.higher_is_better else "lower"
    return Column(name, kind, about, lambda row: _score(row.cells[i], column))  # type: ignore[arg-type]


def _score(cell: Cell | None, column: TaskColumn) -> Entry:
    if cell is None or cell.score is None:
        kinds = cell.failure_kinds if cell else None
        detail = ""
        if cell and kinds:
            attempts = count(len(cell.runs) + len(cell.failures), "seed")
            detail = f"{len(cell.failures)} of {attempts}"
        return Entry(value=None, text=kinds or MISSING, detail=detail)
    metric = column.metric
    details = [interval_text(cell.interval, metric)]
    if cell.margin is not None:
        details.append(score_difference(cell.margin, metric))
    details.append(count(len(cell.runs), "seed"))
    return _placed(cell.score, score(cell.score, metric), " · ".join(details), cell.placement)


def interval_text(interval: Interval | None, metric: Metric) -> str:
    """Return an interval of a score in display units."""
    if interval is None:
        return MISSING
    low, high = (score(end, metric) for end in (interval.low, interval.high))
    return f"{low}–{high}".replace("-", "−")


def _placed(value: Number, text: str, detail: str, placement: Placement | None) -> Entry:
    return Entry(
        value=value,
        text=f"{text} {placement.marks if placement else ''}".strip(),
        detail=detail,
        emphasis="best" if placement and placement.is_best else None,
        underline="second best" if placement and placement.is_second else None,
    )


def _mean_column(means: Sequence[Mean], i: int) -> Column:
    mean = means[i]

    def entry(row: Row) -> Entry:
        value = row.means[i]
        if value is None or i > 0:
            return score_entry(value, mean.metric)
        return _placed(
            value,
            score(value, mean.metric),
            interval_text(row.interval, mean.metric),
            row.placement,
        )

    return Column(mean.label, "score", mean.about, entry)


def _parameters(row: Row) -> Entry:
    excess = row.parameter_excess
    number = PARAMETERS.entry(row)
    detail = f"{signed(100 * excess)} %" if excess else ""
    return Entry(value=number.value, text=number.text, detail=detail)


def baselines(board: Leaderboard) -> list[tuple[str, list[Number | None]]]:
    """Return scores without learning by name: on each task, then of each mean."""
    lines: list[tuple[str, list[Number | None]]] = [
        ("majority class", [column.majority for column in board.columns]),
        ("chance", [column.chance for column in board.columns]),
    ]
    return [
        (name, [*line, *(mean_baseline(one, line) for one in board.means)])
        for name, line in lines
        if any(value is not None for value in line)
    ]


def _baseline(
    board: Leaderboard, name: str, values: Sequence[Number | None], width: int
) -> Entries:
    metrics = [*(task.metric for task in board.columns), *(mean.metric for mean in board.means)]
    scores = [score_entry(value, metric) for value, metric in zip(values, metrics, strict=True)]
    return (Entry(value=name, text=name), *scores, *[Entry(value=None)] * (width - 1 - len(scores)))


def _numbered(notes: Sequence[str]) -> list[str]:
    return [f"[{i}] {note}" for i, note in enumerate(notes, 1)]


def _intervals(board: Leaderboard) -> list[str]:
    """Return a note on what the intervals of this leaderboard cover."""
    cells = [cell for row in board.rows for cell in row.cells if cell and cell.interval]
    kinds = Counter(cell.interval.over for cell in cells if cell.interval)
    if len(kinds) < 2:
        return [f"All intervals cover {kind}." for kind in kinds]
    parts = [f"{number} cover {kind}" for kind, number in sorted(kinds.items())]
    return [f"Of the intervals, {', '.join(parts)}."]
