"""Charts of analyses of trained models: attention span, embeddings, rollout."""

from collections.abc import Sequence

import numpy as np

from longspan.report.charts.heatmaps import Heatmap, draw_matrix, draw_overlay
from longspan.report.charts.intervals import Reference, dot_chart, series_chart
from longspan.report.charts.styles import Spec, Styles
from longspan.report.numbers import Number, count, significant
from longspan.results import Analysis, Rollout, Similarity

STRIP = 64  # tokens in a line of a rollout that is no image
TITLE = "Attention span, tokens"


def span_by_mechanism(analyses: Sequence[Analysis], styles: Styles) -> Spec | None:
    """Draw the attention span on one task by mechanism; None below two mechanisms."""
    dots = [
        {
            "row": _name(one, analyses),
            "mechanism": one.mechanism,
            "value": one.span.mean,
            "low": one.span.mean - one.span.deviation,
            "high": one.span.mean + one.span.deviation,
            "shown": f"{_tokens(one.span.mean)} ± {_tokens(one.span.deviation)}",
            "over": count(one.samples, "sample"),
        }
        for one in sorted(analyses, key=lambda one: -one.span.mean)
    ]
    text = "Attention span by mechanism: mean distance weighted by attention"
    return dot_chart(dots, TITLE, _uniform(analyses), text, styles)


def span_by_layer(analyses: Sequence[Analysis], styles: Styles) -> Spec | None:
    """Draw the attention span by layer, a line for each mechanism; None without analyses."""
    points = [
        {
            "row": _name(one, analyses),
            "mechanism": one.mechanism,
            "place": str(i),
            "value": span.mean,
            "shown": _tokens(span.mean),
        }
        for one in analyses
        for i, span in enumerate(one.layers, 1)
    ]
    text = "Attention span by layer and mechanism"
    return series_chart(points, "Layer", TITLE, _uniform(analyses), text, styles)


def draw_similarity(similarity: Similarity, name: str) -> Heatmap:
    """Draw the cosine similarities of embeddings; `name` is their kind.

    On a grid of image tiles, each tile shows its own similarities with all tiles of the image
    (Dosovitskiy et al. 2021, figure 7).
    """
    text = f"Cosine similarity of {count(similarity.count, name)}, light low, dark high"
    matrix = np.array(similarity.matrix, float)
    if similarity.grid is not None:
        rows, columns = similarity.grid
        matrix = matrix.reshape(rows, columns, rows, columns).swapaxes(1, 2)
        matrix = matrix.reshape(rows * rows, columns * columns)
        text += "; each tile of the image shows its similarities with all tiles"
    return draw_matrix(matrix, "Cosine", text)


def draw_rollout(rollout: Rollout) -> Heatmap:
    """Draw the share of each token in the output: over the image, or in lines of tokens."""
    text = f"Attention rollout from the {rollout.start}, example {rollout.row} of {rollout.split}"
    if rollout.side and rollout.levels:
        text += "; a stronger glow is a larger share"
        return draw_overlay(rollout.levels, rollout.shares, rollout.side, "Share", text)
    rest = -len(rollout.shares) % STRIP
    shares = [*rollout.shares, *[0.0] * rest]
    strips = [shares[start : start + STRIP] for start in range(0, len(shares), STRIP)]
    text += f", {STRIP} tokens in a line; darker is a larger share"
    return draw_matrix(strips, "Share", text)


def _tokens(value: Number) -> str:
    return f"{significant(value)} tokens"


def _name(one: Analysis, others: Sequence[Analysis]) -> str:
    """Return the mechanism, with configuration and seed where it has several analyses."""
    several = sum(other.mechanism == one.mechanism for other in others) > 1
    return f"{one.mechanism} {one.config_hash[:4]}/{one.seed}" if several else one.mechanism


def _uniform(analyses: Sequence[Analysis]) -> Reference | None:
    """Return the span of uniform attention on the samples."""
    spans = [one.uniform for one in analyses]
    return ("uniform attention", sum(spans) / len(spans)) if spans else None
