"""Leaderboards as LaTeX tables in the style of papers, with the package booktabs.

Tasks are columns, families are groups of rows, the best score is bold and the second best
underlined, both by the rule of the leaderboard. The caption says how the scores were obtained.
"""

import statistics
from collections.abc import Sequence

from longspan.metrics import Metric
from longspan.report.leaderboard.values import (
    Cell,
    Leaderboard,
    Mean,
    Placement,
    Row,
    RowGroup,
)
from longspan.report.mechanisms import OTHER, families
from longspan.report.numbers import Number, count, metric_name, score
from longspan.report.output.text import latex_frame, latex_row, tex
from longspan.report.statistics.intervals import Interval
from longspan.report.tables.leaderboard import baselines, interval_text
from longspan.report.tables.table import slug

SPREADS = ("none", "interval", "seeds")
DASH = "--"
HEAD = "% Needs \\usepackage{booktabs}."
SPREAD_NOTES = {
    "none": "",
    "interval": "Small print: 95\\,\\% interval.",
    "seeds": "$\\pm$: standard deviation over seeds, of scores with two seeds or more.",
}
RULE = (
    "Bold: beats every other row; underlined: beaten by the bold one alone, and beats the rest. A "
    "row beats another if its score is better and a test over seeds and test examples has "
    "$p < 0.05$ after Holm's correction for all pairs of the table."
)
BORROWED = "Rows with one seed borrow the seed variance of the others."
UNRANKED = "Rows with one seed are not compared: no other row shows how seeds differ."
CHANCE = "$\\dagger$: not better than the majority class."


def paper_tables(boards: Sequence[Leaderboard], spread: str = "none") -> str:
    """Return a LaTeX table for each group of rows that are ranked among each other.

    Args:
        boards: leaderboards.
        spread: figure after each score: none, its 95 % interval, or the standard deviation over
            seeds.
    """
    tables = [
        _table(board, group, f"{board.title} {i or ''}", spread)
        for board in boards
        for i, group in enumerate(board.groups)
    ]
    return "\n\n".join([HEAD, *tables]) + "\n"


def _table(board: Leaderboard, group: RowGroup, name: str, spread: str) -> str:
    width = len(board.columns) + len(board.means)
    notes = list(
        dict.fromkeys(x for _, rows in _by_family(group) for row in rows for x in row.notes)
    )
    return latex_frame(
        _caption(board, group, spread),
        slug(name),
        f"l{'r' * width}",
        [
            latex_row(["Mechanism", *_headings(board)]),
            *_families(board, group, notes, spread),
            *_footer(board),
        ],
        [f"$^{{{i}}}$ {tex(board.notes[note])}" for i, note in enumerate(notes, 1)],
    )


def _headings(board: Leaderboard) -> list[str]:
    """Return the names of tasks and means; each with its metric where tasks have several."""
    names = [(task.label, task.metric) for task in board.columns]
    names += [(mean.label, mean.metric) for mean in board.means]
    if board.metric is not None:
        return [tex(name) for name, _ in names]
    return [tex(f"{name} ({_metric(metric)})") for name, metric in names]


def _metric(metric: Metric) -> str:
    """Return the name of a metric with its unit and direction."""
    return f"{metric_name(metric)} {'↑' if metric.higher_is_better else '↓'}"


def _caption(board: Leaderboard, group: RowGroup, spread: str) -> str:
    metric = "score" if board.metric is None else metric_name(board.metric)
    if board.metric is not None and not board.metric.higher_is_better:
        metric += " (lower is better)"
    seeds = {len(cell.runs) for row in group.rows for cell in row.cells if cell and cell.runs}
    low, high = min(seeds, default=0), max(seeds, default=0)
    over = count(high, "seed") if low == high else f"{low} to {count(high, 'seed')}"
    changed = f" with {group.overrides}" if group.overrides else ""
    splits = [
        f"{task.label} {task.num_scored:,} of {task.num_examples:,}"
        for task in board.columns
        if task.num_scored is not None
    ]
    sentences = [
        tex(f"Test {metric}, under the protocol {board.title}{changed}, mean over {over}."),
        tex(f"Test split, scored examples: {'; '.join(splits)}."),
        tex(f"Tested checkpoint: {', '.join(board.selection)}."),
        SPREAD_NOTES[spread],
        RULE,
        *_seed_notes(group),
        CHANCE if any(_is_at_chance(row) for row in group.rows) else "",
    ]
    return " ".join(filter(None, sentences))


def _seed_notes(group: RowGroup) -> list[str]:
    """Say where the seed variance of rows with one seed comes from."""
    noises = [cell.noise for row in group.ranked for cell in row.cells if cell and cell.noise]
    alone = [noise.seed_error is None for noise in noises if noise.is_borrowed]
    found = [] if all(alone) else [BORROWED]
    return [*found, UNRANKED] if any(alone) else found


def _is_at_chance(row: Row) -> bool:
    return any(cell is not None and cell.is_at_chance for cell in row.cells)


def _by_family(group: RowGroup) -> list[tuple[str, list[Row]]]:
    """Return the rows of each family, best first, in the order of the taxonomy."""
    order = [*families(), None]
    known = [(name, [row for row in group.rows if _family(row) == name]) for name in order]
    return [(name or "reference rows", rows) for name, rows in known if rows]


def _family(row: Row) -> str | None:
    if row.reference is not None:
        return None
    return row.family if row.family in families() else OTHER


def _families(board: Leaderboard, group: RowGroup, notes: Sequence[int], spread: str) -> list[str]:
    """Return the rows of the table, with a line above each family and its name."""
    width = 1 + len(board.columns) + len(board.means)
    lines = []
    for family, rows in _by_family(group):
        lines += [r"\midrule", f"  \\multicolumn{{{width}}}{{l}}{{\\emph{{{tex(family)}}}}} \\\\"]
        lines += [latex_row([_name(row, notes), *_scores(board, row, spread)]) for row in rows]
    return lines


def _name(row: Row, notes: Sequence[int]) -> str:
    marks = ",".join(str(notes.index(note) + 1) for note in row.notes)
    return tex(row.label) + (f"$^{{{marks}}}$" if marks else "")


def _scores(board: Leaderboard, row: Row, spread: str) -> list[str]:
    cells = [
        _cell(cell, task.metric, spread)
        for task, cell in zip(board.columns, row.cells, strict=True)
    ]
    return cells + [_mean(row, i, one, spread) for i, one in enumerate(board.means)]


def _cell(cell: Cell | None, metric: Metric, spread: str) -> str:
    if cell is None or cell.score is None:
        return tex(cell.failure_kinds) if cell and cell.failure_kinds else DASH
    values = [run.score("test") for run in cell.runs]
    beside = _beside(cell.interval, values, metric, spread)
    mark = ""
    if cell.is_at_chance:
        # Without width, so that the numbers of a column stay aligned; text beside would be covered.
        mark = "$^{\\dagger}$" if beside else "\\rlap{$^{\\dagger}$}"
    return _emphasize(cell.score, metric, cell.placement) + mark + beside


def _mean(row: Row, i: int, one: Mean, spread: str) -> str:
    value = row.means[i]
    if value is None:
        return DASH
    is_first = i == 0
    values = _means_by_seed(row, one)
    beside = _beside(row.interval if is_first else None, values, one.metric, spread)
    return _emphasize(value, one.metric, row.placement if is_first else None) + beside


def _means_by_seed(row: Row, one: Mean) -> list[float]:
    """Return the mean over the tasks of each seed that all of them have.

    A mean in which a task may count as chance has none.
    """
    if one.may_fail is not None:
        return []
    tasks = [{run.seed: run.score("test") for run in row.runs(i)} for i in one.columns]
    seeds = set[int].intersection(*(set(scores) for scores in tasks))
    return [statistics.fmean(scores[seed] for scores in tasks) for seed in sorted(seeds)]


def _emphasize(value: Number, metric: Metric, placement: Placement | None) -> str:
    text = tex(score(value, metric))
    if placement is None:
        return text
    if placement.is_best:
        return f"\\textbf{{{text}}}"
    return f"\\underline{{{text}}}" if placement.is_second else text


def _beside(interval: Interval | None, values: Sequence[float], metric: Metric, spread: str) -> str:
    """Return the text after a score; empty where it is unknown."""
    if spread == "interval" and interval is not None:
        return f" {{\\scriptsize {tex(interval_text(interval, metric))}}}"
    if spread == "seeds" and len(values) > 1:
        deviation = statistics.stdev(metric.shown(value) for value in values)
        return f" {{\\scriptsize $\\pm$ {deviation:.{metric.decimals}f}}}"
    return ""


def _footer(board: Leaderboard) -> list[str]:
    """Return scores without learning, such as those of the majority class."""
    metrics = [*(task.metric for task in board.columns), *(mean.metric for mean in board.means)]
    lines = [
        latex_row(
            [tex(name), *(_plain(x, metric) for x, metric in zip(values, metrics, strict=True))]
        )
        for name, values in baselines(board)
    ]
    return [r"\midrule", *lines] if lines else []


def _plain(value: Number | None, metric: Metric) -> str:
    return DASH if value is None else tex(score(value, metric))
