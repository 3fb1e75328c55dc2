"""Attention span of trained models, and the required span of each task.

Tay et al., "Long Range Arena", 2021, section 3.4 and figure 2.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from longspan.report.leaderboard.values import Leaderboard
from longspan.report.numbers import significant
from longspan.report.tables.columns import MECHANISM, TASK, TaskRow, measured_task_rows
from longspan.report.tables.table import Column, Entry, Table, make_table
from longspan.results import BASELINE, Analysis, AttentionSpans, Span, Spectra
from longspan.results.analysis import RANKS

ABOUT = (
    "Mean distance in tokens between a query and the keys it attends to, weighted by attention, "
    "over validation samples (± standard deviation between samples); mean over the analyzed seeds. "
    "Uniform: span if all tokens weighed the same."
)
_ABOUT_SPECTRUM = (
    "Sum of the largest singular values of attention over the sum of all, mean over validation "
    "samples, layers and heads (Wang et al. 2020, figure 1); columns: how many, as a share of the "
    "tokens. Near 100 %: few directions hold the matrix."
)
READING_ERROR = 50  # tokens; the heights of the bars were read off the figure
# By task: height of the bar of figure 2, shortest and longest input that it compares with.
# Text was run at 1,000 to 4,000 bytes; the paper does not say which length the figure shows.
_PUBLISHED_SPANS = {
    "listops": (750, 1_999, 2_048),
    "text": (350, 1_000, 4_096),
    "retrieval": (1_350, 4_000, 4_096),
    "image": (250, 1_024, 1_024),
    "pathfinder": (550, 1_024, 1_024),
}


def spans_of(line: TaskRow) -> list[AttentionSpans]:
    """Return the attention spans of a row's analyses, of the models that have weights."""
    return [one.spans for one in line.item if one.spans is not None]


def mean_span(spans: Sequence[Span]) -> Span:
    """Return the mean of several spans, and of their deviations."""
    means, deviations = zip(*((x.mean, x.deviation) for x in spans), strict=True)
    return Span(mean=statistics.fmean(means), deviation=statistics.fmean(deviations))


def uniform_span(spans: Sequence[AttentionSpans]) -> float:
    """Return the mean span of uniform attention on the samples of several models."""
    return statistics.fmean(x.uniform for x in spans)


def published_span(line: TaskRow) -> int | None:
    """Return the height of the published bar; None where the inputs have other lengths."""
    tokens, shortest, longest = _PUBLISHED_SPANS.get(line.task.task, (0, 1, 0))
    return tokens if shortest <= max(run.length for run in line.runs) <= longest else None


def required_spans(board: Leaderboard, analyses: Sequence[Analysis]) -> list[TaskRow]:
    """Return the models with full attention by task: the first row with spans.

    Rows that keep to the protocol are preferred.
    """
    models = []
    for i in range(len(board.columns)):
        lines = measured_task_rows(board, i, analyses)
        if lines := [x for x in lines if x.row.row_name == BASELINE and spans_of(x)]:
            models.append(min(lines, key=lambda x: x.row.is_overridden))
    return models


def attention_span(board: Leaderboard, analyses: Sequence[Analysis]) -> list[Table]:
    """Return the table of required spans, and one for each task with spans of trained models."""
    tables = []
    if required := required_spans(board, analyses):
        name = f"{board.title}-required-attention-span"
        title = "Required attention span by task, tokens"
        tables.append(make_table(name, title, REQUIRED, required))
    for i, column in enumerate(board.columns):
        lines = measured_task_rows(board, i, analyses)
        if rows := [one for one in lines if spans_of(one)]:
            refusals = {one.refusal for line in lines for one in line.item if one.refusal}
            layers = max(len(spans.layers) for line in rows for spans in spans_of(line))
            tables.append(
                make_table(
                    f"{board.title}-attention-span-{column.label}",
                    f"{column.label}: attention span, tokens",
                    [MECHANISM, _SPAN, *map(_layer, range(layers)), UNIFORM, *SIZES],
                    rows,
                    about=ABOUT,
                    notes=[f"No span: {refusal}." for refusal in sorted(refusals)],
                )
            )
    return tables


def spectra_of(line: TaskRow) -> list[Spectra]:
    """Return the spectra of a row's analyses, of the models that have them."""
    return [one.spectra for one in line.item if one.spectra is not None]


def attention_spectrum(board: Leaderboard, analyses: Sequence[Analysis]) -> list[Table]:
    """Return a table for each task with spectra of trained models."""
    tables = []
    for i, column in enumerate(board.columns):
        lines = [x for x in measured_task_rows(board, i, analyses) if spectra_of(x)]
        if lines:
            tables.append(
                make_table(
                    f"{board.title}-attention-spectrum-{column.label}",
                    f"{column.label}: cumulative share of singular values, %",
                    [MECHANISM, *map(_rank, RANKS)],
                    lines,
                    about=_ABOUT_SPECTRUM,
                )
            )
    return tables


def _rank(rank: float) -> Column:
    def entry(x: TaskRow) -> float:
        return 100 * statistics.fmean(one.share(rank) for one in spectra_of(x))

    return Column(f"{100 * rank:.3g} %", "higher", value=entry, show=lambda x: f"{x:.1f}")


def _entry(spans: Sequence[Span]) -> Entry:
    if not spans:
        return Entry(value=None)
    one = mean_span(spans)
    return Entry(
        value=one.mean, text=significant(one.mean), detail=f"± {significant(one.deviation)}"
    )


def _layer(i: int) -> Column:
    def entry(x: TaskRow) -> Entry:
        return _entry([spans.layers[i] for spans in spans_of(x) if i < len(spans.layers)])

    return Column(f"Layer {i + 1}", "higher", value=entry)


def _published(x: TaskRow) -> Entry:
    tokens = published_span(x)
    if tokens is None:
        return Entry(value=None)
    return Entry(value=tokens, text=str(tokens), detail=f"± {READING_ERROR}")


UNIFORM = Column(
    name="Uniform",
    kind="higher",
    about="Uniform attention.",
    value=lambda x: uniform_span(spans_of(x)),
    show=significant,
)
SIZES = (
    Column("Samples", "higher", value=lambda x: min(one.samples for one in spans_of(x))),
    Column("Seeds", "higher", value=lambda x: len(spans_of(x))),
)
_SPAN = Column(
    name="Span",
    kind="higher",
    about="Mean over layers and heads.",
    value=lambda x: _entry([y.mean for y in spans_of(x)]),
)
REQUIRED = (
    TASK,
    replace(MECHANISM, name="Row"),
    replace(_SPAN, about="± standard deviation between samples."),
    replace(UNIFORM, about="Span if all tokens weighed the same."),
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
        value=lambda x: statistics.fmean(one.mean_length for one in spans_of(x)),
        show=lambda x: f"{x:,.0f}",
    ),
    *SIZES,
)
