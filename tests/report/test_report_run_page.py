"""Page of one run."""

import dataclasses
import re

import pytest
from report_records import analysis, build_leaderboard, record, with_train

from longspan.report.context import Context
from longspan.report.output.page import render_page
from longspan.report.output.text import to_csv
from longspan.report.sections import RUN_SECTIONS, section_tables
from longspan.report.tables import one_run
from longspan.results import Alarm, Slice


def run():
    classes = [Slice(label=x, value=0.4, num_targets=50) for x in ("cat", "dog")]
    alarm = Alarm(kind="chance", step=40, message="at chance <still>")
    found = record(
        "local",
        options={"window": 16},
        slices={"class": classes},
        alarms=[alarm],
        overrides={"training.steps": 500},
    )
    return with_train(found, 0.5)


def texts(table):
    return [[entry.text for entry in row] for row in table.rows]


def test_page_has_every_part_of_a_run():
    one = run()
    board = build_leaderboard([one])
    page = render_page([board], Context(analyses=(analysis(one),)), one)
    found = re.findall(r'<h3 id="protocol-1-([a-z-]+)"', page)
    assert found == [
        *("score", "configuration", "slices", "curve", "cost", "alarms"),
        *("attention-span", "provenance"),
    ]
    assert "<h1>local on listops, seed 0</h1>" in page
    assert "at chance &lt;still&gt;" in page
    assert 'data-chart="lra-small-curves-listops-validation-score"' in page
    assert 'class="cards"' not in page


def test_tables_hold_the_values_of_the_record():
    one = run()
    board = build_leaderboard([one])
    score = one_run.score(board)
    assert [row[0].text for row in score.rows] == ["test", "validation", "train"]
    interval = board.rows[0].cells[0].interval
    assert score.rows[0][1].value == one.score("test")
    assert f"{100 * interval.low:.1f}–{100 * interval.high:.1f}" in score.rows[0][1].detail
    (classes,) = one_run.groups(board)
    assert texts(classes) == [["cat", "40.0", "50"], ["dog", "40.0", "50"]]
    (curve,) = one_run.curve(board)
    assert [row[0].value for row in curve.rows] == [point.step for point in one.curve]
    (bold,) = (row for row in curve.rows if any(x.emphasis for x in row))
    assert bold[0].value == one.selected_step
    settings = dict(texts(one_run.configuration(board)[0]))
    assert settings["command"].startswith("longspan train local listops --protocol lra-small")
    assert settings["mechanism.window"] == "16"
    assert settings["overrides of the protocol"] == "training.steps = 500"
    origin = dict(texts(one_run.provenance(board)[0]))
    assert origin["commit"] == one.git_commit
    assert origin["data sha256"] == one.data_checksum
    assert origin["version of torch"] == "2.13.0"
    costs = one_run.cost(board)[0]
    assert dict(texts(costs))["Memory"] == "1.50 GiB"
    assert f"Memory,{one.peak_memory}\n" in to_csv([costs])  # unrounded


@pytest.mark.parametrize("missing", ["curve", "alarms", "slices"])
def test_parts_without_data_are_left_out(missing):
    one = dataclasses.replace(run(), **{missing: type(getattr(run(), missing))()})
    page = render_page([build_leaderboard([one])], Context(), one)
    assert f'id="protocol-1-{missing}"' not in page


def test_sections_of_a_run_are_printed_by_name():
    board = build_leaderboard([run()])
    (table,) = section_tables([board], Context(), "provenance", RUN_SECTIONS)
    assert table.title == "Provenance"


def test_legend_of_a_page_lists_the_rows_of_its_charts():
    runs = [record("full"), record("local", options={"window": 16})]
    runs.append(record("local", options={"window": 64}))
    page = render_page([build_leaderboard(runs)])
    legends = re.findall(r'aria-label="Rows in the charts">(.*?)</ul>', page, re.S)
    labels = ["full", "local (window=16)", "local (window=64)"]
    assert legends
    assert all(re.findall(r'data-focus="([^"]+)"', legend) == labels for legend in legends)
    # Rows of tables and legends share the names by which the page selects.
    assert set(re.findall(r'<tr data-mechanism="([^"]+)"', page)) == set(labels)
