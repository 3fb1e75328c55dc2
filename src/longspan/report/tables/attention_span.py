"""Attention span of trained models, and the required span of each task.

Tay et al., "Long Range Arena", 2021, section 3.4 and figure 2.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from longspan.report.leaderboard.values import Leaderboard, Row
from longspan.report.numbers import significant
from longspan.report.tables.columns import name_entry
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import BASELINE, Analysis, AttentionSpans, Result, Span

ABOUT = (
    "Mean distance in tokens between a query and the keys it attends to, weighted by attention, "
    "over validation samples (± standard deviation between samples); mean over the analyzed seeds. "
    "Uniform: span if all tokens weighed the same."
)
READING_ERROR = 50  # tokens; the heights of the bars were read off the figure
# By task: height of the bar of figure 2, shortest and longest input that it compares with.
# Text was run at 1,000 to 4,000 bytes; the paper does not say which length the figure shows.
PUBLISHED_SPANS = {
    "listops": (750, 1_999, 2_048),
    "text": (350, 1_000, 4_096),
    "retrieval": (1_350, 4_000, 4_096),
    "image": (250, 1_024, 1_024),
    "pathfinder": (550, 1_024, 1_024),
}


class Analyzed(NamedTuple):
    """A row with the analyses of its runs on one task."""

    row: Row
    analyses: list[Analysis]

    @property
    def spans(self) -> list[AttentionSpans]:
        """Attention spans of the models that have attention weights."""
        return [one.spans for one in self.analyses if one.spans is not None]


class RequiredSpan(NamedTuple):
    """Spans of the models with full attention on a task, and the published one.

    Attributes:
        published: height of the published bar; None where the inputs have other lengths.
    """

    analyzed: Analyzed
    task: str
    published: int | None

    @property
    def span(self) -> Span:
        """Span of the models, mean over the analyzed seeds."""
        return _mean_span([x.mean for x in self.analyzed.spans])

    @property
    def uniform(self) -> float:
        """Span if all tokens weighed the same."""
        return uniform_span(self.analyzed.spans)


def _mean_span(spans: Sequence[Span]) -> Span:
    """Return the mean of several spans, and of their deviations."""
    means, deviations = zip(*((x.mean, x.deviation) for x in spans), strict=True)
    return Span(mean=statistics.fmean(means), deviation=statistics.fmean(deviations))


def uniform_span(spans: Sequence[AttentionSpans]) -> float:
    """Return the mean span of uniform attention on the samples of several models."""
    return statistics.fmean(x.uniform for x in spans)


def analyzed_rows(board: Leaderboard, column: int, analyses: Sequence[Analysis]) -> list[Analyzed]:
    """Return the rows with analyses of their runs on a task."""
    found = []
    for row in board.rows:
        runs = set(map(_run, row.runs(column)))
        if own := [one for one in analyses if _run(one) in runs]:
            found.append(Analyzed(row, own))
    return found


def _run(one: Result | Analysis) -> tuple[str, str, str, str, int]:
    return one.protocol, one.task, one.row_name, one.config_hash, one.seed


def required_spans(board: Leaderboard, analyses: Sequence[Analysis]) -> list[RequiredSpan]:
    """Return the spans of the models with full attention: of the first analyzed row by task.

    Rows that keep to the protocol are preferred.
    """
    found = []
    for i, column in enumerate(board.columns):
        rows = [x for x in analyzed_rows(board, i, analyses) if x.row.row_name == BASELINE]
        if rows := [x for x in rows if x.spans]:
            one = min(rows, key=lambda x: x.row.is_overridden)
            length = max(run.length for run in one.row.runs(i))
            tokens, shortest, longest = PUBLISHED_SPANS.get(column.task, (0, 1, 0))
            is_same = shortest <= length <= longest
            found.append(RequiredSpan(one, column.label, tokens if is_same else None))
    return found


def attention_span(board: Leaderboard, analyses: Sequence[Analysis]) -> list[Table]:
    """Return the table of required spans, and one for each task with spans of trained models."""
    tables = []
    if required := required_spans(board, analyses):
        name = f"{board.title}-required-attention-span"
        title = "Required attention span by task, tokens"
        tables.append(make_table(name, title, REQUIRED, required))
    for i, column in enumerate(board.columns):
        found = analyzed_rows(board, i, analyses)
        if rows := [one for one in found if one.spans]:
            refusals = {one.refusal for row in found for one in row.analyses if one.refusal}
            layers = max(len(spans.layers) for row in rows for spans in row.spans)
            tables.append(
                make_table(
                    f"{board.title}-attention-span-{column.label}",
                    f"{column.label}: attention span, tokens",
                    [*SPAN, *map(_layer, range(layers)), *SAMPLE],
                    rows,
                    about=ABOUT,
                    notes=[f"No span: {refusal}." for refusal in sorted(refusals)],
                )
            )
    return tables


def _entry(spans: Sequence[Span]) -> Entry:
    if not spans:
        return Entry(value=None)
    one = _mean_span(spans)
    return Entry(
        value=one.mean, text=significant(one.mean), detail=f"± {significant(one.deviation)}"
    )


def _layer(i: int) -> Column:
    def entry(x: Analyzed) -> Entry:
        return _entry([spans.layers[i] for spans in x.spans if i < len(spans.layers)])

    return Column(f"Layer {i + 1}", "higher", value=entry)


def _published(x: RequiredSpan) -> Entry:
    if x.published is None:
        return Entry(value=None)
    return Entry(value=x.published, text=str(x.published), detail=f"± {READING_ERROR}")


SPAN = (
    Column("Mechanism", "text", value=lambda x: name_entry(x.row)),
    Column(
        "Span", "higher", "Mean over layers and heads.", lambda x: _entry([y.mean for y in x.spans])
    ),
)
SAMPLE = (
    Column("Uniform", "higher", "Uniform attention.", lambda x: uniform_span(x.spans), significant),
    Column("Samples", "higher", value=lambda x: min(one.samples for one in x.spans)),
    Column("Seeds", "higher", value=lambda x: len(x.spans)),
)
REQUIRED = (
    Column("Task", "text", value=lambda x: x.task),
    Column("Row", "text", value=lambda x: name_entry(x.analyzed.row)),
    Column("Span", "higher", "± standard deviation between samples.", lambda x: _entry([x.span])),
    Column(
        name="Uniform",
        kind="higher",
        about="Span if all tokens weighed the same.",
        value=lambda x: x.uniform,
        show=significant,
    ),
    Column(
        name="Published",
        kind="higher",
        about=(
            "Height of the bar in Tay et al. 2021, figure 2, read off the figure, where the inputs "
            "have its length (Text: 1,000 to 4,096 bytes). The models of the paper are larger."
        ),
        value=_published,
    ),
    Column(
        name="Length",
        kind="higher",
        about="Real tokens of a sample, mean.",
        value=lambda x: statistics.fmean(one.mean_length for one in x.analyzed.spans),
        show=lambda x: f"{x:,.0f}",
    ),
    Column("Samples", "higher", value=lambda x: min(one.samples for one in x.analyzed.spans)),
    Column("Seeds", "higher", value=lambda x: len(x.analyzed.spans)),
)
