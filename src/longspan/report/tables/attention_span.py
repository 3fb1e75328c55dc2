"""Attention span of trained models (Tay et al. 2021, section 3.4)."""

import statistics
from collections.abc import Sequence

from longspan.report.leaderboard.values import Leaderboard
from longspan.report.numbers import significant
from longspan.report.tables.analyzed import Analyzed, analyzed_rows
from longspan.report.tables.columns import name_entry
from longspan.report.tables.required_span import required_span
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import Analysis, Span

ABOUT = (
    "Mean distance in tokens between a query and the keys it attends to, weighted by attention, "
    "over validation samples (± standard deviation between samples); mean over the analyzed seeds. "
    "Uniform: span if all tokens weighed the same."
)


def attention_span(board: Leaderboard, analyses: Sequence[Analysis]) -> list[Table]:
    """Return the table of required spans, and one for each task with spans of trained models."""
    found = [analyzed_rows(board, i, analyses) for i in range(len(board.columns))]
    tables = [
        _table(board, i, rows) for i, rows in enumerate(found) if any(one.spans for one in rows)
    ]
    return [*required_span(board, analyses), *tables]


def _table(board: Leaderboard, i: int, analyzed: Sequence[Analyzed]) -> Table:
    label = board.columns[i].label
    rows = [row for row in analyzed if row.spans]
    layers = max(len(spans.layers) for row in rows for spans in row.spans)
    refusals = {one.refusal for row in analyzed for one in row.analyses if one.refusal}
    return make_table(
        f"{board.title}-attention-span-{label}",
        f"{label}: attention span, tokens",
        [
            Column("Mechanism", "text", value=lambda x: name_entry(x.row)),
            Column(
                name="Span",
                kind="higher",
                about="Mean over layers and heads.",
                value=lambda x: _distance([one.mean for one in x.spans]),
            ),
            *(_layer(i) for i in range(layers)),
            Column(
                name="Uniform",
                kind="higher",
                about="Uniform attention.",
                value=lambda x: statistics.fmean(one.uniform for one in x.spans),
                show=significant,
            ),
            Column("Samples", "higher", value=lambda x: min(one.samples for one in x.spans)),
            Column("Seeds", "higher", value=lambda x: len(x.spans)),
        ],
        rows,
        about=ABOUT,
        notes=[f"No span: {refusal}." for refusal in sorted(refusals)],
    )


def _layer(i: int) -> Column:
    return Column(f"Layer {i + 1}", "higher", value=lambda x: _distance(x.layer(i)))


def _distance(spans: Sequence[Span]) -> Entry:
    if not spans:
        return Entry(value=None)
    mean = statistics.fmean(span.mean for span in spans)
    deviation = statistics.fmean(span.deviation for span in spans)
    return Entry(value=mean, text=significant(mean), detail=f"± {significant(deviation)}")
