"""Draw docs/step.svg: time of a training step per token against length, from the record of layers.

python benchmarks/step_chart.py
"""

from collections.abc import Iterable
from pathlib import Path

from longspan.report.charts.spec import GRAY, quantitative
from longspan.report.charts.styles import PRINT, assign_styles, save_chart
from longspan.report.mechanisms import family_of
from longspan.results import BASELINE, Measurement, load_efficiency

ROOT = Path(__file__).parents[1]
RECORD, PICTURE = ROOT / "results" / "efficiency" / "layer.json", ROOT / "docs" / "step.svg"
# Lines with a name differ by a fifth at their last length; the others are drawn in gray.
NAMED = (
    *("full", "linear", "local", "longformer"),
    *("sparse_transformer", "transformer_xl", "compressive"),
)
BOUND, BOUND_NAME = "identity", "no attention"
BLACK = "#000000"
AXIS = {"domain": False, "ticks": False, "gridOpacity": 0.5}
CONFIG = {"view": {"stroke": None}, "axis": {"labelFontSize": 12, "titleFontSize": 12}}
NAME = {"type": "text", "fontSize": 13, "fontWeight": 600}  # of a line, beside it


def points(measurements: Iterable[Measurement]) -> list[dict]:
    """Return microseconds per token of each float32 measurement, by mechanism and length."""
    return [
        {
            "mechanism": x.mechanism,
            "name": BOUND_NAME if x.mechanism == BOUND else x.mechanism,
            "length": x.length,
            "microseconds": round(1e6 * x.median / (x.length * x.batch_size), 2),
        }
        for x in sorted(measurements, key=lambda x: (x.mechanism, x.length))
        if x.precision == "float32" and x.median is not None
    ]


def chart(rows: list[dict]) -> dict:
    """Return the chart: gray lines, named lines over them, names at their ends."""
    last = {x["mechanism"]: x for x in rows}  # lengths ascend
    shown = {BOUND: GRAY} | {name: color_of(name) for name in NAMED}
    lengths = sorted({x["length"] for x in rows})
    x = {
        **quantitative("length"),
        "title": "tokens",
        "scale": {"type": "log", "base": 2, "domain": [lengths[0], 3 * lengths[-1]]},
        "axis": {**AXIS, "values": lengths, "format": ",", "labelFlush": False},
    }
    y = {
        **quantitative("microseconds"),
        "title": "time of a training step per token, µs",
        "scale": {"type": "log", "domain": [8, 700]},
        "axis": {**AXIS, "values": [10, 20, 50, 100, 200, 500]},
    }
    place = {"x": x, "y": y, "detail": {"field": "mechanism", "type": "nominal"}}
    color = {
        "field": "mechanism",
        "type": "nominal",
        "scale": {"domain": list(shown), "range": list(shown.values())},
        "legend": None,
    }
    line = {"type": "line", "strokeWidth": 2.5, "point": {"size": 35}}
    text = {**NAME, "align": "left", "dx": 8}
    label = {"field": "name", "type": "nominal"}
    others = [x for x in rows if x["mechanism"] not in shown]
    return {
        "description": "Time of a training step per token against length, by mechanism",
        "height": 380,
        "layer": [
            {
                "data": {"values": others},
                "mark": {"type": "line", "color": "#cccccc"},
                "encoding": place,
            },
            {
                "data": {"values": [x for x in rows if x["mechanism"] in shown]},
                "mark": line,
                "encoding": {**place, "color": color},
            },
            {
                "data": {"values": [last[name] for name in shown]},
                "mark": text,
                "encoding": {**place, "color": color, "text": label},
            },
        ],
        "config": CONFIG,
    }


def color_of(name: str) -> str:
    """Return the color of the mechanism's family; black for the baseline."""
    styles = assign_styles({name: family_of(name)})
    return BLACK if name == BASELINE else styles.by_name[name].color


def main() -> None:
    save_chart(chart(points(load_efficiency(RECORD).measurements)), PICTURE, PRINT)


if __name__ == "__main__":
    main()
