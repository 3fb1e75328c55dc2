"""Leaderboards: grouping, means, costs, ranks and marks."""

import dataclasses
import re

import numpy as np
import pytest
from report_records import (
    build_leaderboard,
    damaged_example_scores,
    digest,
    failure,
    print_terminal,
    record,
    record_of_answers,
    record_of_statistics,
    scores,
    with_second_seed,
)

from longspan.config import Budget, parse_budget
from longspan.errors import DataError
from longspan.report.charts.styles import assign_styles
from longspan.report.context import Context
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.leaderboard.ranking import find_score_wins
from longspan.report.leaderboard.values import Cell
from longspan.report.output.page import render_page
from longspan.report.output.paper import paper_tables
from longspan.report.sections import board_figures
from longspan.report.tables.leaderboard import leaderboard, leaderboards
from longspan.report.tables.runs import cost
from longspan.results import ResolvedBudget, parameter_excess

MEAN_TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
TIME_BUDGET = Budget(kind="seconds", limit=600.0)


def find_row(board, label):
    return next(row for row in board.rows if row.label == label)


def records_of_two_tasks():
    return [
        *(record("performer", "listops", s, x) for s, x in enumerate((0.36, 0.38, 0.40))),
        record("performer", "text", 0, 0.65),
        record("bigbird", "listops", 0, 0.37, tokens_per_second=1e4, peak_memory=2**30),
        record("bigbird", "text", 0, 0.61, tokens_per_second=3e4, peak_memory=2**31),
        record("linear", "text", 0, 0.66),
    ]


def test_cells_have_means_intervals_and_margins():
    board = build_leaderboard(records_of_two_tasks())
    assert [column.label for column in board.columns] == ["listops", "text"]
    listops, text = find_row(board, "performer").cells
    assert listops.score == pytest.approx(0.38)
    assert listops.interval.low == pytest.approx(0.3303173, abs=1e-6)
    assert listops.margin == pytest.approx(0.38 - 0.1745)
    assert [run.seed for run in listops.runs] == [0, 1, 2]
    assert text.interval.over == "examples"
    # On listops the seeds of `performer` vary, and `bigbird` borrows; on text nothing is known.
    assert (listops.placement.ranks, text.placement.ranks) == ((1, 2), None)
    assert [cell.interval.over for cell in find_row(board, "bigbird").cells] == [
        "borrowed seeds and examples",
        "examples",
    ]


def test_row_with_missing_task_has_no_mean_and_is_last():
    board = build_leaderboard(records_of_two_tasks())
    assert find_row(board, "performer").overall.score == pytest.approx((0.38 + 0.65) / 2)
    linear = find_row(board, "linear")
    assert (linear.overall.score, linear.overall.placement, linear.cells[0]) == (None, None, Cell())
    assert linear.cost.tokens_per_second is None
    assert [row.label for row in board.rows] == ["performer", "bigbird", "linear"]


def test_interval_of_mean_combines_intervals_of_tasks():
    board = build_leaderboard(records_of_two_tasks())
    performer = find_row(board, "performer")
    parts = [cell.score - cell.interval.low for cell in performer.cells]
    below = performer.overall.score - performer.overall.interval.low
    assert below == pytest.approx(np.hypot(*parts) / 2)
    assert find_row(board, "linear").overall.interval is None


def test_costs_are_means_over_tasks_and_memory_is_maximum():
    cost = find_row(build_leaderboard(records_of_two_tasks()), "bigbird").cost
    assert cost.tokens_per_second == pytest.approx(2e4)
    assert cost.peak_memory == 2**31
    assert cost.parameters == 214_154
    assert cost.gflops == pytest.approx(1.23456789)


@pytest.mark.parametrize(
    ("changes", "field"), [({"peak_memory": None}, "peak_memory"),
                           ({"backend_used": "triton"}, "tokens_per_second")],
)  # fmt: skip
def test_unknown_costs_and_those_of_different_backends_are_not_averaged(changes, field):
    board = build_leaderboard([record(seed=0), record(seed=1, **changes)])
    assert getattr(board.rows[0].cost, field) is None


def test_speeds_of_different_devices_are_not_averaged():
    runs = [record(seed=0), record(seed=1, device="NVIDIA H200"), record("linear")]
    board = build_leaderboard(runs)
    cost = find_row(board, "bigbird").cost
    assert (cost.tokens_per_second, cost.peak_memory, cost.hardware) == (None, None, None)
    assert cost.parameters == 214_154
    cell = find_row(board, "bigbird").cells[0]
    assert cell.score == pytest.approx(0.36)
    assert (cell.cost.tokens_per_second, cell.cost.peak_memory) == (None, None)
    assert all("Cost measured on" in board.notes[row.notes[0]] for row in board.rows)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("seconds", {"0.5": "0.5 s", "61": "61 s", "90": "1.5 min", "2min": "2 min"}),
        ("seconds", {"3600": "1 h", "3601": "3601 s", "1.5h": "1.5 h", "2d": "2 d"}),
        ("flops", {"1.234567e15": "1.234567e+15", "1.2345P": "1.2345 P", "3e20": "300 E"}),
        (
            "memory",
            {"1.001GiB": "1.001 GiB", "1GiB": "1 GiB", "1GB": "1 GB", "1234567": "1234567 B"},
        ),
        ("microbatch", {"1.5GiB": "1.5 GiB", "1.501GiB": "1.501 GiB", "1.1": "1.1 B"}),
    ],
)
def test_budgets_that_differ_are_never_one_leaderboard(kind, texts):
    """Rounding would rank runs of 90 seconds among those of 150."""
    runs = [record(budget=parse_budget(f"{kind}={limit}")) for limit in texts]
    boards = build_leaderboards(runs)
    assert [len(board.rows) for board in boards] == [1] * len(texts)
    assert {board.budget.partition(" (")[2] for board in boards} == {
        f"{x})" for x in texts.values()
    }


def test_protocols_and_budgets_have_separate_leaderboards():
    runs = [record(), record(protocol="smoke"), record("linear", budget=TIME_BUDGET)]
    titles = ["lra-small", "lra-small, equal training time (10 min)", "smoke"]
    boards = build_leaderboards(runs)
    assert sorted(board.title for board in boards) == titles
    assert all(len(board.rows) == 1 for board in boards)


def test_rows_name_the_size_that_a_budget_of_memory_chose():
    budget = Budget(kind="memory", limit=2**30)
    sized = [
        record(
            *("bigbird", task, seed),
            budget=budget,
            overrides={"budget": "memory=1073741824"},
            resolved_budget=ResolvedBudget(changes={"mechanism.block": size}, measurements={}),
        )
        for task, size in (("listops", 128), ("text", 256))
        for seed in (0, 1)
    ]
    runs = [*sized, record("full", "listops", budget=budget), record("full", "text", budget=budget)]
    boards = build_leaderboards(runs)
    label = "bigbird (block=128|256)"
    assert {row.label for row in boards[0].rows} == {label, "full"}
    shown = print_terminal(leaderboards(boards[0]), 300)
    outputs = [shown, render_page(boards), paper_tables(boards)]
    assert all(re.search(r"bigbird.{0,9}\(block=128.{1,16}256\)", text) for text in outputs)


def test_figures_of_different_budgets_have_different_names():
    from report_records import analysis

    runs = [record(), record("linear", budget=TIME_BUDGET)]
    boards = build_leaderboards(runs)
    styles = assign_styles({run.mechanism: run.family for run in runs})
    analyses = [analysis(run) for run in runs]
    context = Context(styles=styles, analyses=analyses)
    drawn = [board_figures(board, context) for board in boards]
    names = [figure.name for figures in drawn for figure in figures]
    assert len(set(names)) == len(names)
    assert [sum("layers" in one.name for one in figures) for figures in drawn] == [1, 1]


def test_empty_results_are_rejected():
    with pytest.raises(DataError, match="no results to report; run `longspan arena` first"):
        build_leaderboards([])


def test_duplicate_records_of_run_count_as_one_seed():
    old, new = record(score=0.2), record(score=0.3, date="2026-03-02T12:00:00Z")
    cell = build_leaderboard([new, old, new]).rows[0].cells[0]
    assert len(cell.runs) == 1
    assert cell.score == 0.3


def test_overridden_rows_are_noted_and_not_ranked():
    runs = [record(score=0.3), record(score=0.5, overrides={"training.steps": 9000})]
    board = build_leaderboard(runs)
    changed = find_row(board, "bigbird (training.steps=9000)")
    assert "training.steps = 9000" in board.notes[changed.notes[0]]
    assert changed.is_overridden
    assert (changed.overall.placement, changed.cells[0].placement) == (None, None)
    kept = find_row(board, "bigbird")
    assert kept.notes == ()
    assert (kept.overall.placement.ranks, kept.cells[0].placement.ranks) == (None, None)


def test_overridden_run_does_not_complete_mean_of_row():
    runs = [record(task="listops"), record(task="text", overrides={"training.steps": 9000})]
    board = build_leaderboard(runs)
    assert len(board.rows) == 2
    assert all(row.overall.score is None for row in board.rows)


def test_selection_on_test_is_noted():
    board = build_leaderboard([record(selected_on="test")])
    assert board.notes == ("Checkpoint selected on test: the score is optimistic.",)


def test_run_of_two_versions_of_the_code_is_noted():
    one = record(seed=1)
    earlier = dataclasses.replace(one.code_version, versions={"longspan": "0.1.0", "torch": "1.0"})
    resumed = dataclasses.replace(one, earlier_code=[earlier])
    board = build_leaderboard([record(), resumed])
    assert board.notes == (
        f"Trained by several versions of the code: listops, seed 1 ({resumed.code}).",
    )
    assert resumed.code == f"{one.git_commit}, begun with {one.git_commit} (torch 1.0)"
    assert build_leaderboard([record(), one]).notes == ()


NEWER = {"block": 32, "sink_logit": False}


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([{"options": {"block": x, "heads": 4}} for x in (32, 64)], {" (block=32)", " (block=64)"}),
        # Without a difference that has a name.
        ([{"config_hash": 10 * x} for x in "ab"], {" [aaaaaa]", " [bbbbbb]"}),
        # Options that older records lack name no row. What a user set does.
        (
            [
                {"options": {"block": 32}},
                {"options": NEWER, "overrides": {"model.norm": "post"}},
                {"options": {**NEWER, "block": 64}},
                {"options": {**NEWER, "variant": "x"}, "overrides": {"mechanism.variant": "x"}},
            ],
            {
                " (block=32)",
                " (block=32, model.norm=post)",
                " (block=64)",
                " (block=32, mechanism.variant=x)",
            },
        ),
    ],
)
def test_rows_are_labeled_by_what_differs(runs, labels):
    board = build_leaderboard([record(**fields) for fields in runs])
    assert {row.label for row in board.rows} == {f"bigbird{x}" for x in labels}


def test_task_specific_options_share_one_row():
    runs = [
        record(task="listops", options={"block": 32}),
        record(task="text", options={"block": 64}),
    ]
    board = build_leaderboard(runs)
    assert [row.label for row in board.rows] == ["bigbird"]
    assert board.rows[0].overall.score is not None


def test_different_data_has_separate_column():
    board = build_leaderboard([record(), record("linear", data_checksum="ab" * 32)])
    labels = [column.label for column in board.columns]
    assert labels == ["listops [5f5f5f5f]", "listops [abababab]"]
    board = build_leaderboard([record(), record("linear", version=2)])
    assert [column.label for column in board.columns] == ["listops v1", "listops v2"]


def test_failure_is_in_column_of_its_row():
    runs = [record("full", data_checksum="aa" * 32)]
    runs += [record(seed=seed, data_checksum="bb" * 32) for seed in (0, 1)]
    cells = find_row(build_leaderboard(runs, [failure(seed=2)]), "bigbird").cells
    assert [(cell.score, len(cell.failures)) for cell in cells] == [(None, 0), (None, 1)]
    cells = find_row(build_leaderboard(runs, [failure("linear")]), "linear").cells
    assert [len(cell.failures) for cell in cells] == [1, 0]


def test_failed_seed_leaves_no_mean_and_is_noted():
    board = build_leaderboard([record(), record(seed=1), record("linear")], [failure()])
    lost = find_row(board, "bigbird")
    assert (lost.cells[0].score, lost.overall.placement, len(lost.cells[0].runs)) == (None, None, 2)
    entry = next(line for line in leaderboard(board).rows if line[0].mechanism == "bigbird")[1]
    assert (entry.text, entry.detail) == ("memory", "1 of 3 seeds")
    assert board.notes[lost.notes[0]] == (
        "Failed (memory at step 7) on listops, seed 2: set training.gradient_accumulation_steps=4."
    )


def test_mechanism_and_task_with_only_failures_are_shown():
    board = build_leaderboard([record()], [failure("linear"), failure(task="text", kind="died")])
    assert [column.label for column in board.columns] == ["listops", "text"]
    assert find_row(board, "linear").cells[0].failure_kinds == "memory"
    assert find_row(board, "bigbird").cells[1].failure_kinds == "died"
    assert [board.protocol for board in build_leaderboards([], [failure()])] == ["lra-small"]


def test_failure_of_different_configuration_has_separate_row_and_that_of_a_finished_run_none():
    runs = [record(options={"block": 32}), record(options={"block": 64})]
    board = build_leaderboard(runs, [failure(options={"block": 128})])
    assert find_row(board, "bigbird (block=128)").cells[0].failure_kinds == "memory"
    assert find_row(board, "bigbird (block=32)").cells[0].score is not None
    board = build_leaderboard([record(seed=2)], [failure(seed=2)])
    assert find_row(board, "bigbird").cells[0].failures == ()


def test_missing_test_score_leaves_no_mean():
    untested = record(seed=1)
    untested = dataclasses.replace(untested, scores={"validation": untested.scores["validation"]})
    cell = build_leaderboard([record(seed=0), untested]).rows[0].cells[0]
    assert (cell.score, cell.interval, cell.margin) == (None, None, None)
    assert len(cell.runs) == 2


def test_column_has_minimum_number_of_scored_examples():
    runs = [record(), record("linear", scores=scores(0.3, 0.1745, examples=1999))]
    column = build_leaderboard(runs).columns[0]
    assert (column.num_scored, column.num_examples) == (1999, 2000)


def test_damaged_example_scores_and_those_of_another_metric_are_rejected():
    damaged = record("good", example_scores=damaged_example_scores())
    with pytest.raises(DataError, match=r"lra-small/listops/good-\w+-0\.json: "):
        build_leaderboard([record_of_answers("full", 0, [1, 0]), damaged])
    foreign = record_of_statistics("full", 0, np.ones((4, 2)), metric="mrr").example_scores
    with pytest.raises(DataError, match="example scores are of mrr with 2 columns, expected acc"):
        build_leaderboard([record("full", example_scores=foreign)])


def records_with_differences():
    """Return records: `good` and `full` differ on 40 of 200 examples, `even` and `full` on 4."""
    base = np.arange(200) < 80
    good, even = base.copy(), base.copy()
    good[100:140] = True
    even[[0, 1]], even[[198, 199]] = False, True
    answers = {"full": base, "good": good, "even": even}
    return with_second_seed(record_of_answers(name, 0, x) for name, x in answers.items())


def test_rows_are_compared_with_full_on_same_examples():
    board = build_leaderboard(records_with_differences())
    good, even, full = (
        find_row(board, name).cells[0].placement for name in ("good", "even", "full")
    )
    assert good.difference == pytest.approx(0.2)
    assert good.p < 1e-4
    # Holm's correction multiplies the second smallest p of three pairs by two, or the first by 3.
    assert 2 <= good.adjusted_p / good.p <= 3
    assert even.p > 0.5
    assert full.p is None


def test_mechanism_that_fails_a_seed_is_not_shown_first():
    """Compare rows of 31 and 15 % with a row whose seeds have 1 to 46 %."""
    shares = {"best": (310, 312, 311), "wide": (10, 460, 230), "bad": (149, 150, 151)}
    runs = [
        record_of_answers(name, seed, np.arange(1000) < count)
        for name, counts in shares.items()
        for seed, count in enumerate(counts)
    ]
    board = build_leaderboard(runs)
    table = leaderboard(board)
    assert [line[0].value for line in table.rows] == ["best", "wide", "bad"]
    (at,) = (i for i, column in enumerate(table.columns) if column.name == "Rank")
    ranks = {line[0].value: line[at] for line in table.rows}
    assert ranks["wide"].text == "1–3"
    # The page sorts by the value: the worst rank that is left open.
    assert ranks["wide"].value == 3
    assert not any(line[1].emphasis or line[1].underline for line in table.rows)


@pytest.mark.parametrize(
    ("scores", "metric", "second"),
    [
        ({"a": 0.5, "b": 0.4, "c": 0.3}, "accuracy", {"b"}),
        ({"a": 0.5, "b": 0.4, "c": 0.4, "d": 0.3}, "accuracy", set()),  # two share the second
        ({"a": 0.5, "b": 0.5, "c": 0.4}, "accuracy", set()),  # two rows share the best score
        ({"a": 1.0, "b": 2.0, "c": 3.0}, "bits_per_byte", {"b"}),
    ],
)
def test_bold_and_underlined_rows_do_not_tie(scores, metric, second):
    statistics = {
        name: np.stack([np.arange(1000) < 1000 * x, np.ones(1000)], 1).astype(float)
        if metric == "accuracy"
        else np.tile([x, 1.0], (1000, 1))
        for name, x in scores.items()
    }
    runs = [record_of_statistics(name, 0, x, metric=metric) for name, x in statistics.items()]
    runs = with_second_seed(runs)
    lines = leaderboard(build_leaderboard(runs)).rows
    assert {line[0].value for line in lines if line[1].underline == "second best"} == second
    best = {line[0].value for line in lines if line[1].emphasis}
    assert best == (set() if scores["a"] == scores["b"] else {"a"})


def test_rows_without_example_scores_are_compared_by_their_seeds():
    seeds = {"full": (0.400, 0.402), "b": (0.401, 0.399), "c": (0.34, 0.342)}
    runs = [record(m, seed=i, score=x) for m, own in seeds.items() for i, x in enumerate(own)]
    board = build_leaderboard(runs)
    assert [row.overall.placement.ranks for row in board.rows] == [(1, 2), (1, 2), (3, 3)]
    assert [row.overall.placement.arrow for row in board.rows] == ["", "", "↓"]
    both = [*runs, *(record(r.mechanism, "other", r.seed, r.score()) for r in runs)]
    board = build_leaderboard(both)
    assert [row.cells[0].placement.ranks for row in board.rows] == [(1, 2), (1, 2), (3, 3)]
    assert [row.overall.placement.ranks for row in board.rows] == [(1, 2), (1, 2), (3, 3)]


def test_overridden_rows_are_not_compared():
    changed = {"overrides": {"training.steps": 9}, "config_hash": "x"}
    runs = [
        dataclasses.replace(x, **changed if x.mechanism == "good" else {})
        for x in records_with_differences()
    ]
    board = build_leaderboard(runs)
    assert find_row(board, "good (training.steps=9)").cells[0].placement is None
    even = find_row(board, "even").cells[0].placement
    assert even.adjusted_p == even.p


SHORT = {"training.steps": 9}


def test_rows_with_equal_overrides_are_ranked_among_each_other():
    """Keep the ranks of each table, with `full` of the same overrides as the baseline."""
    runs = records_with_differences()
    short = [dataclasses.replace(x, overrides=SHORT, config_hash=x.mechanism) for x in runs]
    board = build_leaderboard([*runs, *short])
    own, other = board.groups
    assert (own.overrides, other.overrides) == ("", "training.steps = 9")
    for group in (own, other):
        found = {row.mechanism: row.cells[0].placement for row in group.ranked}
        ranks = {name: x.ranks for name, x in found.items()}
        assert ranks == {"good": (1, 1), "even": (2, 3), "full": (2, 3)}
        assert found["good"].arrow == "↑"
    first, second = leaderboards(board)
    assert len(first.rows) == len(second.rows) == 3
    assert second.title == "Leaderboard of lra-small with training.steps = 9: test accuracy, %"
    assert "Ranked among each other alone" in second.notes[0]
    assert first.name != second.name
    assert not any("Not ranked" in note for note in board.notes)


@pytest.mark.parametrize(
    ("overrides", "table", "label"),
    [
        ({**SHORT, "mechanism.window": 16}, "training.steps = 9", "mechanism.window=16, training."),
        ({"mechanism.window": 16}, "", "mechanism.window=16"),
        ({"model.num_hidden_layers": 0}, "", "model.num_hidden_layers=0"),
    ],
)
def test_lone_overrides_are_shown_unranked_in_the_nearest_table(overrides, table, label):
    """The label names them, since other tables than the leaderboard have no notes."""
    short = [record(name, overrides=SHORT) for name in ("full", "linear")]
    board = build_leaderboard([record("full"), *short, record("local", overrides=overrides)])
    row = next(row for row in board.rows if row.mechanism == "local")
    assert (row.overrides, row.is_ranked, row.overall.placement) == (table, False, None)
    assert row.label.startswith(f"local ({label}")
    assert "Not ranked; it overrides the protocol" in board.notes[row.notes[0]]


def with_task(run, length, checksum):
    """Return a record on data of its own, with another length of the task."""
    task = dataclasses.replace(run.config.task, options={"length": length})
    own = dataclasses.replace(run.config, task=task)
    return dataclasses.replace(
        run, config=own, data_checksum=checksum * 32, config_hash=digest(own), length=length
    )


def test_reference_rows_are_in_the_column_of_the_task_that_they_shorten():
    short = with_task(record("full", score=0.9, overrides={"row": "full-short"}), 256, "aa")
    ranked = [
        with_task(record(name, score=x), 1024, "bb") for name, x in (("full", 0.5), ("local", 0.1))
    ]
    board = build_leaderboard([*with_second_seed(ranked), short])
    assert [column.label for column in board.columns] == ["listops"]
    assert board.columns[0].checksum == "bb" * 32
    row = next(row for row in board.rows if row.reference)
    assert (row.cells[0].score, row.is_ranked, row.overall.placement) == (0.9, False, None)
    assert [row.overall.placement.ranks for row in board.rows if row.is_ranked] == [(1, 1), (2, 2)]
    notes = [board.notes[i] for i in row.notes]
    assert any("Reads other data than the mechanisms" in x and "256 tokens" in x for x in notes)


def test_each_reference_row_may_have_task_options_of_its_own():
    rows = [
        with_task(record("full", overrides={"row": f"full-{length}"}), length, checksum)
        for length, checksum in ((256, "aa"), (512, "cc"))
    ]
    board = build_leaderboard([with_task(record("full"), 1024, "bb"), *rows])
    assert [column.label for column in board.columns] == ["listops"]
    assert len(board.rows) == 3


def test_other_task_options_and_rebuilt_data_have_a_column_of_their_own():
    long = [with_task(record(x), 1024, "bb") for x in ("full", "local")]
    changed = record("local", overrides={"task.length": 256})
    board = build_leaderboard([*long, with_task(changed, 256, "aa")])
    labels = [column.label for column in board.columns]
    assert labels == ["listops [aaaaaaaa]", "listops [bbbbbbbb]"]
    # A reference row on other data of the same options.
    rebuilt = with_task(record("full", overrides={"row": "full-short"}), 1024, "aa")
    assert len(build_leaderboard([long[0], rebuilt]).columns) == 2


def test_variants_are_ranked_among_the_mechanisms():
    runs = [record("local", overrides={"variant": name}) for name in ("local-8", "local-16")]
    board = build_leaderboard([record(), record("local"), *runs])
    assert [group.overrides for group in board.groups] == [""]
    ranked = {row.label for row in board.rows if row.is_ranked}
    assert ranked == {"bigbird", "local", "local-8", "local-16"}
    assert {row.family for row in board.rows if row.variant} == {"fixed pattern"}
    assert not any(row.notes for row in board.rows if row.variant)


def test_budget_is_in_the_title_and_leaves_rows_ranked():
    changed = {"budget": "seconds=600"}
    runs = [record(x, budget=TIME_BUDGET, overrides=changed) for x in ("full", "linear")]
    board = build_leaderboard(runs)
    assert all(row.is_ranked for row in board.rows)
    (table,) = leaderboards(board)
    assert table.title.startswith("Leaderboard of lra-small, equal training time (10 min): ")


def test_cost_ratios_are_to_the_baseline_with_the_same_overrides():
    runs = [record(name, tokens_per_second=x) for name, x in (("full", 100.0), ("linear", 300.0))]
    short = [
        dataclasses.replace(x, overrides=SHORT, config_hash=x.mechanism, tokens_per_second=y)
        for x, y in zip(runs, (10.0, 20.0), strict=True)
    ]
    board = build_leaderboard([*runs, *short])
    (table,) = cost(board)
    at = table.keys.index("speed_ratio")
    ratios = {line[0].value: line[at].value for line in table.rows}
    assert ratios["linear (training.steps=9)"] == pytest.approx(2.0)
    assert ratios["linear"] == pytest.approx(3.0)


def chance_and_other(share_of_recall):
    """Return records of two mechanisms: `a` leads on listops, and its score on recall varies."""
    return with_second_seed(
        record_of_answers(name, 0, np.arange(1000) < 1000 * share, task)
        for name, shares in (("a", (0.9, share_of_recall)), ("b", (0.5, 0.1)))
        for task, share in zip(("listops", "recall"), shares, strict=True)
    )


def test_mean_with_a_score_at_chance_is_not_bold_and_says_so():
    lines = leaderboard(build_leaderboard(chance_and_other(0.3))).rows
    assert [line[3].emphasis for line in lines] == ["best", None]
    assert "chance" not in lines[0][3].detail
    lines = leaderboard(build_leaderboard(chance_and_other(0.11))).rows
    assert [line[0].value for line in lines] == ["a", "b"]
    assert [line[3].emphasis for line in lines] == [None, None]
    assert [line[3].underline for line in lines] == [None, None]
    assert lines[0][2].detail.endswith(" · at chance")
    assert lines[0][3].detail.endswith(" · 1 at chance")
    assert "chance" not in lines[0][1].detail


def test_wins_of_the_front_are_corrected_within_a_table():
    """Compare the mean over five tasks in each of two tables."""
    runs = [
        record(
            name, task, seed, score + spread * seed, overrides=overrides, config_hash=f"{spread}"
        )
        for overrides, spread in (({}, 0.02), (SHORT, 0.002))
        for name, score in (("full", 0.5), ("linear", 0.51), ("local", 0.55))
        for task in MEAN_TASKS
        for seed in (0, 1, 2)
    ]
    board = build_leaderboard(runs)
    wins = find_score_wins(board, len(board.columns))
    tables = [row.overrides for row in board.rows]
    assert len({*tables}) == 2
    for i, row in enumerate(board.rows):
        assert row.overall.placement.ranks == (1 + wins[:, i].sum(), 3 - wins[i].sum())
        assert {tables[j] for j in np.flatnonzero(wins[i])} <= {row.overrides}


def records_of_five_tasks(mechanism="bigbird", score=0.6):
    return [record(mechanism, task, score=score + i / 100) for i, task in enumerate(MEAN_TASKS)]


def test_published_means_over_five_and_six_tasks():
    above = record(task="path_x", score=0.8)
    below = record("linear", "path_x", score=0.503)
    names = ("bigbird", "linear", "local", "full")
    runs = [x for name in names for x in records_of_five_tasks(name)]
    runs += [above, below, *records_of_five_tasks("dilated")[1:]]
    board = build_leaderboard(runs, [failure("local", "path_x", seed=0)])
    assert [mean.label for mean in board.means] == ["Mean of 5", "Mean of 6"]
    assert scores_of_means(board, "bigbird") == pytest.approx((0.62, (0.62 * 5 + 0.8) / 6))
    # The interval of 2,000 examples includes chance.
    assert scores_of_means(board, "linear") == pytest.approx((0.62, (0.62 * 5 + 0.5) / 6))
    assert scores_of_means(board, "local") == pytest.approx((0.62, (0.62 * 5 + 0.5) / 6))
    # A run that was never started has not failed.
    assert scores_of_means(board, "full") == (pytest.approx(0.62), None)
    assert scores_of_means(board, "dilated") == (None, None)


def scores_of_means(board, name):
    return tuple(cell.score for cell in find_row(board, name).means)


def test_other_tasks_have_own_mean_and_single_task_has_none():
    assert [x.label for x in build_leaderboard(records_of_five_tasks()[:3]).means] == ["Mean"]
    assert build_leaderboard(records_of_five_tasks()[:1]).means == ()
    more = build_leaderboard([*records_of_five_tasks(), record(task="copying", score=1.0)])
    assert [x.label for x in more.means] == ["Mean of 5", "Mean of 6"]
    assert more.rows[0].means[1].score == pytest.approx((0.62 * 5 + 1) / 6)


def test_parameters_beyond_tolerance_are_noted():
    sizes = {"fat": 221, "thin": 179, "fit": 219, "slim": 181}
    runs = [record(x, num_parameters=n, full_num_parameters=200) for x, n in sizes.items()]
    board = build_leaderboard([*runs, record("unknown", full_num_parameters=None)])
    assert find_row(board, "fat").parameter_excess == pytest.approx(0.105)
    assert [board.notes[i] for i in find_row(board, "fat").notes] == [
        "10.5 % more parameters than full; 10 % is allowed."
    ]
    assert "10.5 % fewer parameters" in board.notes[find_row(board, "thin").notes[0]]
    for name in ("fit", "slim", "unknown"):
        assert find_row(board, name).notes == ()
    assert parameter_excess(record(full_num_parameters=None)) is None


def test_rows_of_given_checkpoints_are_ranked_among_each_other():
    """Each names another checkpoint; rows from scratch have a table of their own."""
    starts = {"local": "a" * 64, "linear": "b" * 64}
    runs = [
        record(name, score=0.5, overrides={"start.checkpoint": x}) for name, x in starts.items()
    ]
    board = build_leaderboard([record("full", score=0.4), *runs])
    groups = {group.overrides: [row.mechanism for row in group.rows] for group in board.groups}
    assert sorted(groups[""]) == ["full"]
    (shared,) = (rows for name, rows in groups.items() if name)
    assert sorted(shared) == ["linear", "local"]
    assert all(find_row(board, name).is_ranked for name in starts)
