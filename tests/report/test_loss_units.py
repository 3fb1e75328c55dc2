"""Contract: every printed loss has its unit, in tables, charts, lines of a run and alarms."""

import io
import json
import re

import pytest
from report_records import build_leaderboard, context_use, record
from rich.console import Console

from longspan.arena.console import ConsoleCallback, format_progress
from longspan.arena.experiment import Experiment
from longspan.cli.analyzing import context_summary
from longspan.cli.evaluating import _describe
from longspan.metrics import METRICS, get_metric
from longspan.report.charts.curves import learning_curves
from longspan.report.charts.styles import assign_styles
from longspan.report.context import Context
from longspan.report.sections import RUN_SECTIONS, SECTIONS, section_tables
from longspan.results import Inference

UNITS = {"accuracy": " nats", "bits_per_byte": " nats", "perplexity": " nats", "r2": ""}
UNITLESS = re.compile(r"\bloss (?:is )?[\d.]+(?! nats)[ ,;]")
INFERENCE = Inference(examples_per_second=9.0, peak_memory=None)


def losses_of(tables):
    """Yield the entries of columns of losses, and of tables of losses."""
    for table in tables:
        columns = [
            i
            for i, column in enumerate(table.columns)
            if "loss" in column.name.lower() or ("loss" in table.title and column.kind == "lower")
        ]
        yield from (row[i] for row in table.rows for i in columns if row[i].value is not None)


@pytest.mark.parametrize("metric", UNITS)
def test_losses_in_every_table_have_their_unit(metric):
    run = record("local", score=0.4, metric=metric)
    board = build_leaderboard([run])
    context = Context(context_uses=(context_use(run),))
    found = []
    for sections in (SECTIONS, RUN_SECTIONS):
        for section in sections:
            if section.tables is not None:
                tables = section_tables([board], context, section.name, sections)
                found += losses_of(tables)
    assert len(found) > 10
    units = {entry.text.lstrip("0123456789.") for entry in found}
    # Uses of the context are of language models, whatever the record of this test says.
    assert units == {UNITS[metric], " nats"}
    details = [x.detail for x in found if re.search(r"\d", x.detail)]
    assert details
    assert all(text.endswith((" nats", " bits")) for text in details)


@pytest.mark.parametrize("metric", UNITS)
def test_lines_about_losses_have_their_unit(metric):
    run = record("local", score=0.4, metric=metric)
    unit = get_metric(metric).loss_unit
    assert unit == UNITS[metric].strip()
    line = format_progress(3, 9, 1.5, unit)
    assert f"loss 1.500{UNITS[metric]}  " in line
    described = _describe(run.scores["test"], INFERENCE)
    assert re.search(rf"loss [\d.]+{UNITS[metric]}, ", described)
    if unit:
        assert not UNITLESS.search(described)


def test_use_of_the_context_names_the_unit_of_each_loss():
    use = context_use(record("local"))
    for one in use.contexts:
        assert f"{one.loss:.3f} nats with {one.context}" in context_summary(use)


@pytest.mark.parametrize(("metric", "title"), [("accuracy", "nats"), ("r2", None)])
def test_axis_of_losses_names_the_unit(metric, title):
    board = build_leaderboard([record("local", score=0.4, metric=metric)])
    chart = json.dumps(
        learning_curves(board, 0, "training loss", assign_styles({"local": "local"}))
    )
    expected = "Training loss" if title is None else f"Training loss, {title}"
    assert f'"{expected}"' in chart


def test_unit_of_a_run_is_that_of_its_task():
    run = record("local", "listops", options={})
    console = ConsoleCallback(Console(file=io.StringIO()))
    console.on_run_begin(1, 1, Experiment(protocol="own", config=run.config, seed=0))
    assert console.for_run(1).unit == "nats"


def test_only_squared_errors_have_no_unit():
    assert {name for name, x in METRICS.items() if not x.loss_unit} == {"r2", "rmse"}
