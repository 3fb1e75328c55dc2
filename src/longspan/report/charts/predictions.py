"""Scores on a downstream task against those on Long Range Arena, a point for each mechanism."""

from longspan.report.charts.intervals import score_range
from longspan.report.charts.rules import HEIGHT
from longspan.report.charts.styles import (
    Spec,
    Styles,
    axis_title,
    focus_opacity,
    layered_chart,
    tooltip,
    values_axis,
)
from longspan.report.leaderboard.prediction import ScoreColumn
from longspan.report.statistics.rank_correlation import FEWEST

ABOUT = {"row": "Mechanism", "shownAcross": "Long Range Arena", "shown": "Downstream"}


def score_against_score(
    predictor: ScoreColumn, target: ScoreColumn, source: str, styles: Styles
) -> Spec | None:
    """Draw scores on two tasks with their 95 % intervals; None below `FEWEST` rows.

    Args:
        predictor: scores across.
        target: scores up.
        source: protocol of the predictor.
        styles: styles of the mechanisms.
    """
    names = sorted(predictor.scores.keys() & target.scores.keys())
    if len(names) < FEWEST:
        return None
    dots = [
        {
            "row": target.labels[name],
            "mechanism": target.labels[name],
            "across": predictor.metric.shown(predictor.scores[name]),
            "score": target.metric.shown(target.scores[name]),
            **_range(target, name),
            **{f"{field}Across": value for field, value in _range(predictor, name).items()},
        }
        for name in names
    ]
    across = axis_title(f"{predictor.label} of {source}:", predictor.metric)
    up = axis_title(f"{target.label}:", target.metric)
    x, y = values_axis("across", across), values_axis("score", up)
    styles = styles.select(target.labels[name] for name in names)
    text = f"{up} against {across}, by mechanism"
    return layered_chart(dots, _layers(x, y, styles), text, height=HEIGHT)


def _range(column: ScoreColumn, name: str) -> Spec:
    return score_range(column.scores[name], column.intervals.get(name), column.metric)


def _layers(x: Spec, y: Spec, styles: Styles) -> list[Spec]:
    base = {"x": x, "y": y, "color": styles.encode("color")}
    faint = focus_opacity(0.35)
    up = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    across = {"x": {**x, "field": "lowAcross"}, "x2": {"field": "highAcross"}}
    marks = {**base, "shape": styles.encode("shape"), "tooltip": tooltip(ABOUT)}
    rule = {"type": "rule", "strokeWidth": 1.25}
    return [
        {"mark": rule, "encoding": {**base, **up, "opacity": faint}},
        {"mark": rule, "encoding": {**base, **across, "opacity": faint}},
        {
            "mark": {"type": "point", "filled": True, "size": 60},
            "encoding": {**marks, "opacity": focus_opacity()},
        },
    ]
