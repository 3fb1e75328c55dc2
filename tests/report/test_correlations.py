"""Rank correlations of Long Range Arena with downstream tasks, against scipy and enumeration."""

import dataclasses
import itertools

import numpy as np
import pytest
from report_records import lines as rows
from report_records import published, record
from scipy import stats

from longspan.config import Budget, TaskConfig
from longspan.report.context import Context
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.output.page import render_page
from longspan.report.output.text import WRITERS
from longspan.report.sections import section_tables
from longspan.report.tables import correlations
from longspan.report.tables.correlations import DIAGNOSTIC, correlate
from longspan.report.tables.published import read_published
from longspan.tasks import TASKS
from longspan.tasks.synthetic.generated import GeneratedTask

NAMES = ("full", "linear", "local", "performer", "reformer", "sinkhorn")
# Xiong et al. 2022, tables 1 and 2. Rows: Sinkhorn, LSH, Linformer, Nystrom, Performer, Long-Short,
# local, blockwise. Columns: ListOps, Text, Matching, perplexity, EM, F1, MRR, Hyperpartisan.
XIONG = np.array(
    [
        [37.6, 63.8, 80.4, 4.03, 63.3, 68.5, 80.9, 95.0],
        [37.9, 62.5, 80.5, 3.63, 62.9, 67.5, 83.6, 92.2],
        [37.7, 61.9, 78.4, 4.14, 59.8, 65.2, 80.3, 88.7],
        [37.9, 66.1, 81.0, 3.79, 51.5, 57.3, 83.1, 89.5],
        [37.1, 66.1, 79.8, 5.58, 24.5, 31.9, 66.8, 94.9],
        [37.7, 65.7, 81.6, 3.36, 66.5, 71.4, 84.5, 91.5],
        [37.4, 65.7, 81.6, 3.47, 65.6, 70.7, 83.2, 95.3],
        [37.4, 65.6, 81.3, 3.39, 68.1, 72.9, 85.0, 95.0],
    ]
)


def lra_records(names=NAMES, task="listops", **changes):
    return [record(name, task, score=0.3 + 0.02 * i, **changes) for i, name in enumerate(names)]


def novels(names=NAMES, **changes):
    """Return perplexities that fall where the scores of `lra_records` rise."""
    return [
        record(name, "novels", score=9.0 - i, metric="perplexity", protocol="books", **changes)
        for i, name in enumerate(names)
    ]


def tables(runs, context=None):
    return section_tables(build_leaderboards(runs), context or Context(), "predicts")


@pytest.mark.parametrize("step", [1e-9, 0.7])
def test_correlation_equals_scipy_and_enumeration(step):
    x, noise = np.random.default_rng(3).normal(size=(2, 6))
    x, y = np.round(np.stack([x, x + noise]) / step) * step
    found = correlate([*x], [*y])
    assert found.rho == pytest.approx(stats.spearmanr(x, y).statistic)
    orders = itertools.permutations(range(6))
    drawn = [stats.spearmanr(x, y[list(order)]).statistic for order in orders]
    sides = [np.mean([sign * (rho - found.rho) >= -1e-9 for rho in drawn]) for sign in (1, -1)]
    assert found.p == pytest.approx(min(1, 2 * min(sides)))


def test_interval_covers_the_true_correlation(monkeypatch):
    """Draw 200 samples of 30 normal pairs: about 190 of the intervals hold the true rho."""
    monkeypatch.setattr(correlations, "ORDERS", 1)  # p alone depends on the permutations
    rng = np.random.default_rng(0)
    true = 6 / np.pi * np.arcsin(0.6 / 2)
    pairs = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], size=(200, 30))
    found = [correlate([*x], [*y]) for x, y in pairs.swapaxes(1, 2)]
    assert 180 <= sum(one.low <= true <= one.high for one in found) <= 199


def test_scores_that_differ_by_rounding_tie():
    exact, rounded = [3, 3, 1, 2, 4, 5], [0.3, 0.1 + 0.2, 0.1, 0.2, 0.4, 0.5]
    assert correlate(rounded, exact).rho == pytest.approx(1.0)


def test_too_few_rows_and_equal_scores_have_no_correlation():
    assert correlate([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]) is None
    assert correlate([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]) is not None
    assert correlate([1, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, 1]) is None


def test_metrics_where_lower_is_better_are_turned_round():
    (table,) = tables([*lra_records(), *novels()])
    (row,) = rows(table)
    assert (row["lra_task"], row["downstream_task"], row["metric"]) == (
        *("listops", "novels", "perplexity"),
    )
    assert (row["spearman"], row["mechanisms"]) == (pytest.approx(1.0), 6)
    # Of 720 orders one is as good, and one is the reverse.
    assert row["adjusted_p"] == pytest.approx(2 / 720)
    assert table.rows[0][table.keys.index("spearman")].emphasis is not None
    assert table.verdict == ("Significant: listops and novels.",)
    mixed = [NAMES[i] for i in (1, 0, 5, 3, 2, 4)]
    (table,) = tables([*lra_records(mixed), *novels()])
    # Squared differences of ranks: 1 + 1 + 4 + 0 + 1 + 9 = 16; 1 - 6 * 16 / 210.
    assert rows(table)[0]["spearman"] == pytest.approx(1 - 6 * 16 / 210)
    assert table.verdict == ("No correlation is significant.",)


def test_p_is_corrected_for_the_rows_of_the_table():
    (table,) = tables([*lra_records(), *lra_records(task="text"), *novels()])
    found = {row["lra_task"]: row for row in rows(table)}
    # The mean over both tasks is a predictor too: the smallest of three p is tripled.
    assert list(found) == ["listops", "text", "Mean"]
    assert found["listops"]["adjusted_p"] == pytest.approx(3 * 2 / 720)


def test_fewer_than_six_mechanisms_are_said():
    other = record("local", score=0.9, options={"window": 3}, protocol="lra-small")
    for runs in ([*lra_records(NAMES[:5]), *novels()], [*lra_records(), other, *novels()]):
        (table,) = tables(runs)
        (row,) = rows(table)
        assert (row["spearman"], row["adjusted_p"], row["mechanisms"]) == (None, None, 5)
        assert table.verdict == ("No correlation; at most 5 mechanisms in common.",)
    assert tables([*lra_records(NAMES[:3]), *novels(NAMES[3:])]) == []


@pytest.mark.parametrize(
    ("task", "counts"), [("text", 0), ("path_x", 0), ("needle", 0), ("masked_text", 0), ("mine", 1)]
)
def test_tasks_have_roles(task, counts):
    runs = [record(x, task, protocol="other") for x in NAMES]
    found = tables([*lra_records(), *runs])
    assert [row["downstream_task"] for table in found for row in rows(table)] == [task] * counts


def test_diagnostic_tasks_are_those_that_are_drawn():
    drawn = {name for name, task in TASKS.items() if issubclass(task, GeneratedTask)}
    assert set(DIAGNOSTIC) == drawn


def test_task_with_a_tokenizer_is_not_under_the_rules_of_long_range_arena():
    runs = [record(x, "text", protocol="other") for x in NAMES]
    task = TaskConfig(name="text", version=1, options={"vocabulary": "tokenizer:sha256:0"})
    runs = [
        record(
            x.mechanism, "text", protocol="other", config=dataclasses.replace(x.config, task=task)
        )
        for x in runs
    ]
    (table,) = tables([*lra_records(), *runs])
    assert rows(table)[0]["downstream_task"] == "text"


def test_task_without_scored_rules_has_no_correlation():
    unscored = [dataclasses.replace(run, rules=None) for run in lra_records()]
    (table,) = tables([*unscored, *lra_records(task="text"), *novels()])
    assert [row["lra_task"] for row in rows(table)] == ["text"]
    said = "No correlation with listops, whose rules were not scored by the version"
    assert table.notes[0].startswith(said)


def test_published_scores_are_those_of_the_tables():
    (table,) = tables([record("full", protocol="xiong")], Context(published=read_published()))
    signs = np.array([1, 1, 1, -1, 1, 1, 1, 1])
    columns = (XIONG * signs).T
    predictors = [*columns[:3], columns[:3].mean(axis=0)]
    expected = [stats.spearmanr(y, x).statistic for y in columns[3:] for x in predictors]
    assert [row["spearman"] for row in rows(table)] == pytest.approx(expected)
    assert {row["mechanisms"] for row in rows(table)} == {8}
    context = Context(published=read_published())
    assert tables([record("full", protocol="lra-paper")], context) == []


def test_published_correlations_are_of_one_publication():
    def scores(protocol, task, order):
        return [
            published(
                task=task,
                mechanism=name,
                value=0.1 * order.index(i) + 0.1,
                protocol=protocol,
                source=f"{protocol}, table 1",
            )
            for i, name in enumerate(NAMES)
        ]

    up, down = [*range(6)], [*range(6)][::-1]
    figures = (
        *scores("one", "listops", up),
        *scores("one", "letters", down),
        *scores("one", "papers", up),
        *scores("other", "listops", up),
        *scores("other", "letters", up),
    )
    context = Context(published=figures)
    (table,) = tables([record("full", protocol="one")], context)
    found = [(row["downstream_task"], round(row["spearman"], 9)) for row in rows(table)]
    assert found == [("letters", -1.0), ("papers", 1.0)]
    own = [record(x, "papers", score=0.1 * i, protocol="mine") for i, x in enumerate(NAMES)]
    (table,) = tables([*lra_records(), *own], context)
    assert [row["scores_of"] for row in rows(table)] == ["lra-small", "one", "one", "other"]


def test_every_budget_is_a_predictor():
    timed = lra_records(budget=Budget(kind="seconds", limit=60.0))
    (table,) = tables([*lra_records(), *timed, *novels()])
    assert [row["scores_of"] for row in rows(table)] == [
        "lra-small",
        "lra-small, equal training time (1 min)",
    ]


def test_rows_are_those_of_the_first_table():
    changed = lra_records(overrides={"training.steps": 9})
    (table,) = tables([*lra_records(), *changed, *novels()])
    assert [row["mechanisms"] for row in rows(table)] == [6]


@pytest.mark.parametrize("kind", WRITERS)
def test_section_is_in_every_format(kind):
    text = WRITERS[kind](tables([*lra_records(), *novels()]))
    assert "listops" in text
    assert "+1.00" in text or "1.0" in text or "0.99999" in text


def test_page_has_section_with_its_answer():
    text = render_page(build_leaderboards([*lra_records(), *novels()]))
    assert "Does Long Range Arena predict it?" in text
    assert text.count("<p>Significant: listops and novels.</p>") == 1
