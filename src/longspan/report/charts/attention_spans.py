"""Charts of the attention span of trained models."""

from collections.abc import Iterator, Sequence
from typing import Any

from longspan.report.charts.intervals import dot_chart, series_chart
from longspan.report.charts.spec import (
    Spec,
    layer,
    layered_chart,
    low_to_high,
    nominal,
    quantitative,
    tooltip,
)
from longspan.report.charts.styles import Styles, run_label
from longspan.report.numbers import Number, count, significant
from longspan.report.tables.attention_span import (
    READING_ERROR,
    mean_span,
    published_span,
    spans_of,
    spectra_of,
    uniform_span,
)
from longspan.report.tables.columns import TaskRow
from longspan.results import BASELINE, AttentionSpans

_TITLE = "Attention span, tokens"
OURS, PUBLISHED = "measured", "published (Tay et al. 2021)"
UNIFORM = "uniform attention"
_QUARTER = 1 / 4  # of the tokens; figure 1 of Linformer maps the 128th of 512 singular values
PUBLISHED_COLOR, UNIFORM_COLOR = "#0072B2", "#D55E00"


def span_by_task(lines: Sequence[TaskRow], styles: Styles) -> Spec | None:
    """Draw the required attention span by task, with published spans; None without spans."""
    bars = [bar for line in lines for bar in _bars(line)]
    if not bars:
        return None
    kinds = list(dict.fromkeys(bar["kind"] for bar in bars))
    our_color = styles.by_name[lines[0].row.label].color
    colors = {OURS: our_color, PUBLISHED: PUBLISHED_COLOR, UNIFORM: UNIFORM_COLOR}
    legend_kinds = [*kinds, UNIFORM]
    x = {**nominal("task"), "title": None, "sort": [line.task.label for line in lines]}
    x |= {"axis": {"labelAngle": 0, "domain": True}, "scale": {"paddingInner": 0.35}}
    y = {**quantitative("value"), "title": _TITLE, "axis": {"tickCount": 5}}
    scale = {"domain": legend_kinds, "range": [colors[kind] for kind in legend_kinds]}
    legend = {"title": None, "orient": "top", "labelLimit": 0, "symbolOpacity": 1}
    legend["columns"] = styles.medium.legend_columns(legend_kinds)
    color = {**nominal("kind"), "scale": scale, "legend": legend}
    base = {"x": x, "xOffset": {**nominal("kind"), "sort": kinds}, "color": color}
    about = {"task": "Task", "kind": "Span", "shown": "Mean"}
    named = {**base, "y": y, "tooltip": tooltip({**about, "over": "Over"})}
    uniform = {"x": x, "color": color, "y": quantitative("value"), "tooltip": tooltip(about)}
    values = [_bar(x.task.label, UNIFORM, _uniform([x])) for x in lines]
    return layered_chart(
        bars,
        [
            layer("bar", named, opacity=0.45),
            layer("rule", {**base, **low_to_high("y", y)}, strokeWidth=1.5),
            layer("tick", uniform, values=values, thickness=2, bandSize=60),
        ],
        "Required attention span by task: mean distance between query and key, weighted by "
        f"attention, of trained models with {BASELINE} attention",
        height=260,
    )


def _bars(x: TaskRow) -> Iterator[dict[str, Any]]:
    """Yield the bar of a task, and that of the published span where it compares."""
    spans, task = spans_of(x), x.task.label
    over = f"{count(min(y.samples for y in spans), 'sample')}, {count(len(spans), 'seed')}"
    span = mean_span([one.mean for one in spans])
    yield {**_bar(task, OURS, span.mean, span.deviation), "over": over}
    if (published := published_span(x)) is not None:
        bar = _bar(task, PUBLISHED, float(published), READING_ERROR)
        yield {**bar, "over": "read off figure 2"}


def _bar(task: str, kind: str, value: float, error: float | None = None) -> dict[str, Any]:
    bar = {"task": task, "kind": kind, "value": value, "shown": _tokens(value)}
    return bar if error is None else {**bar, **_range(value, error), "low": max(value - error, 0.0)}


def _range(value: float, error: float) -> dict[str, Any]:
    shown = f"{_tokens(value)} ± {_tokens(error)}"
    return {"low": value - error, "high": value + error, "shown": shown}


def _tokens(value: Number) -> str:
    return f"{significant(value)} tokens"


def span_by_mechanism(lines: Sequence[TaskRow], styles: Styles) -> Spec | None:
    """Draw the attention span on one task by mechanism; None below two models."""
    dots = [
        {
            **about,
            "value": spans.mean.mean,
            **_range(spans.mean.mean, spans.mean.deviation),
            "over": count(spans.samples, "sample"),
        }
        for about, spans in sorted(_models(lines), key=lambda x: -x[1].mean.mean)
    ]
    text = "Attention span by mechanism: mean distance weighted by attention"
    return dot_chart(dots, _TITLE, (UNIFORM, _uniform(lines)), text, styles)


def span_by_layer(lines: Sequence[TaskRow], styles: Styles) -> Spec | None:
    """Draw the attention span by layer, a line for each mechanism; None without analyses."""
    points = [
        {**about, "place": str(i), "value": span.mean, "shown": _tokens(span.mean)}
        for about, spans in _models(lines)
        for i, span in enumerate(spans.layers, 1)
    ]
    text = "Attention span by layer and mechanism"
    return series_chart(points, "Layer", _TITLE, (UNIFORM, _uniform(lines)), text, styles)


def spectrum_by_layer(lines: Sequence[TaskRow], styles: Styles) -> Spec | None:
    """Draw the share of a quarter of the singular values by layer; None without spectra."""
    points = [
        {
            **run_label(line.row.label, one.seed, len(spectra_of(line))),
            "place": str(layer + 1),
            "value": (share := 100 * one.spectra.share(_QUARTER, layer)),
            "shown": f"{share:.1f} %",
        }
        for line in lines
        for one in line.item
        if one.spectra is not None
        for layer in range(len(one.spectra.heads))
    ]
    text = "Share of the largest quarter of the singular values of attention by layer and mechanism"
    uniform = (UNIFORM, 100.0)
    return series_chart(points, "Layer", "Share of singular values, %", uniform, text, styles)


def _models(lines: Sequence[TaskRow]) -> Iterator[tuple[dict[str, Any], AttentionSpans]]:
    """Yield each model with attention weights: names in the chart, and its spans."""
    for line in lines:
        for one in line.item:
            if one.spans is not None:
                yield run_label(line.row.label, one.seed, len(spans_of(line))), one.spans


def _uniform(lines: Sequence[TaskRow]) -> float:
    spans = [one for line in lines for one in spans_of(line)]
    return uniform_span(spans) if spans else 0.0
