"""Attention span of trained models (Tay et al. 2021, section 3.4)."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from longspan.report.leaderboard.values import Leaderboard, Row
from longspan.report.numbers import significant
from longspan.report.tables.columns import name_entry
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import Analysis, Span

ABOUT = (
    "Mean distance in tokens between a query and the keys it attends to, weighted by attention, "
    "over validation samples (± standard deviation between samples); mean over the analyzed seeds. "
    "Uniform: span if all tokens weighed the same."
)


@dataclass(frozen=True, kw_only=True)
class Analyzed:
    """A row with the analyses of its runs on one task."""

    row: Row
    analyses: list[Analysis]

    def layer(self, i: int) -> list[Span]:
        """Return the spans of a layer, of the models that have it."""
        return [one.layers[i] for one in self.analyses if i < len(one.layers)]


def attention_span(board: Leaderboard, analyses: Sequence[Analysis]) -> list[Table]:
    """Return a table for each task with analyses of runs of the leaderboard."""
    return [
        _table(board, i, found)
        for i in range(len(board.columns))
        if (found := analyzed_rows(board, i, analyses))
    ]


def analyzed_rows(board: Leaderboard, column: int, analyses: Sequence[Analysis]) -> list[Analyzed]:
    """Return the rows with analyses of their runs on a task."""
    found = []
    for row in board.rows:
        runs = {(run.protocol, run.task, run.config_hash, run.seed) for run in row.runs(column)}
        own = [x for x in analyses if (x.protocol, x.task, x.config_hash, x.seed) in runs]
        if own:
            found.append(Analyzed(row=row, analyses=own))
    return found


def _table(board: Leaderboard, i: int, rows: Sequence[Analyzed]) -> Table:
    label = board.columns[i].label
    layers = max(len(one.layers) for row in rows for one in row.analyses)
    return make_table(
        f"{board.title}-attention-span-{label}",
        f"{label}: attention span, tokens",
        [
            Column("Mechanism", "text", value=lambda x: name_entry(x.row)),
            Column(
                name="Span",
                kind="higher",
                about="Mean over layers and heads.",
                value=lambda x: _distance([one.span for one in x.analyses]),
            ),
            *(_layer(i) for i in range(layers)),
            Column(
                name="Uniform",
                kind="higher",
                about="Uniform attention.",
                value=lambda x: statistics.fmean(one.uniform for one in x.analyses),
                show=significant,
            ),
            Column("Samples", "higher", value=lambda x: min(one.samples for one in x.analyses)),
            Column("Seeds", "higher", value=lambda x: len(x.analyses)),
        ],
        rows,
        about=ABOUT,
    )


def _layer(i: int) -> Column:
    return Column(f"Layer {i + 1}", "higher", value=lambda x: _distance(x.layer(i)))


def _distance(spans: Sequence[Span]) -> Entry:
    if not spans:
        return Entry(value=None)
    mean = statistics.fmean(span.mean for span in spans)
    deviation = statistics.fmean(span.deviation for span in spans)
    return Entry(value=mean, text=significant(mean), detail=f"± {significant(deviation)}")
