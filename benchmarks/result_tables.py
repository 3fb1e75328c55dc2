"""Render results/README.md, and the table and picture of README.md, from the committed records.

python benchmarks/result_tables.py
"""

import math
from collections.abc import Sequence
from pathlib import Path

from equal_runs import count_rejections, describe
from summaries import summaries

from longspan.metrics import Metric
from longspan.report import numbers
from longspan.report.charts.styles import save_chart
from longspan.report.charts.tradeoff import score_against_cost
from longspan.report.context import styles_of
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.leaderboard.values import Cell, Leaderboard, TaskColumn
from longspan.report.leaderboard.verdict import verdict
from longspan.report.tables.efficiency import (
    crossing_length,
    memory_over_baseline,
    over_baseline,
)
from longspan.results import (
    BASELINE,
    EfficiencyRecord,
    Measurement,
    Result,
    load_efficiency,
    load_results,
)

ROOT = Path(__file__).parents[1]
RESULTS, README, PICTURE = ROOT / "results", ROOT / "README.md", ROOT / "docs" / "quick.svg"
OPEN, CLOSE = "<!-- rendered by benchmarks/tables.py -->", "<!-- end -->"
LAYER_RECORD = RESULTS / "efficiency" / "layer.json"
PRECISION = "float32"  # of the layers in README.md

HEAD = """# Results

Records of real runs, one JSON file each, below `<protocol>/<task>/`; `python benchmarks/tables.py`
renders this page. Scores are means over seeds on test. *(floor)* marks those whose 95 % interval
reaches down to the best score without a model: majority class or rule. Scores of different
protocols are not comparable. The command under a table reports on its records: intervals, ranks,
costs, learning curves, published scores. What they say is in [findings](../docs/findings.md), speed
and memory in [efficiency](../docs/efficiency.md) and [benchmarks](../docs/benchmarks.md).
"""


def main() -> None:
    boards = build_leaderboards(load_results([RESULTS]))
    pages = [HEAD, describe(count_rejections(boards)), "", *summaries(boards)]
    (RESULTS / "README.md").write_text("\n".join(pages).rstrip() + "\n")
    (board,) = (x for x in boards if x.protocol == "quick")
    update_readme(board)
    place = len(board.columns) if board.means else 0
    save_chart(score_against_cost(board, place, board.hardware[0], styles_of([board])), PICTURE)


def update_readme(board: Leaderboard) -> None:
    """Replace the part between the marks in README.md: verdict, and scores with costs."""
    page = README.read_text()
    before, after = page.split(OPEN)[0], page.split(CLOSE)[1]
    lines = [OPEN, *readme_lines(board, load_efficiency(LAYER_RECORD)), CLOSE]
    README.write_text(before + "\n".join(lines) + after)


def readme_lines(board: Leaderboard, record: EfficiencyRecord) -> list[str]:
    """Return the verdict on a leaderboard, and its scores next to the cost of one layer.

    Args:
        board: leaderboard.
        record: record of the suite `layer` of `longspan bench`.
    """
    layers = [x for x in record.measurements if x.precision == PRECISION]
    lengths = sorted({x.length for x in layers})
    heads = [
        *(f"{x.label}{unit(x.metric)}" for x in board.columns),
        *(f"{length // 1024}K" for length in lengths),
        "faster than full above",
        f"of the limit, {compared_length(layers) // 1024}K",
    ]
    lines = [f"| mechanism | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for row in sorted(board.groups[0].ranked, key=lambda row: row.row_name != BASELINE):
        scores = [score_text(cell, board.columns[i]) for i, cell in enumerate(row.cells)]
        cells = [*scores, *layer_costs(layers, lengths, row.mechanism)]
        lines.append(f"| `{row.label}` | {' | '.join(cells)} |")
    dates = sorted(run.date[:10] for row in board.rows for cell in row.cells for run in _runs(cell))
    runs = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    said = (*verdict(board), f"Runs of {runs}; layers of {record.date[:10]}.")
    return [" ".join(said), "", *lines]


def _runs(cell: Cell | None) -> Sequence[Result]:
    return cell.runs if cell else ()


def compared_length(layers: list[Measurement]) -> int:
    """Return the longest length at which the baseline was measured."""
    return max(x.length for x in layers if x.mechanism == BASELINE and x.median is not None)


def unit(metric: Metric) -> str:
    return f", {metric.unit}" if metric.unit else ""


def score_text(cell: Cell | None, column: TaskColumn) -> str:
    if cell is None:
        return "–"
    return numbers.score(cell.score, column.metric) + (" (chance)" if cell.is_at_chance else "")


def layer_costs(layers: list[Measurement], lengths: list[int], mechanism: str) -> list[str]:
    """Return time and memory of a layer at each length, the crossing length, and the limit."""
    by_length = {x.length: x for x in layers if x.mechanism == mechanism}
    cells = [layer_cost(by_length.get(length), layers) for length in lengths]
    baseline = [x for x in layers if x.mechanism == BASELINE]
    crossing = crossing_length(list(by_length.values()), baseline)
    if mechanism == BASELINE or crossing is None:
        cells.append("–")
    else:
        known = f"{round(crossing, -2):,.0f}" if crossing else "all lengths"
        cells.append(known if math.isfinite(crossing) else "not here")
    at_limit = by_length.get(compared_length(layers))
    useful = None if at_limit is None else at_limit.useful
    return [*cells, "–" if useful is None else f"{100 * useful:.0f} %"]


def layer_cost(one: Measurement | None, layers: list[Measurement]) -> str:
    """Return speed and memory over the baseline's; where that was not measured, their values."""
    if one is None or one.median is None or one.peak_memory is None:
        return "–"
    faster, larger = over_baseline(one, layers), memory_over_baseline(one, layers)
    if faster is None or larger is None:
        return f"{numbers.duration_of(one.median)}, {numbers.memory(one.peak_memory)}"
    return f"{faster:.1f} x, {larger:.1f} x"


if __name__ == "__main__":
    main()
