"""The leaderboard as a table: one row for each configuration of a mechanism."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from longspan.metrics import Metric
from longspan.report.leaderboard.levels import FAILED, SIXTH
from longspan.report.leaderboard.values import (
    Cell,
    Leaderboard,
    Mean,
    Placement,
    Row,
    RowGroup,
    TaskColumn,
)
from longspan.report.leaderboard.verdict import UNSCORED_RULES, verdict
from longspan.report.mechanisms import row_links, row_traits
from longspan.report.numbers import (
    MISSING,
    Number,
    count,
    metric_name,
    percent,
    score,
    score_difference,
    signed,
)
from longspan.report.statistics.intervals import Interval, wilson
from longspan.report.tables.columns import (
    FAMILY_ABOUT,
    GFLOPS,
    INFERENCE_MEMORY,
    INFERENCE_SPEED,
    MEMORY,
    PARAMETERS,
    STATE,
    TOKENS_PER_SECOND,
    score_entry,
    state_entry,
)
from longspan.report.tables.table import (
    MINOR,
    SEPARATOR,
    USEFUL,
    Column,
    Entries,
    Entry,
    Role,
    Table,
    make_table,
)
from longspan.results import BASELINE
from longspan.results.commands import commands_of

# The one rule behind ranks, bold and underlined type and arrows; docs/arena/report.md repeats it.
_RANKING_RULE = (
    "One row beats another if its score is better and the difference is significant: p < 0.05 "
    "after Holm's correction for all pairs of the table, in a two-sided test over seeds and test "
    "examples, which are paired where both rows were scored on the same.\n"
    "Seed variance: that of the table, pooled over its rows with several seeds, or that of the row "
    "itself if it is larger. A row with one seed borrows it: it is assumed to vary as the others "
    "do. Where no row of the table has several seeds, or their seeds tie, rows with one seed are "
    "not compared and have no rank.\n"
    "Rank: from 1 + the number of rows that beat this one, to the number of rows that it does not "
    "beat; the true ranks of all rows lie in these ranges with probability 0.95. Bold: beats every "
    "other row. Underlined: beaten by the bold one alone, and beats the rest. "
    f"↑: beats {BASELINE}. ↓: is beaten by {BASELINE}."
)
_TIME_RULE = (
    "Solved: seeds that reach the validation score in brackets, which ends their training; the "
    "others are censored at their last step. Steps: median over seeds to the first evaluation with "
    "that score (Kaplan and Meier). Their 95 % intervals are those of Wilson, and of Brookmeyer "
    "and Crowley, which takes six seeds. Rows are sorted by the share of seeds, then by steps. On "
    "such a task one row beats another if p < 0.05 in a log-rank test over all splits of their "
    "seeds, after Holm's correction for the pairs that can reach it; scores rank nothing."
)
LEGEND = (
    "Scores: mean over seeds on test. Below: the 95 % interval, the margin over the majority class "
    "or, where it is better, over the best rule without a model, and the number of "
    "seeds. At chance: the interval reaches down to the majority class; a mean with such a score "
    "is neither bold nor underlined. No margin: the rules were not scored, or there is no majority "
    "class.\n"
    f"{_RANKING_RULE}\n"
    "Intervals cover seeds, with the same variance, and test examples where the score of every "
    "example was recorded. Without a seed variance they cover test examples and say nothing about "
    "other seeds.\n"
    f"A mean needs a score on each of its tasks, in one metric. In a mean of six, {SIXTH} counts "
    f"as {100 * FAILED:.0f} % where nothing was learned. Costs need all tasks; memory is the "
    f"largest.\n{_TIME_RULE}"
)
AT_CHANCE = "at chance"
_ALONE = "Ranked among each other alone: rows that override"
BASELINES = ("majority class", "chance")


def _rank_entry(placement: Placement | None) -> Entry:
    """Return a range of ranks; its value is the worst, so that noise never sorts a row ahead."""
    if placement is None or placement.ranks is None:
        return Entry(value=None)
    low, high = placement.ranks
    return Entry(value=high, text=str(low) if low == high else f"{low}–{high}")


RANK = Column(
    name="Rank",
    kind="lower",
    about="By the first mean, or the only task. Sorted by the worst rank of the range.",
    value=lambda row: _rank_entry(row.overall.placement),
    role="rank",
)


def leaderboards(board: Leaderboard) -> list[Table]:
    """Return the table of the protocol, then one for each set of overrides that rows share."""
    return [leaderboard(board, group) for group in board.groups]


def leaderboard(board: Leaderboard, group: RowGroup | None = None) -> Table:
    """Return one table of a leaderboard, best row first, baselines without learning last.

    Args:
        board: leaderboard.
        group: rows of the table; those of the protocol by default.
    """
    group = group or board.groups[0]
    columns, used = _columns(board, group), {note for row in group.rows for note in row.notes}
    title = f"{board.title} with {group.overrides}" if group.overrides else board.title
    scores = "scores" if board.metric is None else metric_name(board.metric)
    table = make_table(
        f"{board.title}-leaderboard {group.overrides}",
        f"Leaderboard of {title}: test {scores}",
        columns,
        group.rows,
        metric=board.metric,
        about=LEGEND,
        footer=_footer(board, count_times(columns), len(columns)),
        notes=(
            *([f"{_ALONE} {group.overrides}."] if group.overrides else []),
            *(f"[{i + 1}] {board.notes[i]}" for i in sorted(used)),
            *_intervals(group),
            *_unscored_rules(board),
        ),
    )
    return replace(
        table,
        verdict=verdict(board, group),
        commands=tuple(
            tuple(commands_of([x for cell in row.cells for x in cell.records]))
            for row in group.rows
        ),
    )


def _columns(board: Leaderboard, group: RowGroup) -> list[Column]:
    minor = [
        *_measured(group, INFERENCE_SPEED, INFERENCE_MEMORY),
        Column("Parameters", "lower", f"Below: difference from {BASELINE}.", _parameters),
        *_measured(group, replace(STATE, value=_state)),
        GFLOPS,
        Column("Family", "text", FAMILY_ABOUT, lambda row: row.family),
    ]
    return [
        Column("Mechanism", "text", value=_name),
        *(column for i in range(len(board.columns)) for column in _time_columns(board, i)),
        *(_task_column(board, i) for i in range(len(board.columns))),
        *(_mean_column(board.means, i) for i in range(len(board.means))),
        *([RANK] if any(RANK.entry(row).value for row in group.rows) else []),
        *(replace(column, priority=USEFUL) for column in (TOKENS_PER_SECOND, MEMORY)),
        *(replace(column, priority=MINOR) for column in minor),
    ]


def _measured(group: RowGroup, *columns: Column) -> list[Column]:
    """Return the columns in which a row has a value."""
    return [
        column
        for column in columns
        if any(column.entry(row).value is not None for row in group.rows)
    ]


def _name(row: Row) -> Entry:
    marks = "".join(f"[{note + 1}]" for note in row.notes)
    return Entry(
        value=row.label,
        text=f"{row.label} {marks}".strip(),
        mechanism=row.label,
        links=row_links(row),
        traits=row_traits(row),
    )


def time_notes(board: Leaderboard) -> list[str]:
    """Return how to read the outcomes of tasks with a goal, if there are any."""
    return [_TIME_RULE] * any(column.goal is not None for column in board.columns)


def count_times(columns: Sequence[Column]) -> int:
    """Return the number of columns with outcomes of tasks with a goal, which precede scores."""
    return sum(column.role == "time" for column in columns)


def _time_columns(board: Leaderboard, i: int) -> list[Column]:
    """Return whether and when a task is solved, if it has a goal."""
    task = board.columns[i]
    if task.goal is None:
        return []
    solved = f"{task.label} solved ({task.metric.format(task.goal)})"
    columns = [
        Column(solved, "higher", "Share of seeds.", lambda row: _solved(row.cells[i])),
        Column(f"{task.label} steps", "lower", "Median.", lambda row: _steps(row.cells[i])),
    ]
    return [replace(column, role="time") for column in columns]


def _solved(cell: Cell) -> Entry:
    if (times := cell.survival) is None:
        return Entry(value=None)
    number = len(times.times)
    low, high = wilson(times.share, number)
    details = [f"{percent(low, 0)}–{percent(high, 0)} %"]
    if times.solved < number:
        details.append(f"{number - times.solved} censored")
    return Entry(times.share, f"{times.solved}/{number}", SEPARATOR.join(details))


def _steps(cell: Cell) -> Entry:
    """Return the median steps; a dash and the last step without a median."""
    if (times := cell.survival) is None:
        return Entry(value=None)
    ends, median = times.median_interval, times.median
    text = f"> {times.horizon:,}" if median is None else f"{median:,}"
    detail = ""
    if ends is not None:
        detail = f"{ends.low:,}–{'∞' if math.isinf(ends.high) else f'{ends.high:,}'}"
    return replace(_placed(cell, text, detail), value=median)


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
    return Column(
        name=name,
        kind=kind,  # type: ignore[arg-type]
        about=about,
        value=lambda row: _score(row.cells[i], column),
        role="task" if board.means and i in board.means[0].columns else None,
        metric=metric,
    )


def _score(cell: Cell, column: TaskColumn) -> Entry:
    if cell.score is None:
        kinds = cell.failure_kinds
        detail = ""
        if kinds:
            attempts = count(len(cell.records), "seed")
            detail = f"{len(cell.failures)} of {attempts}"
        return Entry(value=None, text=kinds or MISSING, detail=detail)
    metric = column.metric
    details = [interval_text(cell.interval, metric)]
    if cell.margin is not None:
        details.append(score_difference(cell.margin, metric))
    details.append(count(len(cell.runs), "seed"))
    if cell.is_at_chance:
        details.append(AT_CHANCE)
    ranked = replace(cell, placement=None) if column.goal is not None else cell
    return _placed(ranked, score(cell.score, metric), SEPARATOR.join(details))


def interval_text(interval: Interval | None, metric: Metric) -> str:
    """Return an interval of a score in display units."""
    if interval is None:
        return MISSING
    low, high = (score(end, metric) for end in (interval.low, interval.high))
    return f"{low}–{high}".replace("-", "−")


def _placed(cell: Cell, text: str, detail: str) -> Entry:
    """Return the score of a cell, as text with the marks of its place."""
    placement = cell.placement
    return Entry(
        value=cell.score,
        text=f"{text} {placement.arrow if placement else ''}".strip(),
        detail=detail,
        emphasis="best" if placement and placement.is_best else None,
        underline="second best" if placement and placement.is_second else None,
    )


def _mean_column(means: Sequence[Mean], i: int) -> Column:
    mean = means[i]

    def entry(row: Row) -> Entry:
        cell = row.means[i]
        if cell.score is None or i > 0:
            return score_entry(cell.score, mean.metric)
        details = [interval_text(cell.interval, mean.metric)]
        if number := row.tasks_at_chance(mean):
            details.append(f"{number} {AT_CHANCE}")
        return _placed(cell, score(cell.score, mean.metric), SEPARATOR.join(details))

    role: Role | None = "mean" if i == 0 else None
    return Column(mean.label, "score", mean.about, entry, role=role, metric=mean.metric)


def _parameters(row: Row) -> Entry:
    excess = row.parameter_excess
    number = PARAMETERS.entry(row)
    detail = f"{signed(100 * excess)} %" if excess else ""
    return Entry(value=number.value, text=number.text, detail=detail)


def _state(row: Row) -> Entry:
    return state_entry(row.cost.state_bytes, [run for cell in row.cells for run in cell.runs])


def _footer(board: Leaderboard, lead: int, width: int) -> list[Entries]:
    """Return scores without learning: the best rule of each task, majority class and chance."""
    rules = [one.rule for one in board.scored]
    names = sorted({rule.name for rule in rules[: len(board.columns)] if rule})
    name = names[0] if len(names) == 1 else "best rule"
    footer = [
        _baseline(board, name, [rule.value if rule else None for rule in rules], lead, width),
        _baseline(board, BASELINES[0], [one.majority for one in board.scored], lead, width),
        _baseline(board, BASELINES[1], [one.chance for one in board.scored], lead, width),
    ]
    if len(names) > 1:
        shown = [rule.name.removeprefix("rule: ") if rule else "" for rule in rules]
        tasks = zip(footer[0][1 + lead :], shown[: len(board.columns)], strict=False)
        rule_entries = [replace(entry, detail=detail) for entry, detail in tasks]
        rest = footer[0][1 + lead + len(rule_entries) :]
        footer[0] = (*footer[0][: 1 + lead], *rule_entries, *rest)
    return [line for line in footer if any(entry.value is not None for entry in line[1:])]


def _baseline(
    board: Leaderboard, name: str, values: Sequence[Number | None], lead: int, width: int
) -> Entries:
    scores = [score_entry(x, y.metric) for x, y in zip(values, board.scored, strict=True)]
    none = Entry(value=None)
    rest = width - 1 - lead - len(scores)
    return (Entry(value=name, text=name), *[none] * lead, *scores, *[none] * rest)


def _intervals(group: RowGroup) -> list[str]:
    """Return a note on what the intervals of this table cover."""
    cells = [cell for row in group.rows for cell in row.cells]
    kinds = Counter(cell.interval.over for cell in cells if cell.interval)
    if len(kinds) < 2:
        return [f"All intervals cover {kind}." for kind in kinds]
    parts = [f"{number} cover {kind}" for kind, number in sorted(kinds.items())]
    return [f"Of the intervals, {', '.join(parts)}."]


def _unscored_rules(board: Leaderboard) -> list[str]:
    """Return a note on tasks of which the rules were not scored, with the command that does it."""
    tasks = ", ".join(column.label for column in board.columns if not column.has_rules)
    if not tasks:
        return []
    return [f"No margin and no verdict on {tasks}, whose {UNSCORED_RULES}."]
