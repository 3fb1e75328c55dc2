"""What the analyses of trained models say, as charts and pictures: span, embeddings, rollout."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from longspan.report.dots import Along, Dot, along, ranked, tokens
from longspan.report.pictures import Picture, heat, overlay
from longspan.report.styles import Spec, Styles

if TYPE_CHECKING:
    from longspan.results.analysis import Analysis, Rollout, Similarity

STRIP = 64  # columns of a picture of tokens that are no image


def required_span(
    analyses: Sequence["Analysis"], look: Styles, *, legend: bool = True
) -> Spec | None:
    """The attention span on one task by mechanism; None below two mechanisms."""
    dots = [
        Dot(
            row=_name(one, analyses),
            mechanism=one.mechanism,
            value=one.span.mean,
            low=one.span.mean - one.span.deviation,
            high=one.span.mean + one.span.deviation,
            shown=f"{tokens(one.span.mean)} ± {tokens(one.span.deviation)}",
            over=f"{one.samples} samples",
        )
        for one in analyses
    ]
    text = "Attention span by mechanism: mean distance weighted by attention"
    return ranked(dots, "Attention span, tokens", _uniform(analyses), text, look, legend=legend)


def layers(analyses: Sequence["Analysis"], look: Styles, *, legend: bool = True) -> Spec | None:
    """The attention span by layer, a line for each mechanism; None if there is no analysis."""
    points = [
        Along(_name(one, analyses), one.mechanism, str(i), span.mean, tokens(span.mean))
        for one in analyses
        for i, span in enumerate(one.layers, 1)
    ]
    text = "Attention span by layer and mechanism"
    title = "Attention span, tokens"
    return along(points, "Layer", title, _uniform(analyses), text, look, legend=legend)


def similarity(of: "Similarity", what: str) -> Picture:
    """Cosines of embeddings with one another; `what` says of which."""
    text = f"Cosine similarity of {what}, pale low, dark high; {of.count} of them in order"
    return heat(of.matrix, "Cosine", text)


def rollout(of: "Rollout") -> Picture:
    """Where the output looks in one input: over the image, or row by row over its tokens."""
    text = f"Attention rollout from the {of.start} over example {of.row} of {of.split}"
    if of.side and of.levels:
        return overlay(
            of.levels, of.shares, of.side, "Share", f"{text}: the more it glows the more"
        )
    rest = -len(of.shares) % STRIP
    shares = [*of.shares, *[0.0] * rest]
    strips = [shares[start : start + STRIP] for start in range(0, len(shares), STRIP)]
    return heat(strips, "Share", f"{text}, {STRIP} tokens a row: the darker the more")


def _name(one: "Analysis", others: Sequence["Analysis"]) -> str:
    """The mechanism, with its seed where there are several of it."""
    several = sum(other.mechanism == one.mechanism for other in others) > 1
    return f"{one.mechanism} {one.config_hash[:4]}/{one.seed}" if several else one.mechanism


def _uniform(analyses: Sequence["Analysis"]) -> tuple[str, float] | None:
    """What attention to all tokens alike would need, on the longest-reaching of the samples."""
    spans = [one.uniform for one in analyses]
    return ("uniform attention", sum(spans) / len(spans)) if spans else None
