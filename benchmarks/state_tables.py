"""Render the table of docs/findings.md on recall by bytes of state, and docs/state.svg.

    python benchmarks/state_tables.py

The records are those of `recall-state`, by mechanism, bytes of state and learning rate.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from recall_tables import cell_text, described, merit
from step_chart import color_of
from table_parts import replace_between, table

from longspan.report.charts.spec import quantitative
from longspan.report.charts.styles import PRINT, save_chart
from longspan.results import Result, load_results

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "recall-state" / "recall"
PAGE, PICTURE = ROOT / "docs" / "findings.md", ROOT / "docs" / "state.svg"
OPEN = "<!-- state, rendered by benchmarks/tables.py -->"
PAIRS = 16
# The rule that answers with the last value is right for one of the pairs.
FLOOR = 1 / PAIRS
FLOOR_NAME = "last value"


class Place(NamedTuple):
    """Row of the table: a mechanism at a size."""

    mechanism: str
    num_bytes: int
    row: str


def main() -> None:
    cells = read_cells(load_results([RECORDS]))
    PAGE.write_text(replace_between(PAGE.read_text(), OPEN, render(cells)))
    save_chart(chart(cells), PICTURE, PRINT)


def read_cells(runs: Iterable[Result]) -> dict[Place, dict[float, list[Result]]]:
    """Return the runs by row, mechanisms with more solved runs first, and by learning rate."""
    cells: dict[Place, dict[float, list[Result]]] = {}
    for run in runs:
        assert run.decoding_state is not None
        assert run.config.task.options["pairs"] == PAIRS
        place = Place(run.mechanism, run.decoding_state.num_bytes, run.row_name)
        rates = cells.setdefault(place, {})
        rates.setdefault(run.config.training.learning_rate, []).append(run)
    best: dict[str, float] = {}
    for place, by_rate in cells.items():
        score = fmean(run.score() for run in best_runs(by_rate))
        best[place.mechanism] = max(score, best.get(place.mechanism, 0))
    order = sorted(cells, key=lambda x: (-best[x.mechanism], x))
    return {place: cells[place] for place in order}


def best_runs(by_rate: dict[float, list[Result]]) -> Sequence[Result]:
    """Return the runs of the learning rate that is best on validation."""
    return max(by_rate.values(), key=merit)


def render(cells: dict[Place, dict[float, list[Result]]]) -> list[str]:
    """Return the table of every row at every learning rate, and what was run."""
    rates = sorted({rate for by_rate in cells.values() for rate in by_rate})
    names = " | ".join(f"rate {rate:.0e}" for rate in rates)
    rows = (
        [
            f"`{place.mechanism}`",
            f"{place.num_bytes / 1024:.1f}{' (grows)' if grows(by_rate) else ''}",
            f"{next(iter(by_rate.values()))[0].num_parameters:,}",
            *(cell_text(by_rate.get(rate)) for rate in rates),
        ]
        for place, by_rate in cells.items()
    )
    header = f"| recall of {PAIRS} pairs | state, KiB | parameters | {names} |"
    runs = [run for by_rate in cells.values() for x in by_rate.values() for run in x]
    return [
        *table(header, f"|---|{'---:|' * (2 + len(rates))}", rows),
        described(runs),
        "",
    ]


def grows(by_rate: dict[float, list[Result]]) -> bool:
    """Return whether the state of a row grows with the text."""
    return any(run.decoding_state.grows for runs in by_rate.values() for run in runs)


def points(cells: dict[Place, dict[float, list[Result]]]) -> list[dict]:
    """Return mean, lowest and highest accuracy of the seeds of each row, at its best rate."""
    return [
        {
            "mechanism": place.mechanism,
            "kibibytes": round(place.num_bytes / 1024, 2),
            "accuracy": round(100 * fmean(scores), 1),
            "low": round(100 * min(scores), 1),
            "high": round(100 * max(scores), 1),
        }
        for place, by_rate in cells.items()
        if (scores := [run.score() for run in best_runs(by_rate)])
    ]


def chart(cells: dict[Place, dict[float, list[Result]]]) -> dict:
    """Return the chart: a line for each mechanism with the range of its seeds, and its name."""
    rows = points(cells)
    names = list(dict.fromkeys(x["mechanism"] for x in rows))
    axis = {"domain": False, "ticks": False, "gridOpacity": 0.5}
    sizes = [2, 4, 8, 16, 32, 64, 128]
    x = {
        **quantitative("kibibytes"),
        "title": "state after 64 tokens, KiB",
        "scale": {"type": "log", "base": 2, "domain": [1, 256]},
        "axis": {**axis, "values": sizes, "labelFlush": False},
    }
    y = {
        **quantitative("accuracy"),
        "title": f"recall of {PAIRS} pairs, % right",
        "scale": {"domain": [0, 100]},
        "axis": {**axis, "values": [0, 25, 50, 75, 100]},
    }
    color = {
        "field": "mechanism",
        "type": "nominal",
        "scale": {"domain": names, "range": [color_of(name) for name in names]},
        "legend": None,
    }
    place = {"x": x, "y": y, "color": color}
    last = list({x["mechanism"]: x for x in rows}.values())
    text = {"type": "text", "align": "left", "dx": 9, "fontSize": 13, "fontWeight": 600}
    rule = {"type": "rule", "strokeDash": [3, 3], "color": "#888888"}
    floor = {"accuracy": 100 * FLOOR, "kibibytes": 90, "mechanism": FLOOR_NAME}
    return {
        "description": "Accuracy of recall against bytes of state, by mechanism",
        "height": 380,
        "data": {"values": rows},
        "layer": [
            {"data": {"values": [floor]}, "mark": rule, "encoding": {"y": y}},
            {
                "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.5},
                "encoding": {**place, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "line", "strokeWidth": 2.5, "point": {"size": 45}},
                "encoding": place,
            },
            {
                "data": {"values": last},
                "mark": text,
                "encoding": {**place, "text": {"field": "mechanism", "type": "nominal"}},
            },
        ],
        "config": {"view": {"stroke": None}, "axis": {"labelFontSize": 12, "titleFontSize": 12}},
    }


if __name__ == "__main__":
    main()
