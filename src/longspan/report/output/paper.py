"""Leaderboards as LaTeX tables in the style of papers, with the package booktabs.

Tasks are columns, families are groups of rows, the best score is bold and the second best
underlined, both by the rule of the leaderboard. The caption says how the scores were obtained.
"""

import statistics
from collections.abc import Iterator, Sequence

from longspan.metrics import Metric
from longspan.report.leaderboard.values import Leaderboard, Mean, Row, RowGroup
from longspan.report.mechanisms import OTHER, families
from longspan.report.numbers import MISSING, count, metric_name
from longspan.report.output.text import latex_frame, latex_marked, latex_row, tex
from longspan.report.tables.leaderboard import (
    AT_CHANCE,
    BASELINES,
    count_times,
    leaderboard,
    time_notes,
)
from longspan.report.tables.table import SEPARATOR, Column, Entry, Table, slug

SPREADS = ("none", "interval", "seeds")
HEAD = "% Needs \\usepackage{booktabs}."
_SPREAD_NOTES = {
    "none": "",
    "interval": "Small print: 95\\,\\% interval.",
    "seeds": "$\\pm$: standard deviation over seeds, of scores with two seeds or more.",
}
_EMPHASIS_NOTE = (
    "Bold: beats every other row; underlined: beaten by the bold one alone, and beats the rest. A "
    "row beats another if its score is better and a test over seeds and test examples has "
    "$p < 0.05$ after Holm's correction for all pairs of the table."
)
_BORROWED = "Rows with one seed borrow the seed variance of the others."
_UNRANKED = "Rows with one seed are not compared: no other row shows how seeds differ."
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
    table = leaderboard(board, group)
    width = 1 + count_times(table.columns) + len(board.scored)
    notes: list[int] = []
    lines = []
    for family, members in _by_family(group, table):
        lines += [r"\midrule", f"  \\multicolumn{{{width}}}{{l}}{{\\emph{{{tex(family)}}}}} \\\\"]
        for row, entries in members:
            notes += [note for note in row.notes if note not in notes]
            marks = ",".join(str(notes.index(note) + 1) for note in row.notes)
            label = tex(row.label) + (f"$^{{{marks}}}$" if marks else "")
            by_seed = [None] * count_times(table.columns) + _seed_scores(board, row)
            spreads = zip(entries[1:width], by_seed, strict=True)
            lines.append(latex_row([label, *(_cell(*one, spread) for one in spreads)]))
    footer = [line[:width] for line in table.footer if line[0].value in BASELINES]
    return latex_frame(
        _caption(board, group, spread),
        slug(name),
        f"l{'r' * (width - 1)}",
        [
            latex_row(["Mechanism", *(_heading(board, x) for x in table.columns[1:width])]),
            *lines,
            *([r"\midrule"] if footer else []),
            *(latex_row(tex(entry.text) for entry in line) for line in footer),
        ],
        [f"$^{{{i}}}$ {tex(board.notes[note])}" for i, note in enumerate(notes, 1)],
    )


def _heading(board: Leaderboard, column: Column) -> str:
    """Return the name of a task or mean; its metric has a direction where tasks have several."""
    arrow = "↑" if column.kind == "higher" else "↓"
    return tex(
        column.name
        if board.metric or column.metric is None
        else f"{column.name.removesuffix(')')} {arrow})"
    )


def _caption(board: Leaderboard, group: RowGroup, spread: str) -> str:
    metric = "score" if board.metric is None else metric_name(board.metric)
    if board.metric is not None and not board.metric.higher_is_better:
        metric += " (lower is better)"
    cells = [cell for row in group.rows for cell in row.cells]
    seeds = {len(cell.runs) for cell in cells if cell.runs}
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
        _SPREAD_NOTES[spread],
        _EMPHASIS_NOTE,
        *map(tex, time_notes(board)),
        *_seed_notes(group),
        CHANCE if any(cell.is_at_chance for cell in cells) else "",
    ]
    return " ".join(filter(None, sentences))


def _seed_notes(group: RowGroup) -> list[str]:
    """Say where the seed variance of rows with one seed comes from."""
    noises = [cell.noise for row in group.ranked for cell in row.cells if cell.noise]
    alone = [noise.seed_error is None for noise in noises if noise.is_borrowed]
    notes = [] if all(alone) else [_BORROWED]
    return [*notes, _UNRANKED] if any(alone) else notes


def _by_family(
    group: RowGroup, table: Table
) -> Iterator[tuple[str, list[tuple[Row, tuple[Entry, ...]]]]]:
    """Yield the rows of each family, best first, in the order of the taxonomy."""
    pairs = list(zip(group.rows, table.rows, strict=True))
    for name in (*families(), None):
        if members := [pair for pair in pairs if _family(pair[0]) == name]:
            yield name or "reference rows", members


def _family(row: Row) -> str | None:
    if row.reference is not None:
        return None
    return row.family if row.family in families() else OTHER


def _seed_scores(board: Leaderboard, row: Row) -> list[tuple[Metric, list[float]] | None]:
    """Return the metric and the test score of each seed, on each task and of each mean."""
    runs = [[x for x in row.runs(i) if "test" in x.scores] for i in range(len(board.columns))]
    tasks = [{x.seed: x.score("test") for x in of_task} for of_task in runs]
    return [
        *((x.metric, [*by_seed.values()]) for x, by_seed in zip(board.columns, tasks, strict=True)),
        *((x.metric, _means_by_seed([tasks[i] for i in x.columns], x)) for x in board.means),
    ]


def _means_by_seed(tasks: Sequence[dict[int, float]], one: Mean) -> list[float]:
    """Return the mean over the tasks of each seed that all of them have.

    A mean in which a task may count as chance has none.
    """
    seeds = set[int].intersection(*(set(scores) for scores in tasks))
    if one.may_fail is not None:
        return []
    return [statistics.fmean(scores[seed] for scores in tasks) for seed in sorted(seeds)]


def _cell(entry: Entry, by_seed: tuple[Metric, list[float]] | None, spread: str) -> str:
    if entry.value is None:
        return tex(entry.text)
    text = latex_marked(entry, entry.text.rstrip(" ↑↓"))
    interval, *details = entry.detail.split(SEPARATOR)
    beside = ""
    if spread == "interval" and interval not in ("", MISSING):
        beside = f" {{\\scriptsize {tex(interval)}}}"
    if spread == "seeds" and by_seed is not None and len(by_seed[1]) > 1:
        metric, values = by_seed
        deviation = statistics.stdev(map(metric.shown, values))
        beside = f" {{\\scriptsize $\\pm$ {deviation:.{metric.decimals}f}}}"
    if AT_CHANCE in details:
        # Without width, so that the numbers of a column stay aligned; text beside would be covered.
        text += "$^{\\dagger}$" if beside else "\\rlap{$^{\\dagger}$}"
    return text + beside
