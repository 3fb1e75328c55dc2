"""Reliability of predicted probabilities (Guo et al. 2017): share of correct ones against them."""

from collections.abc import Sequence

from longspan.report.charts import spec
from longspan.report.charts.spec import Spec
from longspan.report.charts.styles import Styles, run_label
from longspan.report.tables.documents import Way


def reliability(ways: Sequence[Way], title: str, styles: Styles) -> Spec | None:
    """Draw the share of correct predictions against their mean probability; None without any.

    The dashed line is that of calibrated probabilities, the area of a mark the number of
    predictions. Baselines are gray.
    """
    seeds = {way.name: len({x.seed for x in ways if x.name == way.name}) for way in ways}
    points = [
        {
            **run_label(way.name, way.seed or 0, seeds[way.name] if way.label else 1),
            **{"confidence": round(confidence, 4), "correct": round(share, 4), "count": count},
            "shown": f"{share:.3f} of {count:,.0f} at {confidence:.3f}",
        }
        for way in ways
        for confidence, share, count in way.row.calibration
    ]
    if not points:
        return None
    names = list(dict.fromkeys(x["mechanism"] for x in points))
    colors = [styles.by_name[x].color if x in styles.by_name else spec.GRAY for x in names]
    scale = {"domain": [0, 1]}
    x = {**spec.quantitative("confidence"), "title": "Mean probability", "scale": scale}
    y = {**spec.quantitative("correct"), "title": "Share of correct predictions", "scale": scale}
    legend = {"title": None, "symbolOpacity": 1, "labelLimit": 0, "orient": "right"}
    color = {**spec.nominal("mechanism"), "scale": {"domain": names, "range": colors}}
    size = {**spec.quantitative("count"), "legend": None, "scale": {"range": [10, 150]}}
    base = {"x": x, "y": y, "detail": spec.nominal("row"), "color": {**color, "legend": legend}}
    diagonal = [{"confidence": 0, "correct": 0}, {"confidence": 1, "correct": 1}]
    about = spec.tooltip({"row": "Way", "shown": "Correct"})
    layers = [
        spec.layer("line", {"x": x, "y": y}, values=diagonal, strokeDash=[3, 3], color=spec.GRAY),
        spec.layer("line", {**base, "opacity": spec.focus_opacity(0.6)}, strokeWidth=1.25),
        spec.layer("point", {**base, "size": size, "tooltip": about}, filled=True, opacity=0.9),
    ]
    return spec.layered_chart(points, layers, f"Reliability, {title}", height=spec.HEIGHT)
