"""Charts of the attention span of trained models."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from longspan.report.charts.intervals import dot_chart, series_chart
from longspan.report.charts.styles import (
    Reference,
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
PUBLISHED_COLOR, UNIFORM_COLOR = "#0072B2", "#D55E00"


class Measured(NamedTuple):
    """Attention spans of one trained model, with the label of its row."""

    label: str
    analysis: Analysis
    spans: AttentionSpans


def span_by_task(spans: Sequence[RequiredSpan], styles: Styles) -> Spec | None:
    """Draw the required attention span by task, with published spans; None without spans."""
    bars = [bar for span in spans for bar in _bars(span)]
    if not bars:
        return None
    kinds = list(dict.fromkeys(bar["kind"] for bar in bars))
    own = styles.by_name[spans[0].analyzed.row.label].color
    colors = {OURS: own, PUBLISHED: PUBLISHED_COLOR, UNIFORM: UNIFORM_COLOR}
    order = [span.task for span in spans]
    axis = {"labelAngle": 0, "domain": True}
    x = {**nominal("task"), "title": None, "sort": order, "axis": axis}
    x |= {"scale": {"paddingInner": 0.35}}
    offset = {"xOffset": {**nominal("kind"), "sort": kinds}}
    y = {**quantitative("value"), "title": TITLE, "axis": {"tickCount": 5}}
    named = [*kinds, UNIFORM]
    scale = {"domain": named, "range": [colors[kind] for kind in named]}
    legend = {"title": None, "orient": "top", "labelLimit": 0, "symbolOpacity": 1}
    legend["columns"] = styles.medium.legend_columns(named)
    color = {**nominal("kind"), "scale": scale, "legend": legend}
    about = {"task": "Task", "kind": "Span", "shown": "Mean", "over": "Over"}
    bars_layer = {
        "mark": {"type": "bar", "opacity": 0.45},
        "encoding": {"x": x, **offset, "y": y, "color": color, "tooltip": tooltip(about)},
    }
    errors = {
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {"x": x, **offset, **low_to_high("y", y), "color": color},
    }
    return layered_chart(
        bars,
        [bars_layer, errors, _uniform_ticks(spans, x, color)],
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


def _uniform_ticks(spans: Sequence[RequiredSpan], x: Spec, color: Spec) -> Spec:
    """Mark the span of uniform attention on each task."""
    ticks = [
        {"task": span.task, "value": span.uniform, "kind": UNIFORM, "shown": _tokens(span.uniform)}
        for span in spans
    ]
    about = tooltip({"task": "Task", "kind": "Span", "shown": "Mean"})
    return {
        "data": {"values": ticks},
        "mark": {"type": "tick", "thickness": 2, "bandSize": 60},
        "encoding": {"x": x, "y": quantitative("value"), "color": color, "tooltip": about},
    }


def span_by_mechanism(measured: Sequence[Measured], styles: Styles) -> Spec | None:
    """Draw the attention span on one task by mechanism; None below two mechanisms."""
    dots = [
        {
            "row": _name(one, measured),
            "mechanism": one.label,
            "value": one.spans.mean.mean,
            "low": one.spans.mean.mean - one.spans.mean.deviation,
            "high": one.spans.mean.mean + one.spans.mean.deviation,
            "shown": f"{_tokens(one.spans.mean.mean)} ± {_tokens(one.spans.mean.deviation)}",
            "over": count(one.spans.samples, "sample"),
        }
        for one in sorted(measured, key=lambda x: -x.spans.mean.mean)
    ]
    text = "Attention span by mechanism: mean distance weighted by attention"
    return dot_chart(dots, TITLE, _uniform(measured), text, styles)


def span_by_layer(measured: Sequence[Measured], styles: Styles) -> Spec | None:
    """Draw the attention span by layer, a line for each mechanism; None without analyses."""
    points = [
        {
            "row": _name(one, measured),
            "mechanism": one.label,
            "place": str(i),
            "value": span.mean,
            "shown": _tokens(span.mean),
        }
        for one in measured
        for i, span in enumerate(one.spans.layers, 1)
    ]
    text = "Attention span by layer and mechanism"
    return series_chart(points, "Layer", TITLE, _uniform(measured), text, styles)


def _tokens(value: Number) -> str:
    return f"{significant(value)} tokens"


def _name(one: Measured, measured: Sequence[Measured]) -> str:
    """Return the label of the row, with the seed where it has several analyses."""
    several = sum(other.label == one.label for other in measured) > 1
    return f"{one.label}, seed {one.analysis.seed}" if several else one.label


def _uniform(measured: Sequence[Measured]) -> Reference | None:
    """Return the span of uniform attention on the samples."""
    spans = [one.spans.uniform for one in measured]
    return (UNIFORM, sum(spans) / len(spans)) if spans else None
