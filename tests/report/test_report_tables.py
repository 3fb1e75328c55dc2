import csv
import dataclasses
import io
import json

import pytest
from report_records import failure, record, scores
from rich.console import Console

from longspan.errors import DataError, OptionError
from longspan.report import leaderboard as board
from longspan.report import render
from longspan.report.published import Published, compare
from longspan.report.tables import leaderboard, leaderboards


def row(table, label):
    return next(row for row in table.rows if row.label == label)


def two_tasks():
    return [
        record("performer", "listops", 0, 0.36),
        record("performer", "listops", 1, 0.38),
        record("performer", "listops", 2, 0.40),
        record("performer", "text", 0, 0.65),
        record("bigbird", "listops", 0, 0.37, tokens_per_second=1e4, peak_memory=2**30),
        record("bigbird", "text", 0, 0.61, tokens_per_second=3e4, peak_memory=2**31),
        record("linear", "text", 0, 0.66),
    ]


def test_cells_hold_means_intervals_and_margins():
    table = leaderboard(two_tasks())
    assert [column.label for column in table.columns] == ["listops", "text"]
    listops, text = row(table, "performer").cells
    assert listops.accuracy == pytest.approx(0.38)
    assert listops.interval.low == pytest.approx(0.3303173, abs=1e-6)
    assert listops.margin == pytest.approx(38 - 17.45)
    assert [run.seed for run in listops.runs] == [0, 1, 2]
    assert text.interval.over == "examples"
    assert (listops.rank, text.rank) == (1, 1)


def test_mean_over_tasks_is_missing_with_a_hole_and_such_rows_come_last():
    table = leaderboard(two_tasks())
    assert row(table, "performer").mean == pytest.approx((0.38 + 0.65) / 2)
    linear = row(table, "linear")
    assert linear.mean is None
    assert linear.rank is None
    assert linear.cells[0] is None
    assert linear.cost.tokens_per_second is None
    assert [row.label for row in table.rows] == ["performer", "bigbird", "linear"]
    assert [row.rank for row in table.rows] == [1, 1, None]


def test_costs_are_means_over_tasks_and_memory_is_the_largest():
    cost = row(leaderboard(two_tasks()), "bigbird").cost
    assert cost.tokens_per_second == pytest.approx(2e4)
    assert cost.peak_memory == 2**31
    assert cost.parameters == 214_154
    assert cost.gflops == pytest.approx(1.23456789)


def test_unknown_memory_stays_unknown():
    runs = [record(seed=0), record(seed=1, peak_memory=None)]
    assert leaderboard(runs).rows[0].cost.peak_memory is None


def test_speeds_of_two_devices_are_never_averaged():
    runs = [record(seed=0), record(seed=1, device="NVIDIA H200"), record("linear")]
    table = leaderboard(runs)
    cost = row(table, "bigbird").cost
    assert (cost.tokens_per_second, cost.peak_memory, cost.hardware) == (None, None, None)
    assert cost.parameters == 214_154
    cell = row(table, "bigbird").cells[0]
    assert cell.accuracy == pytest.approx(0.36)
    assert (cell.cost.tokens_per_second, cell.cost.peak_memory) == (None, None)
    assert all("Cost measured on" in table.notes[row.notes[0]] for row in table.rows)


def test_speeds_of_two_backends_are_never_averaged():
    table = leaderboard([record(seed=0), record(seed=1, backend="triton")])
    assert table.rows[0].cost.tokens_per_second is None


def test_protocols_are_never_mixed():
    runs = [record(), record(protocol="quick")]
    with pytest.raises(
        OptionError, match="one table holds one protocol under one budget, got lra-small, quick"
    ):
        leaderboard(runs)
    assert [table.protocol for table in leaderboards(runs)] == ["lra-small", "quick"]


@pytest.mark.parametrize("draw", [leaderboard, leaderboards])
def test_no_results_are_refused(draw):
    with pytest.raises(DataError, match="no results to report; run `longspan arena` first"):
        draw([])


def test_reading_a_run_twice_does_not_make_two_seeds_of_it():
    old, new = record(accuracy=0.2), record(accuracy=0.3, date="2026-03-02T12:00:00Z")
    cell = leaderboard([new, old, new]).rows[0].cells[0]
    assert len(cell.runs) == 1
    assert cell.accuracy == 0.3
    assert cell.interval.over == "examples"


def test_overrides_are_named_in_a_footnote_and_not_ranked():
    runs = [record(accuracy=0.3), record(accuracy=0.5, overrides={"training.steps": 9000})]
    table = leaderboard(runs)
    changed = row(table, "bigbird (training.steps=9000)")
    assert "training.steps = 9000" in table.notes[changed.notes[0]]
    assert changed.overridden
    assert changed.rank is None
    assert changed.cells[0].rank is None
    kept = row(table, "bigbird")
    assert kept.notes == ()
    assert kept.rank == 1
    assert kept.cells[0].rank == 1


def test_a_run_that_departs_from_the_protocol_never_completes_a_row_that_keeps_to_it():
    runs = [record(task="listops"), record(task="text", overrides={"training.steps": 9000})]
    table = leaderboard(runs)
    assert len(table.rows) == 2
    assert all(row.mean is None for row in table.rows)


def test_configurations_are_rows_labelled_by_the_options_that_differ():
    runs = [record(options={"block": block, "heads": 4}) for block in (32, 64)]
    assert {row.label for row in leaderboard(runs).rows} == {
        "bigbird (block=32)",
        "bigbird (block=64)",
    }


def test_configurations_that_differ_in_nothing_named_are_told_apart_by_hash():
    table = leaderboard([record(config_hash="aaaaaaaaaa"), record(config_hash="bbbbbbbbbb")])
    assert {row.label for row in table.rows} == {"bigbird [aaaaaa]", "bigbird [bbbbbb]"}


def test_options_that_a_protocol_sets_by_task_keep_one_row():
    runs = [
        record(task="listops", options={"block": 32}),
        record(task="text", options={"block": 64}),
    ]
    table = leaderboard(runs)
    assert [row.label for row in table.rows] == ["bigbird"]
    assert table.rows[0].mean is not None


def test_the_same_task_on_other_data_is_another_column():
    table = leaderboard([record(), record("linear", data_checksum="ab" * 32)])
    assert [column.label for column in table.columns] == [
        "listops [5f5f5f5f]",
        "listops [abababab]",
    ]
    table = leaderboard([record(), record("linear", task_version=2)])
    assert [column.label for column in table.columns] == ["listops v1", "listops v2"]


def test_a_failure_is_in_the_column_of_the_data_that_the_row_ran_on():
    runs = [record("full", data_checksum="aa" * 32)]
    runs += [record(seed=seed, data_checksum="bb" * 32) for seed in (0, 1)]
    cells = row(leaderboard(runs, [failure(seed=2)]), "bigbird").cells
    assert [cell and (cell.accuracy, len(cell.failures)) for cell in cells] == [None, (None, 1)]
    # one that ran on none is in the first
    cells = row(leaderboard(runs, [failure("linear")]), "linear").cells
    assert [cell and len(cell.failures) for cell in cells] == [1, None]


def test_rows_without_answers_are_ranked_by_intervals_that_do_not_overlap():
    """An interval is 4.2 points wide here, and narrower by the root of two for the mean of two."""
    runs = [record(m, accuracy=x) for m, x in (("a", 0.40), ("b", 0.375), ("c", 0.34))]
    assert [row.rank for row in leaderboard(runs).rows] == [1, 1, 2]
    # bold is whoever is ahead of somebody
    best = [line[1].strong for line in board.sheet(leaderboard(runs)).rows]
    assert best == ["best", "best", None]
    assert not any(line[1].strong for line in board.sheet(leaderboard(runs[:2])).rows)
    both = [*runs, *(dataclasses.replace(run, task="other") for run in runs)]
    table = leaderboard(both)
    assert [row.cells[0].rank for row in table.rows] == [1, 1, 2]
    assert [row.rank for row in table.rows] == [1, 1, 3]


def test_a_run_without_test_score_leaves_its_cell_without_value():
    untested = record(seed=1)
    untested = dataclasses.replace(untested, scores={"validation": untested.scores["validation"]})
    cell = leaderboard([record(seed=0), untested]).rows[0].cells[0]
    assert (cell.accuracy, cell.interval, cell.margin) == (None, None, None)
    assert len(cell.runs) == 2


def test_examples_that_were_not_counted_show():
    runs = [record(), record("linear", scores=scores(0.3, 0.1745, examples=1999))]
    column = leaderboard(runs).columns[0]
    assert (column.counted, column.examples) == (1999, 2000)


def test_json_is_unrounded_and_keeps_nulls():
    table = leaderboard([*two_tasks(), record("tenth", "text", accuracy=1 / 3)])
    data = json.loads(json.dumps(board.to_json(table), allow_nan=False))
    tenth = next(row for row in data["rows"] if row["label"] == "tenth")
    assert tenth["cells"][0] is None
    assert tenth["mean"] is None
    assert tenth["cells"][1]["accuracy"] == 1 / 3
    assert tenth["cells"][1]["cost"]["tokens_per_second"] == 52_345.6789


def test_csv_is_unrounded_and_leaves_missing_values_empty():
    table = leaderboard([*two_tasks(), record('a,"b"', "text", accuracy=1 / 3)])
    lines = list(csv.DictReader(io.StringIO(render.to_csv([board.scores(table)]))))
    assert len(lines) == len(table.rows) * len(table.columns)
    missing, present = [line for line in lines if line["mechanism"] == 'a,"b"']
    assert (missing["accuracy"], missing["seeds"], missing["hardware"]) == ("", "", "")
    assert float(present["accuracy"]) == 1 / 3
    assert present["hardware"] == "cpu, float32"


def test_markdown_has_equal_columns_and_escapes():
    text = render.markdown(board.sheet(leaderboard([*two_tasks(), record("a|b_<i>", "text")])))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {len("||||||||||")}
    assert "a\\|b\\_\\<i>" in text
    assert "| performer | 38.00 33.0–43.0 · +20.6 · 3 seeds | **65.00**" in text
    assert "| majority class | 17.45 | 50.00 | 33.73 | – |" in text
    assert "| chance | 10.00 | 50.00 | 30.00 | – |" in text


def test_terminal_shows_every_row_and_takes_no_markup_from_records():
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(
        render.terminal(
            board.sheet(leaderboard([*two_tasks(), record("[red]x[/nothing]", "text")]))
        )
    )
    text = console.export_text()
    assert "[red]x[/nothing]" in text
    assert "33.0–43.0" in text
    assert "majority class" in text


def test_published_numbers_stand_beside_ours_or_alone():
    scores = [
        Published(task=task, mechanism=name, accuracy=0.18, protocol="lra-paper", source="table 1")
        for task, name in [("listops", "performer"), ("text", "s4"), ("pathx", "performer")]
    ]
    first, second = compare([leaderboard(two_tasks())], scores)
    assert (first.protocol, first.label) == ("lra-small", "performer")
    assert first.cell.accuracy == pytest.approx(0.38)
    assert second.published.mechanism == "s4"
    assert second.cell is None


def test_published_percentages_are_refused():
    with pytest.raises(OptionError, match=r"from 0 to 1, got 36.4 .*divide percentages by 100"):
        Published(task="t", mechanism="m", accuracy=36.4, protocol="p", source="s")
