"""Verdict in words: derived from intervals, ranks and costs, for every shape of leaderboard."""

import dataclasses
import json
import types

import numpy as np
import pytest
from report_records import (
    build_leaderboard,
    efficiency,
    failure,
    measurement,
    print_terminal,
    record,
    record_of_answers,
    with_second_seed,
)

from longspan.report.context import Context
from longspan.report.leaderboard.levels import SOLVED
from longspan.report.leaderboard.verdict import _name_floor, podium, verdict, verdict_sentences
from longspan.report.output.page import render_page
from longspan.report.output.text import markdown, to_json
from longspan.report.sections import section_tables
from longspan.report.statistics.survival import Survival, Time

MAJORITY = 0.1  # of `record_of_answers`
COUNT = 1000


def runs_of(scores, **changes):
    """Return single runs: shares of correct answers by task, for each row."""
    return [
        record_of_answers(name, 0, np.arange(COUNT) < COUNT * share, task, **changes.get(name, {}))
        for name, shares in scores.items()
        for task, share in shares.items()
    ]


def board_of(scores, **changes):
    """Return a leaderboard of two seeds of each row."""
    return build_leaderboard(with_second_seed(runs_of(scores, **changes)))


def both(needle, recall):
    return {"needle": needle, "recall": recall}


SHARES = {"full": (1.0, 1.0), "linear": (1.0, 0.5), "local": (0.1, 0.5), "bigbird": (1.0, 0.99)}
TWO = {name: both(*shares) for name, shares in SHARES.items()}


def test_verdict_counts_who_solves_what_and_who_is_at_chance():
    speeds = {
        "full": {"tokens_per_second": 1e4, "peak_memory": 2**21},
        "bigbird": {"tokens_per_second": 3e4, "peak_memory": 2**22},
        "linear": {"tokens_per_second": 9e4, "peak_memory": 2**10},
    }
    found = verdict(board_of(TWO, **speeds))
    assert found == (
        "2 of 4 mechanisms solve both needle and recall (95 % interval at 95 % or more).",
        "Of these: fastest in training bigbird (30.0k tokens/s), least memory full (2.00 MiB).",
        "needle: 3 of 4 solve it; 1 is not significantly better than the majority class.",
        "recall: 2 of 4 solve it.",
    )


@pytest.mark.parametrize(("share", "solved"), [(0.96, 0), (0.97, 1)])
def test_a_solved_task_has_its_whole_interval_above_the_level(share, solved):
    # Wilson's intervals of 1,000 answers reach down to 94.6 and 95.8 %.
    assert SOLVED == 0.95
    board = build_leaderboard(runs_of({"full": {"needle": share}, "linear": {"needle": 0.5}}))
    assert verdict(board)[0].startswith("1 of 2 mechanisms solves") == bool(solved)


@pytest.mark.parametrize(("share", "at_chance"), [(0.118, 1), (0.122, 0)])
def test_chance_is_within_the_interval(share, at_chance):
    # Wilson's intervals reach down to 9.9 and 10.3 %; the majority class has 10 %.
    board = build_leaderboard(runs_of({"full": {"x": 0.5}, "linear": {"x": share}}))
    assert ("1 is not significantly better" in verdict(board)[0]) == bool(at_chance)
    assert board.columns[0].majority == MAJORITY


def test_rows_that_cannot_be_told_apart_are_counted():
    scores = {f"m{i}": {"x": 0.5 + i / 1000} for i in range(5)}
    assert verdict(board_of(scores)) == ("x: the 5 rows cannot be told apart.",)
    scores["last"] = {"x": 0.1}
    assert verdict(board_of(scores)) == (
        "x: 5 of 6 rows may be best; 1 is not significantly better than the majority class.",
    )
    scores["first"] = {"x": 0.9}
    assert verdict(board_of(scores))[0].startswith("x: first is best;")


def test_single_seeds_have_no_best_row():
    """Compare 90 with 20 %: a large difference, and still of one seed."""
    board = build_leaderboard(runs_of({"full": {"x": 0.9}, "linear": {"x": 0.2}}))
    assert verdict(board) == (
        "x: no row is ranked.",
        "2 of 2 mechanisms have one seed and no seed variance to borrow on x: no rank there, and "
        "intervals that say nothing about other seeds.",
    )
    board = build_leaderboard(runs_of({"full": {"x": 1.0}, "linear": {"x": 0.2}}))
    assert verdict(board)[0] == (
        "1 of 2 mechanisms solves x (95 % interval at 95 % or more), 1 of them in one seed alone."
    )


def test_task_without_scored_rules_has_no_verdict_and_no_margin():
    unscored = {name: {"rules": None} for name in TWO}
    board = board_of(TWO, **unscored)
    assert verdict(board) == tuple(
        f"{task}: no verdict, as its rules were not scored by the version that trained it."
        for task in ("needle", "recall")
    )
    assert {cell.margin for row in board.rows for cell in row.cells} == {None}
    (table,) = section_tables([board], Context(), "leaderboard")
    assert table.notes[-1].startswith("No margin and no verdict on needle, recall, whose rules")
    assert {cell.margin is None for row in board_of(TWO).rows for cell in row.cells} == {False}


def test_rule_that_beats_the_majority_class_is_the_bar():
    rules = {"rules": {"test": {"last value": 0.5}, "validation": {}}}
    scores = {"full": {"x": 1.0}, "linear": {"x": 0.51}, "local": {"x": 0.3}}
    board = board_of(scores, full=rules, linear=rules, local=rules)
    assert verdict(board)[-1].endswith("2 are not significantly better than the rule 'last value'.")
    assert not any(cell.is_at_chance for row in board.rows for cell in row.cells)


def test_scores_without_a_majority_class_are_compared_with_chance():
    """R² of always predicting the mean is 0, and numbers have no classes."""
    (column,) = board_of({"full": {"x": 0.1}, "linear": {"x": 0.09}}).columns
    assert _name_floor(column) == "the majority class"
    assert _name_floor(dataclasses.replace(column, floor=None, majority=None)) == "chance"


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (
            {"full": {"x": 0.1}, "linear": {"x": 0.09}},
            ("x: no row is significantly better than the majority class.",),
        ),
        # A single solved task is named once.
        (
            {"full": {"x": 1.0}, "linear": {"x": 0.3}},
            ("1 of 2 mechanisms solves x (95 % interval at 95 % or more).",),
        ),
        (
            {"full": both(1.0, 0.5), "linear": both(0.5, 0.3)},
            (
                "None of 2 mechanisms is shown to solve both needle and recall (95 % interval at "
                "95 % or more).",
                "needle: 1 of 2 solve it.",
                "recall: full is best.",
            ),
        ),
    ],
)
def test_nothing_learned_one_solved_task_and_no_solver_are_said(scores, said):
    assert verdict(board_of(scores)) == said


def test_missing_scores_are_counted_and_solve_nothing():
    runs = [record_of_answers(m, 0, np.ones(COUNT), t) for m in ("full", "linear") for t in "ab"]
    runs.append(record_of_answers("local", 0, np.ones(COUNT), "a"))
    board = build_leaderboard(with_second_seed(runs), [failure("local", "b", 0)])
    found = verdict(board)
    assert found[0] == (
        "2 of 3 mechanisms solve both a and b (95 % interval at 95 % or more); "
        "1 has no score on a task."
    )
    assert found[-1] == "b: 2 of 2 solve it; 1 has no score."


def test_cost_is_compared_on_one_device_and_only_if_all_solvers_have_it():
    other = board_of(TWO, full={"device": "cuda"})
    assert "fastest" not in str(verdict(other))
    unknown = str(verdict(board_of(TWO, full={"peak_memory": None})))
    assert "fastest" in unknown
    assert "least memory" not in unknown


def test_metrics_without_a_best_value_and_single_rows():
    runs = [record(name, score=x, metric="bits_per_byte") for name, x in (("a", 1.2), ("b", 1.4))]
    (sentence,) = verdict(build_leaderboard(with_second_seed(runs)))
    assert "solve" not in sentence
    assert "chance" not in sentence
    assert verdict(build_leaderboard([record()])) == ()
    assert verdict(build_leaderboard([], [failure(), failure("full")])) == ()


def test_verdicts_of_overridden_rows_name_the_overrides():
    changed = {"overrides": {"training.steps": 9}}
    board = board_of({"full": {"x": 1.0}, "linear": {"x": 1.0}}, full=changed, linear=changed)
    assert verdict_sentences(board)[0].startswith("With training.steps = 9: 2 of 2 ")


@pytest.mark.parametrize(
    ("shares", "places"),
    [
        ((0.9, 0.7, 0.5, 0.3), 3),
        ((0.9, 0.7, 0.7, 0.3), 1),
        ((0.9, 0.9, 0.5, 0.3), 0),
        ((0.9, 0.7, 0.1), 2),
        ((0.9,), 0),
    ],
)
def test_podium_ends_before_rows_that_tie_or_are_at_chance(shares, places):
    board = board_of({f"m{i}": {"x": share} for i, share in enumerate(shares)})
    (group,) = board.groups
    assert [row.label for row in podium(group)] == [f"m{i}" for i in range(places)]
    assert ("<ol>" in render_page([board])) == (places > 0)


def test_verdict_heads_every_output():
    board = board_of(TWO)
    said = verdict(board)
    tables = section_tables([board], Context(), "leaderboard")
    shown = print_terminal(tables, 300)
    assert 0 < shown.index(said[0]) < shown.index(said[-1]) < shown.index("Leaderboard of")
    assert markdown(tables).index("2 of 4 mechanisms solve") < markdown(tables).index("| Mechanism")
    for section in ("leaderboard", "scores"):
        (table,) = json.loads(to_json(section_tables([board], Context(), section)))
        assert table["verdict"] == list(said)
    page = render_page([board])
    assert page.index(f"<p>{said[0]}</p>") < page.index("<table>")


def test_readme_has_verdict_tasks_and_costs(import_script):
    module = import_script("result_tables")
    mebi = 1 << 20
    layers = [
        layer_cost("full", 1_024, 0.1, 100 * mebi),
        layer_cost("linear", 1_024, 0.2, 50 * mebi),
        layer_cost("full", 4_096, 0.8, 200 * mebi),
        layer_cost("linear", 4_096, 0.2, 50 * mebi),
        layer_cost("linear", 16_384, 1.5, 800 * mebi),
    ]
    record = efficiency(layers, suite="layer", limits={})
    said, blank, head, _, first, *others = module.readme_lines(
        board_of(TWO), record, {"linear": "57.0"}
    )
    assert said.startswith("2 of 4 mechanisms solve both")
    assert said.endswith("Runs of 2026-03-01; layers of 2026-01-01.")
    assert blank == ""
    heads = "needle, steps | recall, steps | needle at 1,024, % | 4,096 tokens | 16,384 tokens"
    assert head == f"| mechanism | {heads} |"
    assert first == "| `full` | – | – | – | 1.0 x, 1.0 x | – |"  # records without a goal
    assert "| `linear` | – | – | 57.0 | 4.0 x, 0.2 x | 1.50 s, 800 MiB |" in others


@pytest.mark.parametrize(
    ("solved", "text"),
    [((1, 1), "30"), ((1, 0), "1 of 2 seeds"), ((0, 0), "not solved"), ((), "–")],
)
def test_readme_has_the_steps_of_rows_that_solve(import_script, solved, text):
    times = tuple(Time(30 if x else 100, bool(x)) for x in solved)
    survival = Survival(times=times, horizon=100) if times else None
    cell = types.SimpleNamespace(survival=survival)
    assert import_script("summaries").time_text(cell) == text


def layer_cost(mechanism, length, seconds, memory):
    """Return a measurement of a layer whose limit is 0.1 s."""
    sizes = {"scope": "layer", "batch_size": 1, "median": seconds, "peak_memory": memory}
    return measurement(mechanism, length, least_seconds=0.1, **sizes)
