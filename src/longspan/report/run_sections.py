"""Sections of the page of one run."""

from dataclasses import replace

from longspan.report.charts.figures import FigureSource
from longspan.report.sections import SECTIONS, Section
from longspan.report.tables import one_run, runs

_SHARED = {section.name: section for section in SECTIONS}

RUN_SECTIONS = (
    Section(name="score", title="Score", tables=lambda board, _: [one_run.score(board)]),
    Section(
        name="configuration",
        title="Command and configuration",
        tables=lambda board, _: one_run.configuration(board),
    ),
    replace(
        _SHARED["slices"],
        tables=lambda board, _: one_run.groups(board),
    ),
    Section(
        name="curve",
        title="Learning curve",
        tables=lambda board, _: one_run.curve(board),
        figures=FigureSource.curves,
        caption="Bold in the table: the tested checkpoint, where the record names it.",
    ),
    Section(name="cost", title="Cost", tables=lambda board, _: one_run.cost(board)),
    Section(name="alarms", title="Alarms", tables=lambda board, _: runs.alarms(board)),
    _SHARED["tuning"],
    _SHARED["other-tasks"],
    _SHARED["context"],
    _SHARED["attention-span"],
    _SHARED["embeddings"],
    _SHARED["rollouts"],
    Section(
        name="provenance",
        title="Provenance",
        tables=lambda board, _: one_run.provenance(board),
    ),
)
