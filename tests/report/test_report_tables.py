"""Sections as sheets, their renderings, and tables with failures, budgets and averages."""

import csv
import dataclasses
import io
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from longspan.report.board import board as page_board
from longspan.report.figures import Drawing
from longspan.report.published import Published
from longspan.report.sheets import Entry, Heading, Sheet, text
from longspan.report.styles import styles
from report_records import analysis, failure, record, scores
from rich.console import Console

from longspan.errors import DataError, UnknownNameError
from longspan.report import leaderboard as board
from longspan.report import render
from longspan.report.sections import NAMES, Beside, chapters, sections
from longspan.report.tables import leaderboard, leaderboards
from longspan.results import Alarm, Slice, pack, parameter_excess

FIVE = ("listops", "text", "retrieval", "image", "pathfinder")


def row(table, label):
    return next(row for row in table.rows if row.label == label)


def answered(mechanism, seed, right, task="listops", **changes):
    right = [int(x) for x in right]
    accuracy = sum(right) / len(right)
    return record(
        mechanism,
        task,
        seed,
        accuracy,
        scores=scores(accuracy, 0.1, len(right)),
        answers=pack(right, [1] * len(right)),
        **changes,
    )


def race():
    """`good` and `full` differ on 40 examples of 200, `even` and `full` on 4, two for each."""
    base = np.arange(200) < 80
    good, even = base.copy(), base.copy()
    good[100:140] = True
    even[[0, 1]], even[[198, 199]] = False, True
    return [answered("full", 0, base), answered("good", 0, good), answered("even", 0, even)]


def test_rows_are_compared_with_full_example_by_example():
    table = leaderboard(race())
    good, even, full = (row(table, name) for name in ("good", "even", "full"))
    assert good.cells[0].against.difference == pytest.approx(0.2)
    # 40 to 0: 2 / 2^40 - 1 / 2^40, times the two rows that are compared
    assert good.cells[0].against.p == pytest.approx(2**-40)
    assert good.cells[0].against.adjusted == pytest.approx(2 * 2**-40)
    assert (good.cells[0].against.mark, even.cells[0].against.mark) == ("↑", "")
    assert even.cells[0].against.p == pytest.approx(1.0)
    assert full.cells[0].against is None
    assert (good.rank, even.rank, full.rank) == (1, 2, 2)


def test_rows_that_depart_from_the_protocol_are_not_compared():
    runs = race()
    runs[1] = dataclasses.replace(runs[1], overrides={"training.steps": 9})
    table = leaderboard(runs)
    assert row(table, "good").cells[0].against is None
    assert row(table, "even").cells[0].against.adjusted == pytest.approx(1.0)


def test_damaged_answers_are_refused_with_the_name_of_the_record():
    runs = [answered("full", 0, [1, 0]), record("good", answers="@@")]
    with pytest.raises(DataError, match=r"lra-small/listops/good-\w+-0\.json: .* cannot be"):
        leaderboard(runs)


def test_a_failed_seed_leaves_the_cell_without_mean_and_says_why():
    table = leaderboard([record(), record(seed=1), record("linear")], [failure()])
    lost = row(table, "bigbird")
    assert (lost.cells[0].accuracy, lost.rank, len(lost.cells[0].runs)) == (None, None, 2)
    entry = next(line for line in board.sheet(table).rows if line[0].mechanism == "bigbird")[1]
    assert (entry.shown, entry.detail) == ("memory", "1 of 3 seeds")
    note = table.notes[lost.notes[0]]
    assert (
        note
        == "Failed (memory at step 7) on listops, seed 2: set training.gradient_accumulation_steps=4."
    )


def test_a_mechanism_or_a_task_with_nothing_but_failures_is_shown():
    table = leaderboard([record()], [failure("linear"), failure(task="text", kind="died")])
    assert [column.label for column in table.columns] == ["listops", "text"]
    assert row(table, "linear").cells[0].failed == "memory"
    assert row(table, "bigbird").cells[1].failed == "died"
    assert [t.protocol for t in leaderboards([], [failure()])] == ["lra-small"]


def test_a_failure_that_a_result_took_the_place_of_is_gone():
    table = leaderboard([record(seed=2)], [failure(seed=2)])
    assert row(table, "bigbird").cells[0].failures == ()


def test_a_failure_of_another_configuration_is_another_row():
    runs = [record(options={"block": 32}), record(options={"block": 64})]
    lost = failure(options={"block": 128}, config_hash="other")
    table = leaderboard(runs, [lost])
    assert row(table, "bigbird (block=128)").cells[0].failed == "memory"
    assert row(table, "bigbird (block=32)").cells[0].accuracy is not None


def test_budgets_are_never_ranked_together():
    timed = {"kind": "seconds", "limit": 600.0}
    tables = leaderboards([record(), record("linear", budget=timed, config_hash="timed")])
    assert [table.title for table in tables] == [
        "lra-small",
        "lra-small, equal training time (10 min)",
    ]
    assert all(len(table.rows) == 1 for table in tables)


def five(mechanism="bigbird", accuracy=0.6):
    return [record(mechanism, task, accuracy=accuracy + i / 100) for i, task in enumerate(FIVE)]


def test_budgets_of_one_protocol_have_figures_of_their_own():
    timed = {"kind": "seconds", "limit": 600.0}
    runs = [record(), record("linear", budget=timed, config_hash="timed")]
    tables = leaderboards(runs)
    look, of = styles(run.mechanism for run in runs), [analysis(run) for run in runs]
    drawn = [Drawing(table=x, look=look, legend=False, analyses=of).all() for x in tables]
    names = [figure.name for figures in drawn for figure in figures]
    assert len(set(names)) == len(names)
    # the analyses too belong to the runs of one table
    assert [sum("layers" in one.name for one in figures) for figures in drawn] == [1, 1]


def test_the_two_means_of_the_literature():
    above = record(task="path_x", accuracy=0.8, chance=0.5)
    below = record("linear", "path_x", accuracy=0.503, chance=0.5)
    runs = [*five(), *five("linear"), *five("local"), *five("full"), above, below]
    table = leaderboard([*runs, *five("dilated")[1:]], [failure("local", "path_x", seed=0)])
    assert [average.label for average in table.averages] == ["Mean of 5", "Mean of 6"]
    assert row(table, "bigbird").averages == pytest.approx((0.62, (0.62 * 5 + 0.8) / 6))
    # not above chance: the interval of 2,000 examples reaches down to it
    assert row(table, "linear").averages == pytest.approx((0.62, (0.62 * 5 + 0.5) / 6))
    assert row(table, "local").averages == pytest.approx((0.62, (0.62 * 5 + 0.5) / 6))
    # not run is not failed
    assert row(table, "full").averages == (pytest.approx(0.62), None)
    assert row(table, "dilated").averages == (None, None)


def test_other_tasks_have_their_own_mean_and_one_task_has_none():
    assert [x.label for x in leaderboard(five()[:3]).averages] == ["Mean"]
    assert leaderboard(five()[:1]).averages == ()
    more = leaderboard([*five(), record(task="copying", accuracy=1.0)])
    assert [x.label for x in more.averages] == ["Mean of 5", "Mean of 6"]
    assert more.rows[0].averages[1] == pytest.approx((0.62 * 5 + 1) / 6)


def test_parameters_beyond_the_budget_are_marked():
    table = leaderboard(
        [
            record("fat", parameters=240, full_parameters=200),
            record("fit", parameters=219, full_parameters=200),
        ]
    )
    assert row(table, "fat").excess == pytest.approx(0.2)
    (note,) = (table.notes[i] for i in row(table, "fat").notes)
    assert note == "Parameters +20.0 % of those with full: outside the budget of 10 %."
    assert row(table, "fit").notes == ()
    assert parameter_excess(record(full_parameters=None)) is None


def rich_records():
    points = record().curve
    points = [dataclasses.replace(point, train_accuracy=0.5) for point in points]
    slices = {
        "depth": [
            Slice(label="2", accuracy=0.4, examples=10),
            Slice(label="3", accuracy=0.2, examples=90),
        ]
    }
    alarm = Alarm(kind="chance", step=100, message="still at chance")
    tuning = {
        "rule": "mean: of all seeds",
        "grid": {"training.learning_rate": [0.1, 0.2]},
        "chosen": {"training.learning_rate": 0.2},
        "trials": [
            {
                "changes": {"training.learning_rate": rate},
                "seed": 0,
                "validation_accuracy": rate,
                "failed": None,
            }
            for rate in (0.1, 0.2)
        ],
    }
    runs = [answered("full", s, np.arange(100) < 40, slices=slices, curve=points) for s in (0, 1)]
    other = answered(
        "linear",
        0,
        np.arange(100) < 60,
        alarms=[alarm],
        tuning=tuning,
        tokens_per_second=104_691.3578,
    )
    return [*runs, other, answered("local", 0, np.arange(100) < 30)]


def drawn(only):
    theirs = Published(
        task="listops", mechanism="full", accuracy=0.3637, protocol="lra-paper", source="table 1"
    )
    tables = leaderboards(rich_records(), [failure("linear", seed=1)])
    return sections(
        tables, Beside(published=(theirs,), analyses=(analysis(record("full")),)), only=only
    )


def values(sheet, i):
    return [entry.value for entry in sheet.rows[i]]


def test_every_section_has_sheets_of_full_rows_and_a_name_of_its_own():
    found = drawn(None)
    assert len({sheet.name for sheet in found}) == len(found)
    for name in NAMES:
        assert drawn(name), name
    for sheet in found:
        assert re.fullmatch(r"[a-z0-9-]+", sheet.name)
        assert all(len(line) == len(sheet.headings) for line in (*sheet.rows, *sheet.footer))
    with pytest.raises(UnknownNameError, match="did you mean slices"):
        drawn("slice")


def test_every_number_of_a_page_can_be_read_again():
    places = "".join(page_board(sheet, styles(["full"])) for sheet in drawn(None))
    numbers = [text for text in re.findall(r'data-n="(.*?)"', places) if text]
    assert len(numbers) > 50
    assert all(map(math.isfinite, map(float, numbers)))


@pytest.mark.parametrize(
    ("section", "words"),
    [("leaderboard", {" (best)"}), ("tuning", {" (chosen)"}), ("significance", {"p &lt; 0.001"})],
)
def test_bold_says_to_those_who_listen_what_it_means(section, words):
    places = "".join(page_board(sheet, styles(["full"])) for sheet in drawn(section))
    assert set(re.findall(r"</b><\w+[^>]*>(.*?)<", places)) == words


def test_an_empty_text_is_a_missing_one():
    assert text("") == text(None) == Entry(value=None)


def test_sections_hold_what_was_recorded():
    (gap,) = drawn("gap")
    assert values(gap, 0)[1:] == ["listops", 0.5, pytest.approx(0.41), 0.4, pytest.approx(10), 2]
    (depth,) = drawn("slices")
    assert values(depth, 0) == ["full", 0.4, 0.2]
    assert [entry.value for entry in depth.footer[0]] == ["examples", 10, 90]
    (span,) = drawn("span")
    assert values(span, 0) == ["full", 12.5, 10.0, 15.0, 30.0, 16, 1]
    (tuning,) = drawn("tuning")
    assert [line[3].strong for line in tuning.rows] == [None, "chosen"]
    (alarms,) = drawn("alarms")
    assert values(alarms, 0)[2:] == [0, "chance", 100, "still at chance"]
    (failures,) = drawn("failures")
    assert values(failures, 0)[2:] == [1, "memory", 7, "set training.gradient_accumulation_steps=4"]
    (matrix,) = drawn("significance")
    # full and local share seed 0, where 10 of 100 examples differ, all for full
    assert values(matrix, 0)[2] == pytest.approx(0.1)
    assert matrix.rows[0][2].detail == "p < 0.001"
    cost = {line[0].value: line[6].value for line in drawn("cost")[0].rows}
    assert cost == {"full": 1.0, "linear": pytest.approx(2.0), "local": 1.0}
    (published,) = drawn("published")
    assert values(published, 0)[2] == 0.3637
    assert values(published, 0)[5] == pytest.approx(0.4)


def test_steps_to_an_accuracy_are_of_the_first_evaluation_there():
    from longspan.report.reached import thresholds

    runs = [record(accuracy=0.5), record("slow", accuracy=0.2)]
    low, best = 0.1745, runs[0].curve[-1].validation_accuracy
    goals = thresholds("listops", runs)
    assert goals == pytest.approx([low + share * (best - low) for share in (0.5, 0.75, 0.9)])
    table = leaderboard(runs)
    (sheet,) = sections([table], only="reached")
    first = next(p for p in runs[0].curve if p.validation_accuracy >= goals[0])
    assert values(sheet, 0)[1:3] == [first.step, first.seconds]
    assert values(sheet, 1)[1:] == [None] * 6
    assert 0.30 in thresholds("image", [record(task="image", accuracy=0.42)])


def test_sections_without_content_are_left_out():
    names = [part.name for part in chapters([leaderboard([record()])])[0].sections]
    assert names == ["leaderboard", "reached", "cost", "scores"]


def test_settings_are_said_once_for_all_runs_and_then_by_run():
    common, runs = sections([leaderboard([record(), record(seed=1)])], only="settings")
    assert dict([entry.value for entry in row] for row in common.rows)["Model"] == (
        "heads = 2, hidden_size = 64, layers = 2"
    )
    assert [values(runs, i)[:3] for i in range(2)] == [
        ["bigbird", "listops", 0], ["bigbird", "listops", 1]
    ]  # fmt: skip


SHEET = Sheet(
    name="s",
    title="50 % of {all} & more_of_it",
    about="x < y",
    headings=(Heading(name="Mechanism", kind="text"), Heading(name="A_b, %", kind="score")),
    rows=(
        (
            Entry(value="a|b", shown="a|b"),
            Entry(value=1 / 3, shown="33.33 ↑", detail="±1", strong="best"),
        ),
        (Entry(value="c\\d", shown="c\\d"), Entry(value=None)),
    ),
    footer=((Entry(value="chance", shown="chance"), Entry(value=0.1, shown="10.00")),),
)


def test_latex_is_escaped_and_the_best_is_bold():
    text = render.latex(SHEET)
    assert r"\caption{50 \% of \{all\} \& more\_of\_it}" in text
    assert r"  Mechanism & A\_b, \% \\" in text
    assert r"  a\textbar{}b & \textbf{33.33 $\uparrow$} {\scriptsize $\pm$1} \\" in text
    assert r"  c\textbackslash{}d & -- \\" in text
    assert r"x \textless{} y" in text
    assert text.count(r"\midrule") == 2
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_csv_and_json_have_the_unrounded_values():
    lines = list(csv.reader(io.StringIO(render.to_csv([SHEET, SHEET]))))
    assert lines[0] == ["mechanism", "a_b"]
    assert lines.count(["a|b", str(1 / 3)]) == 2
    assert ["c\\d", ""] in lines
    data = json.loads(json.dumps(render.to_json(SHEET), allow_nan=False))
    assert data["rows"][0] == {"mechanism": "a|b", "a_b": 1 / 3}
    assert data["footer"] == [{"mechanism": "chance", "a_b": 0.1}]


def test_markdown_and_terminal_show_everything():
    text = render.markdown(SHEET)
    assert "| a\\|b | **33.33 ↑** ±1 |" in text
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render.terminal(SHEET))
    shown = console.export_text()
    assert all(word in shown for word in ("33.33 ↑", "±1", "c\\d", "chance", "x < y"))


SLOW = [pytest.param(x, marks=pytest.mark.slow) for x in ("terminal", "csv", "json", "latex")]


@pytest.mark.parametrize("kind", ["markdown", *SLOW])
def test_the_command_reports_without_torch(tmp_path, kind):
    for run in rich_records():
        run.save(tmp_path / "runs")
    failure("linear", seed=1).save(tmp_path / "runs")
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('torch', 'transformers', 'numba', 'pyarrow')))\n"
        "from longspan.cli import main\n"
        "sys.argv = ['longspan', *sys.argv[1:]]\n"
        "main()\n"
    )
    page = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", tmp_path / "runs", "--page", page,
         "--format", kind, "--section", "published"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "lra-paper" in done.stdout
    # Tay et al. 2021 have 36.37 for the Transformer
    assert "36.37" in done.stdout or "0.3637" in done.stdout
    assert "lra-paper" in page.read_text(encoding="utf-8")
