"""Draw docs/peers.svg: time and memory of layers of other libraries over ours, from their record.

python benchmarks/peer_chart.py
"""

import json
from pathlib import Path

from longspan.report.charts.spec import quantitative
from longspan.report.charts.styles import PRINT, save_chart

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "peers-cpu.json"
PICTURE = ROOT / "docs" / "peers.svg"
COLORS = {1_024: "#56B4E9", 4_096: "#0072B2", 16_384: "#D55E00"}
MEASURES = {"time_ratio": "their time over ours", "memory_ratio": "their memory over ours"}
LARGEST = (4, 25)  # ends of their axes


def points(record: dict) -> list[dict]:
    """Return the ratios of each float32 layer at each length."""
    return [
        {
            "layer": f"{record['peers'][row['peer']]['what']}, "
            f"{record['peers'][row['peer']]['package']}",
            "tokens": f"{row['length']:,}",
            "measure": title,
            "ratio": round(row[field], 3),
        }
        for row in record["rows"]
        for field, title in MEASURES.items()
        if row["dtype"] == "float32"
    ]


def chart(rows: list[dict]) -> dict:
    """Return two panels of points, a row of each for a layer, with a rule where both are equal."""
    names = list(dict.fromkeys(row["layer"] for row in rows))
    x = {
        **quantitative("ratio"),
        "axis": {"values": [1, 1.5, 2, 3, 4, 8, 16], "domain": False, "ticks": False},
    }
    color = {
        "field": "tokens",
        "type": "nominal",
        "title": "tokens",
        "scale": {"domain": [f"{x:,}" for x in COLORS], "range": list(COLORS.values())},
    }
    panels = []
    for i, title in enumerate(MEASURES.values()):
        y = {"field": "layer", "type": "nominal", "title": None, "sort": names}
        labels = {"ticks": False, "domain": False, "labelLimit": 0, "labels": i == 0}
        reach = {"type": "log", "domain": [0.8, LARGEST[i]]}
        place = {
            "x": {**x, "title": title, "scale": reach},
            "y": {**y, "axis": {**labels, "grid": True}},
        }
        values = {"values": [row for row in rows if row["measure"] == title]}
        rule = {"type": "rule", "color": "#888888", "strokeDash": [4, 3]}
        equal = {"data": {"values": [{"ratio": 1}]}, "mark": rule, "encoding": {"x": place["x"]}}
        dots = {"type": "point", "filled": True, "size": 70, "opacity": 0.9}
        layers = [equal, {"data": values, "mark": dots, "encoding": {**place, "color": color}}]
        panels.append({"width": 220, "height": 300, "layer": layers})
    return {
        "description": "Time and memory of attention layers of other libraries over ours",
        "hconcat": panels,
        "config": {"view": {"stroke": None}},
    }


def main() -> None:
    save_chart(chart(points(json.loads(RECORD.read_text()))), PICTURE, PRINT)


if __name__ == "__main__":
    main()
