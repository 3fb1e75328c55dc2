"""Render results/README.md, and the table of README.md, from the committed records.

python benchmarks/result_tables.py
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from equal_runs import count_rejections, describe
from recall_tables import swept_runs
from summaries import summaries, time_text
from table_parts import replace_between

from longspan.report import numbers
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.leaderboard.verdict import verdict
from longspan.report.tables.efficiency import memory_over_baseline, over_baseline
from longspan.results import (
    CrossEvaluation,
    EfficiencyRecord,
    Measurement,
    load_efficiency,
    load_results,
    load_side_records,
)

ROOT = Path(__file__).parents[1]
RESULTS, README = ROOT / "results", ROOT / "README.md"
OPEN = "<!-- rendered by benchmarks/tables.py -->"
LAYER_RECORD = RESULTS / "efficiency" / "layer.json"
PRECISION = "float32"  # of the layers in README.md
README_LENGTHS = (4_096, 16_384)
LONGER = 1_024  # tokens of needle, whose models are trained on 128
README_ROWS = (
    *("full", "reformer", "nystrom", "linear", "bigbird", "longformer", "local"),
    "synthesizer",  # negative control of recall: no product of query and key
)

HEAD = """# Results

Records of real runs, one JSON file each, below `<protocol>/<task>/`; `python benchmarks/tables.py`
renders this page. Scores are means over seeds on test. *(floor)* marks those whose 95 % interval
reaches down to the best score without a model: majority class or rule. Scores of different
protocols are not comparable. The command under a table reports on its records: intervals, ranks,
costs, learning curves, published scores. What they say is in [findings](../docs/findings.md), speed
and memory in [efficiency](../docs/efficiency.md) and [benchmarks](../docs/benchmarks.md).
"""


def main() -> None:
    runs = load_results([RESULTS])
    swept = {run.stem for run in swept_runs(runs)}  # whose tables are in docs/findings.md
    boards = build_leaderboards([run for run in runs if run.stem not in swept])
    pages = [HEAD, describe(count_rejections(boards)), "", *summaries(boards)]
    (RESULTS / "README.md").write_text("\n".join(pages).rstrip() + "\n")
    (board,) = (x for x in boards if x.protocol == "quick")
    update_readme(board)


def update_readme(board: Leaderboard) -> None:
    """Replace the part between the marks in README.md: verdict, and scores with costs."""
    lines = readme_lines(board, load_efficiency(LAYER_RECORD), scores_of_longer([RESULTS]))
    README.write_text(replace_between(README.read_text(), OPEN, lines))


def scores_of_longer(places: Sequence[Path]) -> dict[str, str]:
    """Return the mean score over seeds of models of needle on longer inputs, by mechanism."""
    scores: dict[str, list[float]] = {}
    for one in load_side_records(CrossEvaluation, places):
        if one.protocol == "quick" and one.evaluated_on.name == "needle" and one.length == LONGER:
            scores.setdefault(one.mechanism, []).append(one.score.metrics[one.metric])
    return {name: f"{100 * fmean(values):.1f}" for name, values in scores.items()}


def readme_lines(
    board: Leaderboard, record: EfficiencyRecord, longer: Mapping[str, str]
) -> list[str]:
    """Return what a leaderboard says first, and times of some rows next to the cost of one layer.

    Args:
        board: leaderboard of tasks with a goal.
        record: record of the suite `layer` of `longspan bench`.
        longer: scores on inputs of `LONGER` tokens, by mechanism.
    """
    layers = [x for x in record.measurements if x.precision == PRECISION]
    heads = [
        *(f"{x.label}, steps" for x in board.columns),
        f"needle at {LONGER:,}, %",
        *(f"{length:,} tokens" for length in README_LENGTHS),
    ]
    lines = [f"| mechanism | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for row in board.groups[0].ranked:
        if row.label in README_ROWS:
            costs = {x.length: x for x in layers if x.mechanism == row.mechanism}
            cells = [*map(time_text, row.cells), longer.get(row.mechanism, "–")]
            cells += [layer_cost(costs.get(length), layers) for length in README_LENGTHS]
            lines.append(f"| `{row.label}` | {' | '.join(cells)} |")
    dates = sorted(run.date[:10] for row in board.rows for cell in row.cells for run in cell.runs)
    runs = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    said = (
        verdict(board, has_costs=False)[0],
        f"Seeds, tests and controls: [results](results/README.md#{board.protocol}).",
        f"Runs of {runs}; layers of {record.date[:10]}.",
    )
    return [" ".join(said), "", *lines]


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
