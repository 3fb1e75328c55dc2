"""How far trained models look: the attention span of Tay et al. 2021, section 3.4, as a table."""

import statistics
from collections.abc import Sequence

from longspan.report.numbers import significant
from longspan.report.rows import Row, Table
from longspan.report.sheets import Entry, Heading, Sheet, named, slug, whole
from longspan.results import Analysis
from longspan.results.analysis import Span

ABOUT = (
    "Mean distance in tokens between a query and the keys it attends to, weighted by its "
    "attention, over validation samples (± the deviation between samples), then by layer; mean "
    "over the seeds that were analyzed. Uniform: of attending to every token alike on them."
)


def sheets(table: Table, analyses: Sequence[Analysis]) -> list[Sheet]:
    """One for each task with analyses of runs of the table."""
    drawn = [_sheet(table, i, analyses) for i in range(len(table.columns))]
    return [sheet for sheet in drawn if sheet.rows]


def _sheet(table: Table, column: int, analyses: Sequence[Analysis]) -> Sheet:
    label = table.columns[column].label
    found = [(row, of(row, column, analyses)) for row in table.rows]
    found = [(row, several) for row, several in found if several]
    layers = max((len(one.layers) for _, several in found for one in several), default=0)
    return Sheet(
        name=slug(f"{table.title}-span-{label}"),
        title=f"{label}: attention span, tokens",
        about=ABOUT,
        headings=(
            Heading(name="Mechanism", kind="text"),
            Heading(name="Span", kind="score", about="Mean over layers and heads."),
            *(Heading(name=f"Layer {i + 1}", kind="score") for i in range(layers)),
            Heading(name="Uniform", kind="score", about="Of uniform attention."),
            *(Heading(name="Samples", kind="score"), Heading(name="Seeds", kind="score")),
        ),
        rows=tuple(_line(row, several, layers) for row, several in found),
    )


def of(row: Row, column: int, analyses: Sequence[Analysis]) -> list[Analysis]:
    """The analyses of the runs of a row on the task of a column."""
    runs = {(run.protocol, run.task, run.config_hash, run.seed) for run in row.runs(column)}
    return [x for x in analyses if (x.protocol, x.task, x.config_hash, x.seed) in runs]


def _line(row: Row, several: Sequence[Analysis], layers: int) -> tuple[Entry, ...]:
    deep = [[one.layers[i] for one in several if i < len(one.layers)] for i in range(layers)]
    uniform = statistics.fmean(one.uniform for one in several)
    return (
        named(row.label, row.mechanism),
        _distance([one.span for one in several]),
        *(_distance(part) for part in deep),
        Entry(value=uniform, shown=significant(uniform)),
        *(whole(min(one.samples for one in several)), whole(len(several))),
    )


def _distance(parts: Sequence[Span]) -> Entry:
    if not parts:
        return Entry(value=None)
    mean = statistics.fmean(part.mean for part in parts)
    deviation = statistics.fmean(part.deviation for part in parts)
    return Entry(value=mean, shown=significant(mean), detail=f"± {significant(deviation)}")
