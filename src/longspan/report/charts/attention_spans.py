"""Charts of the attention span of trained models."""

from collections.abc import Sequence
from typing import Any

from longspan.report.charts.intervals import Reference, dot_chart, series_chart
from longspan.report.charts.styles import (
    GRAY,
    Spec,
    Styles,
    layered_chart,
    low_to_high,
    nominal,
    quantitative,
    tooltip,
)
from longspan.report.numbers import Number, count, significant
from longspan.report.tables.required_span import READING_ERROR, RequiredSpan
from longspan.results import BASELINE, Analysis, AttentionSpans

TITLE = "Attention span, tokens"
OURS, PUBLISHED = "measured", "published (Tay et al. 2021)"
UNIFORM = "uniform attention"

Measured = tuple[Analysis, AttentionSpans]


def span_by_task(spans: Sequence[RequiredSpan], styles: Styles) -> Spec | None:
    """Draw the required attention span by task, with published spans; None without spans."""
    bars = [bar for span in spans for bar in _bars(span)]
    if not bars:
        return None
    kinds = list(dict.fromkeys(bar["kind"] for bar in bars))
    colors = {OURS: styles.by_name[BASELINE].color, PUBLISHED: GRAY}
    order = [span.task for span in spans]
    axis = {"labelAngle": 0, "domain": True}
    x = {**nominal("task"), "title": None, "sort": order, "axis": axis}
    x |= {"scale": {"paddingInner": 0.35}}
    offset = {"xOffset": {**nominal("kind"), "sort": kinds}}
    y = {**quantitative("value"), "title": TITLE, "axis": {"tickCount": 5}}
    scale = {"domain": kinds, "range": [colors[kind] for kind in kinds]}
    color = {**nominal("kind"), "scale": scale, "legend": {"title": None, "orient": "top"}}
    about = {"task": "Task", "kind": "Span", "shown": "Mean", "over": "Over"}
    bars_layer = {
        "mark": {"type": "bar", "opacity": 0.6},
        "encoding": {"x": x, **offset, "y": y, "color": color, "tooltip": tooltip(about)},
    }
    errors = {
        "mark": {"type": "rule", "color": "#888888", "strokeWidth": 1.5},
        "encoding": {"x": x, **offset, **low_to_high("y", y)},
    }
    return layered_chart(
        bars,
        [bars_layer, errors, *_uniform_ticks(spans, x)],
        "Required attention span by task: mean distance between query and key, weighted by "
        f"attention, of trained models with {BASELINE} attention",
        height=260,
    )


def _bars(span: RequiredSpan) -> list[dict[str, Any]]:
    """Return the bar of a task, and that of the published span where it compares."""
    bars = [
        {
            "task": span.task,
            "kind": OURS,
            "value": span.mean,
            "low": max(span.mean - span.deviation, 0.0),
            "high": span.mean + span.deviation,
            "shown": f"{_tokens(span.mean)} ± {_tokens(span.deviation)}",
            "over": f"{count(span.samples, 'sample')}, {count(span.seeds, 'seed')}",
        }
    ]
    if span.published is not None:
        mean = float(span.published)
        bars.append(
            {
                "task": span.task,
                "kind": PUBLISHED,
                "value": mean,
                "low": mean - READING_ERROR,
                "high": mean + READING_ERROR,
                "shown": f"{_tokens(mean)} ± {_tokens(READING_ERROR)}",
                "over": "read off figure 2",
            }
        )
    return bars


def _uniform_ticks(spans: Sequence[RequiredSpan], x: Spec) -> list[Spec]:
    """Mark the span of uniform attention on each task."""
    ticks = [
        {"task": span.task, "value": span.uniform, "name": UNIFORM, "shown": _tokens(span.uniform)}
        for span in spans
    ]
    about = {"task": "Task", "name": "Span", "shown": "Mean"}
    place = {"x": x, "y": quantitative("value")}
    mark = {"type": "tick", "thickness": 2, "color": GRAY, "strokeDash": [3, 2]}
    text = {"type": "text", "fontSize": 10, "baseline": "bottom", "dy": -4}
    named = {"values": ticks[:1]}
    return [
        {
            "data": {"values": ticks},
            "mark": {**mark, "bandSize": 60},
            "encoding": {**place, "tooltip": tooltip(about)},
        },
        {"data": named, "mark": text, "encoding": {**place, "text": nominal("name")}},
    ]


def span_by_mechanism(measured: Sequence[Measured], styles: Styles) -> Spec | None:
    """Draw the attention span on one task by mechanism; None below two mechanisms."""
    dots = [
        {
            "row": _name(one, measured),
            "mechanism": one.row_name,
            "value": spans.mean.mean,
            "low": spans.mean.mean - spans.mean.deviation,
            "high": spans.mean.mean + spans.mean.deviation,
            "shown": f"{_tokens(spans.mean.mean)} ± {_tokens(spans.mean.deviation)}",
            "over": count(spans.samples, "sample"),
        }
        for one, spans in sorted(measured, key=lambda x: -x[1].mean.mean)
    ]
    text = "Attention span by mechanism: mean distance weighted by attention"
    return dot_chart(dots, TITLE, _uniform(measured), text, styles)


def span_by_layer(measured: Sequence[Measured], styles: Styles) -> Spec | None:
    """Draw the attention span by layer, a line for each mechanism; None without analyses."""
    points = [
        {
            "row": _name(one, measured),
            "mechanism": one.row_name,
            "place": str(i),
            "value": span.mean,
            "shown": _tokens(span.mean),
        }
        for one, spans in measured
        for i, span in enumerate(spans.layers, 1)
    ]
    text = "Attention span by layer and mechanism"
    return series_chart(points, "Layer", TITLE, _uniform(measured), text, styles)


def _tokens(value: Number) -> str:
    return f"{significant(value)} tokens"


def _name(one: Analysis, measured: Sequence[Measured]) -> str:
    """Return the row, with configuration and seed where it has several analyses."""
    several = sum(other.row_name == one.row_name for other, _ in measured) > 1
    return f"{one.row_name} {one.config_hash[:4]}/{one.seed}" if several else one.row_name


def _uniform(measured: Sequence[Measured]) -> Reference | None:
    """Return the span of uniform attention on the samples."""
    spans = [spans.uniform for _, spans in measured]
    return (UNIFORM, sum(spans) / len(spans)) if spans else None
