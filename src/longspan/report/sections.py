"""Sections of a report, in order: their tables, their figures and the texts above them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longspan.errors import OptionError, check_name
from longspan.report.charts import figures
from longspan.report.charts.figures import FORMATS, Figure, write_figure
from longspan.report.charts.styles import PRINT, Medium
from longspan.report.context import Context, styles_of
from longspan.report.leaderboard.ranking import FRONT_RULE
from longspan.report.leaderboard.values import Leaderboard
from longspan.report.tables import one_run, runs
from longspan.report.tables.attention_span import attention_span, attention_spectrum
from longspan.report.tables.context_use import context_use
from longspan.report.tables.correlations import correlations
from longspan.report.tables.cross_evaluations import cross_evaluations
from longspan.report.tables.documents import documents
from longspan.report.tables.efficiency import efficiency_tables
from longspan.report.tables.leaderboard import leaderboards
from longspan.report.tables.published import published
from longspan.report.tables.runs import settings
from longspan.report.tables.significance import significance
from longspan.report.tables.slices import slices
from longspan.report.tables.steps_to_accuracy import steps_to_accuracy
from longspan.report.tables.sweep import scores_by_length, sweep
from longspan.report.tables.table import Table


@dataclass(frozen=True)
class Section:
    """One part of a report on a leaderboard.

    Attributes:
        name: name for `longspan report --section`.
        title: heading on the page.
        tables: its tables; None for a section of figures alone.
        figures: its figures.
        caption: how to read the figures.
    """

    name: str
    title: str
    tables: Callable[[Leaderboard, Context], list[Table]] | None = None
    figures: Callable[[Leaderboard, Context], Iterable[Figure]] | None = None
    caption: str = ""


SECTIONS = (
    Section(
        "quality-and-cost",
        "Quality against cost",
        figures=figures.cost_figures,
        caption=(
            "Test score against training speed, with peak memory as the area of the marks, and "
            f"against peak memory, with speed as the area. Bars are 95 % intervals. {FRONT_RULE}"
        ),
    ),
    Section("intervals", "Scores with intervals", figures=figures.score_figures),
    Section("leaderboard", "Leaderboard", lambda board, _: leaderboards(board)),
    Section(
        "documents",
        "Own documents, beside TF-IDF",
        lambda board, context: documents(board, context.documents),
        figures=figures.document_figures,
        caption=(
            "Share of correct predictions against their probability, in ten equal intervals; a "
            "large mark has many predictions, calibrated ones are on the dashed line."
        ),
    ),
    Section("cost", "Cost", lambda board, _: runs.cost(board)),
    Section(
        "efficiency",
        "Efficiency",
        lambda board, context: efficiency_tables(context.efficiency_of(board), context.published),
        figures=figures.efficiency_figures,
    ),
    Section(
        "curves",
        "Learning curves",
        figures=figures.curve_figures,
        caption=(
            "Mean over seeds, with a band from the lowest to the highest seed; among many "
            "mechanisms, only selected ones have a band. Scores are on validation; the loss is the "
            "training loss since the previous point."
        ),
    ),
    Section(
        "steps-to-accuracy",
        "Steps to a validation score",
        lambda board, _: steps_to_accuracy(board),
    ),
    Section(
        "generalization-gap", "Generalization gap", lambda board, _: runs.generalization_gap(board)
    ),
    Section(
        "other-tasks",
        "Trained on one task, evaluated on another",
        lambda board, context: cross_evaluations(board, context.evaluations),
    ),
    Section(
        "lengths",
        "Trained at one length, evaluated at others",
        lambda board, context: scores_by_length(board, context.evaluations),
        figures=figures.length_figures,
    ),
    Section(
        "sweep",
        "Scores against an option",
        lambda board, context: sweep(board, context.sweep),
        figures=figures.sweep_figures,
        caption=(
            "A point is a seed, a line the mean over the seeds of a row. Dashed: the best score "
            "without a model. All charts have the same axes."
        ),
    ),
    Section(
        "slices",
        "Scores by property of the examples",
        lambda board, _: slices(board),
        figures=figures.slice_figures,
    ),
    Section(
        "context",
        "Use of the context",
        lambda board, context: context_use(board, context.context_uses),
        figures=figures.context_figures,
    ),
    Section(
        "attention-span",
        "Attention span",
        lambda board, context: attention_span(board, context.analyses),
        figures=figures.span_figures,
    ),
    Section(
        "attention-spectrum",
        "Spectrum of attention",
        lambda board, context: attention_spectrum(board, context.analyses),
        figures=figures.spectrum_figures,
    ),
    Section(
        "embeddings",
        "Embeddings",
        figures=figures.similarity_maps,
        caption=(
            "Cosine similarity of embeddings; dark is high. For images, each position has a tile "
            "with its similarity to all positions."
        ),
    ),
    Section(
        "rollouts",
        "Attention rollout",
        figures=figures.rollout_maps,
        caption=(
            "Share of each input token in the output, through all layers (Abnar and Zuidema 2020), "
            "traced back from the CLS token, which keeps the rest, or in a model that pools a "
            "mean, from the mean over the tokens. Each example has its own color scale, from "
            "its lowest share to those of the highest 1 % of its tokens."
        ),
    ),
    Section("significance", "Pairwise differences", lambda board, _: significance(board)),
    Section(
        "published",
        "Published scores and costs",
        lambda board, context: published(board, context.published),
    ),
    Section(
        "predicts",
        "Does Long Range Arena predict it?",
        lambda board, context: correlations(board, context.boards, context.published),
    ),
    Section("tuning", "Hyperparameter search", lambda board, _: runs.tuning(board)),
    Section("alarms", "Alarms", lambda board, _: runs.alarms(board)),
    Section("failures", "Failures", lambda board, _: runs.failures(board)),
    Section("scores", "All scores", lambda board, _: runs.scores(board)),
    Section("settings", "Settings of every run", lambda board, _: settings(board)),
)
_SHARED = {section.name: section for section in SECTIONS}

RUN_SECTIONS = (
    Section("score", "Score", lambda board, _: [one_run.score(board)]),
    Section(
        "configuration", "Command and configuration", lambda board, _: one_run.configuration(board)
    ),
    replace(_SHARED["slices"], tables=lambda board, _: one_run.groups(board)),
    Section(
        "curve",
        "Learning curve",
        lambda board, _: one_run.curve(board),
        figures=figures.curve_figures,
        caption="Bold in the table: the tested checkpoint, where the record names it.",
    ),
    Section("cost", "Cost", lambda board, _: one_run.cost(board)),
    Section("alarms", "Alarms", lambda board, _: runs.alarms(board)),
    _SHARED["documents"],
    _SHARED["tuning"],
    _SHARED["other-tasks"],
    _SHARED["lengths"],
    _SHARED["context"],
    _SHARED["attention-span"],
    _SHARED["embeddings"],
    _SHARED["rollouts"],
    Section("provenance", "Provenance", lambda board, _: one_run.provenance(board)),
)
WITH_TABLES = [section.name for section in SECTIONS if section.tables]


def section_tables(
    boards: Sequence[Leaderboard],
    context: Context,
    only: str | None = None,
    sections: Sequence[Section] = SECTIONS,
) -> list[Table]:
    """Return the tables of all sections, or of one, leaderboard by leaderboard.

    Raises:
        UnknownNameError: no section with tables has this name; the message suggests near names.
    """
    if not context.boards:
        context = replace(context, boards=boards)
    tables = {section.name: section.tables for section in sections if section.tables}
    names = [check_name(only, tables, "section")] if only else list(tables)
    return [table for board in boards for name in names for table in tables[name](board, context)]


def write_figures(
    boards: Sequence[Leaderboard],
    folder: Path,
    format: str,
    context: Context | None = None,
    medium: Medium = PRINT,
) -> list[Path]:
    """Write every figure of a report for print, in the order of the page.

    Args:
        boards: leaderboards of the report.
        folder: folder, created if needed; files of the same names are replaced.
        format: svg, pdf, png, or both for svg and png.
        context: other records.
        medium: `PRINT`, or `PAPER` for a column of a paper.

    Raises:
        OptionError: there is no such format.
        RunError: a file cannot be written.
    """
    if format not in FORMATS:
        raise OptionError(f"figures are written as {', '.join(FORMATS)}, got {format!r}")
    context = replace(context or Context(), styles=styles_of(boards, medium))
    charts = [one for board in boards for one in board_figures(board, context)]
    return [path for one in charts for path in write_figure(one, folder, format, medium)]


def board_figures(board: Leaderboard, context: Context) -> list[Figure]:
    """Return the figures of a leaderboard, in the order of the sections."""
    return [
        one for section in SECTIONS if section.figures for one in section.figures(board, context)
    ]
