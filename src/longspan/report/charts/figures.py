"""Figures of the sections of a leaderboard, and their files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from longspan.files import atomic_write
from longspan.report.charts.attention_spans import (
    span_by_layer,
    span_by_mechanism,
    span_by_task,
    spectrum_by_layer,
)
from longspan.report.charts.contexts import attention_by_bucket, loss_by_context
from longspan.report.charts.curves import QUANTITIES, learning_curves
from longspan.report.charts.intervals import score_intervals, series_chart, slice_series
from longspan.report.charts.pictures import Heatmap, Picture, save_svg
from longspan.report.charts.reliability import reliability
from longspan.report.charts.rollout_pictures import draw_rollouts
from longspan.report.charts.similarity_maps import draw_similarity, draw_similarity_grid
from longspan.report.charts.spec import Spec
from longspan.report.charts.styles import PRINT, Medium, run_label, save_chart
from longspan.report.charts.sweeps import sweep_charts
from longspan.report.charts.tradeoff import PANELS, score_against_cost
from longspan.report.context import Context
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.numbers import ratio
from longspan.report.tables.attention_span import required_spans
from longspan.report.tables.columns import measured_task_rows
from longspan.report.tables.context_use import measured_rows
from longspan.report.tables.documents import ways_by_documents
from longspan.report.tables.efficiency import group_title, measurement_groups, over_baseline
from longspan.report.tables.slices import properties
from longspan.report.tables.sweep import SweepPoint, length_points, sweep_points
from longspan.report.tables.table import slug
from longspan.results import BASELINE, Analysis

FORMATS = {"svg": (".svg",), "pdf": (".pdf",), "png": (".png",), "both": (".svg", ".png")}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart, heatmap or picture with its caption; the name is the stem of its file."""

    name: str
    caption: str
    content: Spec | Heatmap | Picture


def score_figures(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw scores by mechanism, for each task."""
    draw = partial(score_intervals, board, styles=context.styles)
    return _by_task(board, ("scores {}", "{}", draw))


def cost_figures(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw scores against speed and memory: the first mean, then each task, by hardware."""
    tasks = len(board.columns)
    places = [*([tasks] if board.means else []), *range(tasks)]
    for device in board.hardware:
        suffix = f" {device}" if len(board.hardware) > 1 else ""
        for place in places:
            label = board.scored[place].label
            for panel in PANELS:
                chart = score_against_cost(board, place, device, context.styles, panel=panel)
                name = f"cost {label} {panel}{suffix}"
                yield from _chart(board, name, f"{label}, {panel}, {device}", chart)


def curve_figures(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw validation score and training loss against the step, for each task."""
    draw = partial(learning_curves, board, styles=context.styles)
    charts = [(f"curves {{}} {x}", f"{{}}, {x}", partial(draw, quantity=x)) for x in QUANTITIES]
    return _by_task(board, *charts)


def slice_figures(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw scores by slice, for each task and property."""
    for i, task in enumerate(board.columns):
        for name in properties(board, i):
            chart = slice_series(board, i, name, context.styles)
            caption = f"{task.label} by {name}"
            yield from _chart(board, f"slices {task.label} {name}", caption, chart)


def document_figures(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw the reliability of the probabilities on each set of documents."""
    for i in range(len(board.columns)):
        for title, ways in ways_by_documents(board, i, context.documents).items():
            chart = reliability(ways, title, context.styles)
            yield from _chart(board, f"reliability {title}", f"Reliability, {title}", chart)


def length_figures(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw the test score against the length of the evaluation, for each task."""
    return _sweep(board, "length", length_points(board, context.evaluations), context)


def sweep_figures(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw the test score against the swept option, for each group of runs."""
    return _sweep(board, context.sweep or "", sweep_points(board, context.sweep), context)


def _sweep(
    board: Leaderboard, option: str, points: Sequence[SweepPoint], context: Context
) -> Iterator[Figure]:
    for label, chart in sweep_charts(points, option, context.styles.medium):
        yield from _chart(board, f"sweep {option} {label}", f"{label}, by {option}", chart)


def span_figures(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw the required span by task, then the span by mechanism and by layer for each task."""
    required = span_by_task(required_spans(board, context.analyses), context.styles)
    caption = f"Required attention span: {BASELINE}, by task"
    yield from _chart(board, "required span", caption, required)
    lines, styles = partial(measured_task_rows, board, records=context.analyses), context.styles
    yield from _by_task(
        board,
        ("span {}", "{}, attention span", lambda i: span_by_mechanism(lines(i), styles)),
        ("layers {}", "{}, attention span by layer", lambda i: span_by_layer(lines(i), styles)),
    )


def spectrum_figures(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw the share of the largest quarter of the singular values by layer, for each task."""
    lines, styles = partial(measured_task_rows, board, records=context.analyses), context.styles
    caption = "{}, largest quarter of the singular values by layer"
    return _by_task(board, ("spectrum {}", caption, lambda i: spectrum_by_layer(lines(i), styles)))


def context_figures(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw the loss by the context that is left, and attention by bucket, for each task."""
    rows = partial(measured_rows, board, uses=context.context_uses)
    losses, buckets = "loss by the context that is left", "attention by bucket of the keys"
    return _by_task(
        board,
        ("context {}", f"{{}}, {losses}", lambda i: loss_by_context(rows(i), context.styles)),
        ("buckets {}", f"{{}}, {buckets}", lambda i: attention_by_bucket(rows(i), context.styles)),
    )


def efficiency_figures(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw speed over that of the baseline by length, behind the first leaderboard."""
    styles, axis = context.styles, f"Speed over {BASELINE}"
    for number, record in enumerate(context.efficiency_of(board), 1):
        for group, measurements in measurement_groups(record).items():
            points = [
                {
                    **run_label(x.mechanism, 0, 1),
                    **{"place": f"{x.length:,}", "value": value, "shown": ratio(value)},
                }
                for x in sorted(measurements, key=lambda x: x.length)
                if x.mechanism in styles.by_name
                and (value := over_baseline(x, measurements)) is not None
            ]
            title = group_title(group)
            if len({x["place"] for x in points}) > 1:
                text = f"{axis}, {title}"
                chart = series_chart(points, "Length, tokens", axis, None, text, styles)
                yield from _chart(board, f"efficiency {number} {title}", title, chart)


def similarity_maps(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw the similarity of position and of token embeddings.

    Positions of images are drawn one by one for the baseline, or the first model of the task,
    and by tile for the others, since each such map has a million cells.
    """
    for i in range(len(board.columns)):
        lines = measured_task_rows(board, i, context.analyses)
        models = [(one, x.row.label) for x in lines for one in x.item]
        if not models:
            continue
        lead, _ = min(models, key=lambda pair: pair[0].row_name != BASELINE)
        for one, name in models:
            yield from _similarity_figures(one, name, is_fine=one is lead)


def rollout_maps(board: Leaderboard, context: Context) -> Iterator[Figure]:
    """Draw the attention rollouts of each analyzed model."""
    for i in range(len(board.columns)):
        for x in measured_task_rows(board, i, context.analyses):
            for one in (each for each in x.item if each.rollouts):
                kind = f"rollout from {one.rollouts[0].start}"
                content = draw_rollouts(one.rollouts)
                yield _figure("rollout", one, x.row.label, content, kind)


def _by_task(
    board: Leaderboard, *charts: tuple[str, str, Callable[[int], Spec | None]]
) -> Iterator[Figure]:
    """Yield some charts for each task; their names and captions have its label in a placeholder."""
    for i, task in enumerate(board.columns):
        for name, caption, draw in charts:
            label = task.label
            yield from _chart(board, name.format(label), caption.format(label), draw(i))


def _chart(board: Leaderboard, name: str, caption: str, chart: Spec | None) -> Iterator[Figure]:
    if chart is not None:
        yield Figure(name=slug(f"{board.title} {name}"), caption=caption, content=chart)


def _similarity_figures(one: Analysis, name: str, *, is_fine: bool) -> Iterator[Figure]:
    """Draw the similarity of position and of token embeddings, where they exist."""
    for part, similarity in (("position", one.positions), ("token", one.tokens)):
        if similarity is not None:
            kind = f"{part} embedding"
            is_grid = is_fine and similarity.grid is not None
            draw = draw_similarity_grid if is_grid else draw_similarity
            yield _figure(part, one, name, draw(similarity, kind), f"{kind}s")


def _figure(part: str, one: Analysis, name: str, content: Heatmap | Picture, kind: str) -> Figure:
    stem = slug(f"{one.protocol} {part} {one.task} {one.row_name} {one.config_hash} {one.seed}")
    caption = f"{name} on {one.task}, seed {one.seed}: {kind}"
    return Figure(name=stem, caption=caption, content=content)


def write_figure(figure: Figure, folder: Path, format: str, medium: Medium = PRINT) -> list[Path]:
    """Write a figure for print: on white, with legends.

    Args:
        figure: figure to write.
        folder: folder, created if needed; files of the same names are replaced.
        format: one of `FORMATS`; heatmaps are always png, and pictures with text svg or png.
        medium: `PRINT`, or `PAPER` for a column of a paper.

    Raises:
        RunError: a file cannot be written.
    """
    suffixes = FORMATS[format]
    content, paths = figure.content, [folder / f"{figure.name}{suffix}" for suffix in suffixes]
    if isinstance(content, Picture):
        return [save_svg(content.file_svg, path) for path in paths]
    if not isinstance(content, Heatmap):
        return [save_chart(content, path, medium) for path in paths]
    path = folder / f"{figure.name}.png"
    with atomic_write(path) as temporary:
        temporary.write_bytes(content.png(scale=8))
    return [path]
