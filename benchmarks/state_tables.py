"""Render the table of docs/findings.md on recall by bytes of state, and docs/state.svg.

    python benchmarks/state_tables.py

The records are those of `recall-state`, by mechanism, bytes of state, learning rate, function after
the convolution and initial decay.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from recall_tables import cell_text, described, merit
from step_chart import AXIS, CONFIG, NAME
from table_parts import replace_between, table

from longspan.report.charts.spec import GRAY, quantitative
from longspan.report.charts.styles import PRINT, save_chart
from longspan.results import Result, load_results

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "recall-state" / "recall"
PAGE, PICTURE = ROOT / "docs" / "findings.md", ROOT / "docs" / "state.svg"
OPEN = "<!-- state, rendered by benchmarks/tables.py -->"
PAIRS = 16
FLOOR = 1 / PAIRS  # of the rule that answers with the last value


class Style(NamedTuple):
    """Color of a mechanism, and where its name stands beside its smallest state."""

    color: str
    align: str
    dx: int
    dy: int


# Gray: no line.
STYLES = {  # Okabe and Ito's colors, dark enough for text
    "full": Style("#000000", "right", -8, -6),
    "based": Style("#0072B2", "left", 4, 16),
    "linear": Style("#D55E00", "right", -8, 4),
    "delta": Style("#009E73", "right", -8, -4),
    "local": Style("#AA44EE", "left", 12, -6),
    "ssd": Style("#B5407D", "right", -8, 8),
    "gated_delta": Style(GRAY, "right", -8, -6),
    "convolution": Style(GRAY, "right", -6, -12),
}


class Place(NamedTuple):
    """Row of the table: a mechanism at a size."""

    mechanism: str
    num_bytes: int
    row: str


# By the end of the name of a row: function after the convolution, and decays at first.
FORMS = {"": "", "silu": "SiLU, ", "slow": "SiLU, slow, "}


class Setting(NamedTuple):
    """Column of the table: what else was tried at a size."""

    form: str
    rate: float


Cells = dict[Place, dict[Setting, list[Result]]]


def main() -> None:
    cells = read_cells(load_results([RECORDS]))
    PAGE.write_text(replace_between(PAGE.read_text(), OPEN, render(cells)))
    save_chart(chart(cells), PICTURE, PRINT)


def read_cells(runs: Iterable[Result]) -> Cells:
    """Return the runs by row, mechanisms with more solved runs first, and by setting."""
    cells: Cells = {}
    for run in runs:
        assert run.decoding_state is not None
        assert run.config.task.options["pairs"] == PAIRS
        mechanism, size, *forms = run.row_name.split("-")
        place = Place(mechanism, run.decoding_state.num_bytes, f"{mechanism}-{size}")
        setting = Setting("-".join(forms), run.config.training.learning_rate)
        cells.setdefault(place, {}).setdefault(setting, []).append(run)
    best: dict[str, float] = {}
    for place, settings in cells.items():
        score = fmean(run.score() for run in best_runs(settings))
        best[place.mechanism] = max(score, best.get(place.mechanism, 0))
    order = sorted(cells, key=lambda x: (-best[x.mechanism], x))
    return {place: cells[place] for place in order}


def best_runs(settings: dict[Setting, list[Result]]) -> Sequence[Result]:
    """Return the runs of the setting that is best on validation."""
    return max(settings.values(), key=merit)


def render(cells: Cells) -> list[str]:
    """Return the table of every row in every setting, and what was run."""
    columns = sorted({setting for settings in cells.values() for setting in settings})
    names = " | ".join(f"{FORMS[x.form]}rate {x.rate:.0e}" for x in columns)
    rows = (
        [
            f"`{place.mechanism}`",
            f"{place.num_bytes / 1024:.1f}{' (grows)' if grows(settings) else ''}",
            f"{next(iter(settings.values()))[0].num_parameters:,}",
            *(cell_text(settings.get(setting)) for setting in columns),
        ]
        for place, settings in cells.items()
    )
    header = f"| recall of {PAIRS} pairs | state, KiB | parameters | {names} |"
    runs = [run for settings in cells.values() for x in settings.values() for run in x]
    return [
        *table(header, f"|---|{'---:|' * (2 + len(columns))}", rows),
        described(runs),
        "",
    ]


def grows(settings: dict[Setting, list[Result]]) -> bool:
    """Return whether the state of a row grows with the text."""
    return any(run.decoding_state.grows for runs in settings.values() for run in runs)


def points(cells: Cells) -> list[dict]:
    """Return the accuracy of each seed of each row, in the setting that is best on validation."""
    rows = []
    for place, settings in cells.items():
        runs = best_runs(settings)
        best = max(runs, key=lambda run: run.score("validation"))
        rows += [
            {
                "mechanism": place.mechanism,
                "kibibytes": round(place.num_bytes / 1024, 2),
                "accuracy": round(100 * run.score(), 1),
                "best": run is best,
            }
            for run in runs
        ]
    return rows


def chart(cells: Cells) -> dict:
    """Return the chart: a point for each seed, lines through the best one of each size.

    Gray mechanisms, which stay at chance at some size, have points alone.
    """
    rows = points(cells)
    lines = [x for x in rows if x["best"]]
    drawn = [x for x in lines if STYLES[x["mechanism"]].color != GRAY]
    x = {
        **quantitative("kibibytes"),
        "title": "state after 64 tokens, KiB",
        "scale": {"type": "log", "base": 2, "domain": [1, 100]},
        "axis": {**AXIS, "values": [1, 2, 4, 8, 16, 32, 64], "labelFlush": False},
    }
    y = {
        **quantitative("accuracy"),
        "title": f"recall of {PAIRS} pairs, % right",
        "scale": {"domain": [-2, 106]},
        "axis": {**AXIS, "values": [0, 25, 50, 75, 100]},
    }
    scale = {"domain": list(STYLES), "range": [x.color for x in STYLES.values()]}
    color = {"field": "mechanism", "type": "nominal", "scale": scale, "legend": None}
    place = {"x": x, "y": y, "color": color}
    rule = {"type": "rule", "strokeDash": [3, 3], "color": GRAY}
    return {
        "description": "Accuracy of recall against bytes of state, by mechanism",
        "height": 380,
        "layer": [
            {
                "data": {"values": [{"accuracy": 100 * FLOOR}]},
                "mark": rule,
                "encoding": {"y": y},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "filled": True, "size": 40, "opacity": 0.6},
                "encoding": place,
            },
            {
                "data": {"values": drawn},
                "mark": {"type": "line", "strokeWidth": 2.5},
                "encoding": place,
            },
            *(_label(next(x for x in lines if x["mechanism"] == name), place) for name in STYLES),
        ],
        "config": CONFIG,
    }


def _label(first: dict, place: dict) -> dict:
    """Return the name of a mechanism beside its smallest state."""
    style = STYLES[first["mechanism"]]
    return {
        "data": {"values": [first]},
        "mark": {**NAME, "align": style.align, "dx": style.dx, "dy": style.dy},
        "encoding": {**place, "text": {"field": "mechanism", "type": "nominal"}},
    }


if __name__ == "__main__":
    main()
