"""Times to solve: censoring, medians, intervals and the log-rank test, against other truths."""

import itertools
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from report_records import build_leaderboard, curve, failure, lines, record, scores
from scipy.stats import CensoredData, ecdf, logrank

from longspan.report.context import Context
from longspan.report.leaderboard.verdict import verdict
from longspan.report.output.page import render_page
from longspan.report.output.paper import paper_tables
from longspan.report.output.text import latex, markdown, to_json
from longspan.report.sections import section_tables
from longspan.report.statistics.contrasts import LEVEL, adjust_pairs
from longspan.report.statistics.survival import (
    Survival,
    Time,
    compare_times,
    log_rank,
    seeds_needed,
    time_to_solve,
    verdicts_by_seed,
)
from longspan.results import ResolvedBudget, load_results

GOAL, LAST, EVERY = 0.9, 500, 50
ROOT = Path(__file__).parents[2]


def run_to(step, mechanism="full", seed=0, task="recall", metric="accuracy", **changes):
    """Return a run that reaches the goal at a step, or never, and stops there."""
    at = [point for point in curve(0.5, metric=metric) if step is None or point.step <= step]
    score = 0.5
    if step is not None:
        score = GOAL
        at[-1].validation_metrics[metric] = score
    stopping = {"stop_at": GOAL, **changes.pop("training", {})}
    changes = {"curve": at, "steps": at[-1].step, "scores": scores(score, 0.1), **changes}
    return record(mechanism, task, seed, score, training=stopping, metric=metric, **changes)


def board_of(rows, task="recall", **changes):
    """Return the leaderboard of rows, each with the step of every seed, None for a censored one."""
    return build_leaderboard(
        run_to(step, name, seed, task, **changes)
        for name, steps in rows.items()
        for seed, step in enumerate(steps)
    )


def survival(times, horizon=LAST):
    return Survival(times=tuple(times), horizon=horizon)


def draw_times(rng, hazard, size, last=LAST, every=EVERY):
    """Draw steps of evaluations, as of exponential times, censored at the last one."""
    steps = every * np.ceil(rng.exponential(1 / hazard, size) / every)
    return tuple(Time(int(min(x, last)), bool(x <= last)) for x in steps)


def test_run_solves_at_its_first_evaluation_with_the_score_or_is_censored_at_its_last_step():
    assert time_to_solve(run_to(150), GOAL) == Time(150, True)
    assert time_to_solve(run_to(None), GOAL) == Time(LAST, False)
    # A score that the run lost again still counts, at the first evaluation that had it.
    run = run_to(None)
    for step in (3, 5):
        run.curve[step].validation_metrics["accuracy"] = 0.95
    assert time_to_solve(run, GOAL) == Time(150, True)
    bits = record(metric="bits_per_byte", score=1.0)
    first = next(x.step for x in bits.curve if x.validation_metrics["bits_per_byte"] <= 2.0)
    assert 0 < first < LAST
    assert time_to_solve(bits, 2.0) == Time(first, True)


def test_median_is_where_kaplan_and_meier_of_scipy_fall_to_a_half():
    rng = np.random.default_rng(0)
    medians = []
    for _ in range(200):
        # Censored at several steps, as under a budget of seconds.
        times = [Time(int(x), bool(y)) for x, y in rng.integers([1, 0], [9, 2], (7, 2))]
        steps, censored = zip(*((x.step, not x.is_solved) for x in times), strict=True)
        sf = ecdf(CensoredData.right_censored(steps, censored)).sf
        below = sf.quantiles[sf.probabilities <= 0.5 + 1e-9]
        medians.append(survival(times).median)
        assert medians[-1] == (below[0] if len(below) else None)
    assert None in medians
    assert len(set(medians)) > 5


@pytest.mark.parametrize("size", [6, 10, 21])
def test_interval_covers_the_median_in_95_percent(size):
    rng = np.random.default_rng(size)
    hazard = math.log(2) / 275  # the median evaluation is at 300, and 28 % are censored
    intervals = [survival(draw_times(rng, hazard, size)).median_interval for _ in range(1000)]
    covered = np.mean([one is not None and one.low <= 300 <= one.high for one in intervals])
    assert covered >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 1000)
    assert any(one.low > 100 for one in intervals if one)
    assert any(one.high < LAST for one in intervals if one)


def test_five_seeds_have_no_interval_and_a_median_that_few_reach_an_open_one():
    assert survival([Time(50, True)] * 5).median_interval is None
    few = survival([Time(50 * i, True) for i in range(1, 5)] + [Time(LAST, False)] * 6)
    assert few.median is None
    assert (few.median_interval.low, few.median_interval.high) == (100, math.inf)
    assert survival([Time(LAST, False)] * 10).median_interval is None


def excess_by_risk_sets(one, other):
    """Return observed less expected events of the first row, one table of two rows at a time."""
    excess = 0.0
    for step in {time.step for time in (*one, *other) if time.is_solved}:
        events = [row.count(Time(step, True)) for row in (one, other)]
        at_risk = [sum(time.step >= step for time in row) for row in (one, other)]
        excess += events[0] - sum(events) * at_risk[0] / sum(at_risk)
    return excess


@pytest.mark.parametrize(("size", "other"), [(3, 3), (4, 4), (3, 5), (1, 6)])
def test_p_is_the_share_of_all_splits(size, other):
    rng = np.random.default_rng(size)
    for _ in range(10):
        pooled = list(draw_times(rng, 1 / 300, size + other, every=100))
        splits = [
            excess_by_risk_sets(
                [pooled[i] for i in at], [x for i, x in enumerate(pooled) if i not in at]
            )
            for at in itertools.combinations(range(size + other), size)
        ]
        # The first combination is the split itself.
        excess, p = log_rank(pooled[:size], pooled[size:])
        assert excess == pytest.approx(splits[0], abs=1e-9)
        assert p == pytest.approx(np.mean(np.abs(splits) >= abs(splits[0]) - 1e-6))


def scipy_p(one, other):
    samples = (
        CensoredData.right_censored([x.step for x in row], [not x.is_solved for x in row])
        for row in (one, other)
    )
    return logrank(*samples).pvalue


def test_p_of_many_seeds_is_that_of_scipy_and_that_of_few_is_larger():
    rng = np.random.default_rng(4)
    pairs = [[draw_times(rng, hazard, 60) for hazard in (1 / 300, 1 / 200)] for _ in range(20)]
    for one, other in pairs:
        # The variance over splits differs from that within risk sets.
        assert log_rank(one, other)[1] == pytest.approx(scipy_p(one, other), rel=0.1, abs=0.01)
    one, other = [Time(50, True)] * 3, [Time(LAST, False)] * 3
    assert scipy_p(one, other) == pytest.approx(0.025, abs=1e-3)
    assert log_rank(one, other) == pytest.approx((1.5, 0.1))


@pytest.mark.parametrize(("size", "other"), [(3, 3), (5, 5), (4, 9), (10, 10), (40, 40)])
def test_equal_runs_are_rejected_in_at_most_five_percent(size, other):
    rng = np.random.default_rng(size)
    number = 600
    p = [log_rank(*(draw_times(rng, 1 / 300, x) for x in (size, other)))[1] for _ in range(number)]
    assert np.mean(np.array(p) < LEVEL) <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / number)


def test_tables_of_equal_rows_have_an_arrow_in_at_most_five_percent():
    rng = np.random.default_rng(5)
    number, rows = 200, range(6)
    least = []
    for _ in range(number):
        table = [survival(draw_times(rng, 1 / 300, 8)) for _ in rows]
        least.append(np.nanmin(adjust_pairs(compare_times(table, [rows]).p)))
    assert np.mean(np.array(least) < LEVEL) <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / number)


@pytest.mark.parametrize(("size", "ratio"), [(10, 4.0), (40, 2.0)])
def test_different_rows_are_rejected_as_often_as_schoenfeld_expects(size, ratio):
    """Schoenfeld 1981: power follows from the number of events and the ratio of hazards."""
    rng = np.random.default_rng(size)
    pairs = [[draw_times(rng, x / 300, size, every=20) for x in (1, ratio)] for _ in range(200)]
    power = np.mean([log_rank(*pair)[1] < LEVEL for pair in pairs])
    events = np.mean([sum(x.is_solved for row in pair for x in row) for pair in pairs])
    normal = statistics.NormalDist()
    expected = normal.cdf(math.log(ratio) * math.sqrt(events / 4) - normal.inv_cdf(0.975))
    assert 0.7 < expected < 0.95
    assert power == pytest.approx(expected, abs=0.1)


def test_wins_need_the_log_rank_test_and_the_mean_steps_to_agree():
    """Of rows that cross, one solves more often, and the other earlier where it does."""
    early = [Time(10, True)] * 5 + [Time(1000, False)] * 7
    late = [Time(600, True)] * 12
    contrasts = compare_times([survival(x, 1000) for x in (early, late)], [[0, 1]])
    assert contrasts.difference[0, 1] == pytest.approx((50 + 7000) / 12 - 600)
    assert contrasts.difference[0, 1] < 0
    excess, p = log_rank(early, late)
    assert excess < 0
    assert p < contrasts.p[0, 1] == 1.0
    # A longer horizon of one row counts for nothing.
    short = survival([Time(50, True)] * 4, 100)
    long = survival([Time(300, True)] * 4, 1000)
    assert compare_times([short, long], [[0, 1]]).difference[0, 1] == 50 - 100


def most_extreme(rows, seeds):
    """Return a table in which one row solves at once, and the others never."""
    solved, lost = [EVERY] * seeds, [None] * seeds
    return {"full": solved, **{f"m{i}": lost for i in range(rows - 1)}}


@pytest.mark.parametrize("rows", [2, 6])
def test_rows_are_compared_from_the_number_of_seeds_that_the_verdict_names(rows):
    enough = seeds_needed(rows)
    assert enough > 3
    board = board_of(most_extreme(rows, enough - 1))
    said = verdict(board)
    assert said[-1].endswith(f"cannot differ significantly; that takes {enough} seeds a row.")
    places = [row.cells[0].placement for row in board.rows]
    assert {(x.ranks, x.arrow, x.is_best, x.p) for x in places} == {(None, "", False, None)}
    board = board_of(most_extreme(rows, enough))
    best, *others = [row.cells[0].placement for row in board.rows]
    assert (best.ranks, best.is_best) == ((1, 1), True)
    assert {(x.ranks, x.arrow) for x in others} == {((2, rows), "↓")}
    assert verdict(board)[-1] == "Steps to solve recall: full is best."


def test_rows_of_few_seeds_take_no_power_from_those_of_many():
    ten, three = [Time(50, True)] * 10, [Time(50, True)] * 3
    rows = [survival(x) for x in (ten, [Time(LAST, False)] * 10, *[three] * 8)]
    p = compare_times(rows, [range(10)]).p
    assert np.argwhere(~np.isnan(p)).tolist() == [[0, 1], [1, 0]]
    assert adjust_pairs(p)[0, 1] == pytest.approx(2 / math.comb(20, 10))


def test_verdict_names_who_solves_and_who_does_not():
    board = board_of({"full": [50, 50, 100], "linear": [100, None, 50], "local": [None] * 3})
    assert verdict(board) == (
        "1 of 3 mechanisms solves recall (every seed reaches the score that ends training).",
        "recall (90.0 % on validation): solved in every seed by 1 (full); in some by 1 "
        "(linear: 2 of 3); in none by 1 (local).",
        "Steps to solve recall: not compared, as 3 rows of 3 seeds cannot differ significantly; "
        "that takes 5 seeds a row.",
    )


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([50, None, None], "solved in some by 2 (full: 1 of 3, linear: 1 of 3)."),
        ([None] * 3, "solved in none by 2 (full, linear)."),
    ],
)
def test_verdict_on_a_task_that_no_row_solves_has_its_verb(steps, words):
    _, sentence, *_ = ("", *verdict(board_of({"full": steps, "linear": steps})))
    assert sentence == f"recall (90.0 % on validation): {words}"


def test_rows_are_sorted_by_share_then_median_and_not_by_accuracy():
    rows = {"a": [None, 50, None], "b": [200, 200, 200], "c": [100, 150, 500], "d": [None] * 3}
    board = board_of(rows)
    assert [row.label for row in board.rows] == ["c", "b", "a", "d"]
    other = [run_to(50, name, seed, "needle") for name in "ab" for seed in range(3)]
    both = build_leaderboard(
        [*other, *(run for row in board.rows for run in row.runs(0) if row.label in "ab")]
    )
    assert [row.label for row in both.rows] == ["b", "a"]
    assert {row.overall.placement.ranks for row in both.rows} == {None}


def test_every_output_has_solved_seeds_and_median_steps_and_no_mark_on_accuracy():
    board = board_of({"full": [50] * 6, "linear": [100, 150, 200, 250, 300, None]})
    tables = section_tables([board], Context(), "leaderboard")
    full, linear = lines(tables[0])
    assert (full["recall_solved_90_0"], full["recall_steps"]) == (1.0, 50)
    assert (linear["recall_solved_90_0"], linear["recall_steps"]) == (5 / 6, 200)
    entries = dict(zip(tables[0].keys, tables[0].rows[1], strict=True))
    assert entries["recall_solved_90_0"].text == "5/6"
    assert entries["recall_solved_90_0"].detail == "44–97 % · 1 censored"
    assert (entries["recall_steps"].text, entries["recall_steps"].detail) == ("200 ↓", "100–∞")
    assert "↓" not in entries["recall"].text
    for text in (markdown(tables), latex(tables), paper_tables([board]), render_page([board])):
        assert "5/6" in text
        assert "log-rank" in text
    (data,) = json.loads(to_json(section_tables([board], Context(), "scores")))
    best = next(row for row in data["rows"] if row["mechanism"] == "linear")
    assert (best["goal"], best["solved"], best["seeds"]) == (GOAL, 5, 6)
    assert (best["median_steps"], best["steps_low"], best["steps_high"]) == (200, 100, None)
    assert best["difference"] == pytest.approx((100 + 150 + 200 + 250 + 300 + 500) / 6 - 50)
    (matrix,) = section_tables([board], Context(), "significance")
    assert "differences in steps to solve" in matrix.title
    assert matrix.rows[0][2].text == "−200"


def test_footers_stand_below_the_scores():
    tables = section_tables([board_of({"full": [50], "linear": [None]})], Context(), "leaderboard")
    footer = {line[0].value: line for line in tables[0].footer}
    at = tables[0].keys.index("recall")
    assert [x.value for x in footer["majority class"]][at - 2 : at + 1] == [None, None, 0.1]
    assert "majority class & -- & -- & 10.0" in paper_tables([board_of({"full": [50]})])


def test_target_is_that_of_the_recipe():
    """Runs of other scores are timed where their curve reaches that far."""
    runs = [run_to(50), run_to(100, "linear", training={"stop_at": None})]
    lower = {"training": {"stop_at": 0.5}, "overrides": {"training.stop_at": 0.5}}
    higher = {"training": {"stop_at": 0.95}, "overrides": {"training.stop_at": 0.95}}
    runs += [run_to(50, "local", **lower), run_to(200, "bigbird", **higher)]
    board = build_leaderboard(runs)
    assert board.columns[0].goal == GOAL
    times = {row.mechanism: row.cells[0].survival for row in board.rows}
    assert times.pop("local") is None
    assert {name: one.median for name, one in times.items()} == {
        "full": 50,
        "linear": 100,
        "bigbird": 200,
    }
    plain = build_leaderboard([record(), record("full")])
    assert plain.columns[0].goal is None
    assert not any(
        column.role for column in section_tables([plain], Context(), "leaderboard")[0].columns
    )


def test_failed_seeds_have_no_time():
    runs = [run_to(50, "full"), run_to(50, "linear"), run_to(None, "local")]
    same = {name: getattr(runs[1], name) for name in ("config", "config_hash")}
    board = build_leaderboard(runs, [failure("linear", "recall", 1, **same)])
    assert [row.cells[0].survival is None for row in board.rows] == [False, False, True]
    assert "1 has no time" in " ".join(verdict(board))


def test_horizon_is_that_of_the_steps_that_a_budget_leaves():
    changed = ResolvedBudget(changes={"training.steps": 200}, measurements={})
    board = board_of({"full": [50]}, resolved_budget=changed)
    assert board.rows[0].cells[0].survival.horizon == 200
    assert board_of({"full": [50]}).rows[0].cells[0].survival.horizon == LAST


def test_seeds_that_disagree_with_the_verdict_are_named():
    runs = [
        run_to(step, name, seed)
        for name, steps in {"full": [50, 100], "linear": [50, None]}.items()
        for seed, step in enumerate(steps)
    ]
    full, linear = verdicts_by_seed([*runs, record()])
    assert (full.row, full.task, full.solved, full.agree) == (
        "full",
        "recall",
        {0: True, 1: True},
        True,
    )
    assert (linear.solved, linear.agree) == ({0: True, 1: False}, False)


def test_committed_records_with_a_target_say_who_solves():
    results = [run for run in load_results([ROOT / "results"]) if run.config.training.stop_at]
    lines_by_seed = verdicts_by_seed(results)
    reached = {(x.protocol, x.row, x.task): all(x.solved.values()) for x in lines_by_seed}
    assert reached["quick", "full", "recall"]
    assert not reached["quick", "synthesizer", "recall"]
    for run in results:
        time = time_to_solve(run, run.config.training.stop_at)
        assert (time.step == run.steps) or not time.is_solved
        assert time.is_solved == (
            run.scores["validation"].metrics[run.metric] >= run.config.training.stop_at
        )
