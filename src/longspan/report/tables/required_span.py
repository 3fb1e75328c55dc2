"""Required attention span: that of trained models with full attention, by task.

Tay et al., "Long Range Arena", 2021, section 3.4 and figure 2.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from longspan.report.leaderboard.values import Leaderboard
from longspan.report.numbers import significant
from longspan.report.tables.analyzed import Analyzed, analyzed_rows
from longspan.report.tables.columns import name_entry
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import BASELINE, Analysis

READING_ERROR = 50  # tokens; the heights of the bars were read off the figure


@dataclass(frozen=True, kw_only=True)
class PublishedSpan:
    """Bar of figure 2, and the maximum lengths of inputs that it compares with."""

    tokens: int
    shortest: int
    longest: int


# Text was run at 1,000 to 4,000 bytes; the paper does not say which length the figure shows.
PUBLISHED_SPANS = {
    "listops": PublishedSpan(tokens=750, shortest=1_999, longest=2_048),
    "text": PublishedSpan(tokens=350, shortest=1_000, longest=4_096),
    "retrieval": PublishedSpan(tokens=1_350, shortest=4_000, longest=4_096),
    "image": PublishedSpan(tokens=250, shortest=1_024, longest=1_024),
    "pathfinder": PublishedSpan(tokens=550, shortest=1_024, longest=1_024),
}


@dataclass(frozen=True, kw_only=True)
class RequiredSpan:
    """Required attention span on a task, in tokens: means over the analyzed seeds.

    Attributes:
        deviation: standard deviation between samples.
        uniform: span of uniform attention.
        length: real tokens of a sample.
        published: height of the published bar; None where the inputs have other lengths.
    """

    analyzed: Analyzed
    task: str
    mean: float
    deviation: float
    uniform: float
    length: float
    samples: int
    seeds: int
    published: int | None


def required_spans(board: Leaderboard, analyses: Sequence[Analysis]) -> list[RequiredSpan]:
    """Return the spans of the models with full attention: of the first analyzed row by task.

    Rows that keep to the protocol are preferred.
    """
    found = []
    for i, column in enumerate(board.columns):
        rows = [
            one
            for one in analyzed_rows(board, i, analyses)
            if one.row.row_name == BASELINE and one.spans
        ]
        if rows:
            one = min(rows, key=lambda x: x.row.is_overridden)
            length = max(run.length for run in one.row.runs(i))
            found.append(_required(one, column.label, _published(column.task, length)))
    return found


def _published(task: str, length: int) -> int | None:
    known = PUBLISHED_SPANS.get(task)
    return known.tokens if known and known.shortest <= length <= known.longest else None


def _required(one: Analyzed, task: str, published: int | None) -> RequiredSpan:
    spans = one.spans
    return RequiredSpan(
        analyzed=one,
        task=task,
        mean=statistics.fmean(x.mean.mean for x in spans),
        deviation=statistics.fmean(x.mean.deviation for x in spans),
        uniform=statistics.fmean(x.uniform for x in spans),
        length=statistics.fmean(x.mean_length for x in spans),
        samples=min(x.samples for x in spans),
        seeds=len(spans),
        published=published,
    )


def _measured(span: RequiredSpan) -> Entry:
    detail = f"± {significant(span.deviation)}"
    return Entry(value=span.mean, text=significant(span.mean), detail=detail)


def _published_entry(span: RequiredSpan) -> Entry:
    if span.published is None:
        return Entry(value=None)
    return Entry(value=span.published, text=str(span.published), detail=f"± {READING_ERROR}")


COLUMNS = (
    Column("Task", "text", value=lambda x: x.task),
    Column("Row", "text", value=lambda x: name_entry(x.analyzed.row)),
    Column("Span", "higher", "± standard deviation between samples.", value=_measured),
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
        value=_published_entry,
    ),
    Column(
        name="Length",
        kind="higher",
        about="Real tokens of a sample, mean.",
        value=lambda x: x.length,
        show=lambda x: f"{x:,.0f}",
    ),
    Column("Samples", "higher", value=lambda x: x.samples),
    Column("Seeds", "higher", value=lambda x: x.seeds),
)


def required_span(board: Leaderboard, analyses: Sequence[Analysis]) -> list[Table]:
    """Return the table of the required attention spans, if there are any."""
    spans = required_spans(board, analyses)
    if not spans:
        return []
    name = f"{board.title}-required-attention-span"
    title = "Required attention span by task, tokens"
    return [make_table(name, title, COLUMNS, spans)]
