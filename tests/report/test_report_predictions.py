"""Section that correlates Long Range Arena with downstream tasks."""

import dataclasses
import itertools
import json
import re

import altair as alt
import numpy as np
import pytest
from report_records import record, record_of_answers, record_of_statistics

from longspan.config import Budget, TaskConfig
from longspan.metrics import get_metric
from longspan.report.charts.figures import FigureSource, families_by_label
from longspan.report.charts.styles import assign_styles, save_chart
from longspan.report.leaderboard.build import build_leaderboards
from longspan.report.leaderboard.prediction import Pair, ScoreColumn, match_columns
from longspan.report.leaderboard.roles import downstream_columns, lra_columns
from longspan.report.output.page import render_page
from longspan.report.output.text import WRITERS
from longspan.report.published_figures import read_published_figures
from longspan.report.sections import Context, section_tables
from longspan.report.tables.predictions import counterpart
from longspan.report.tables.published import PublishedScore, read_published
from longspan.report.tables.published_predictions import published_predictions

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


def rows(table):
    return [
        dict(zip(table.keys, (entry.value for entry in row), strict=True)) for row in table.rows
    ]


def test_metrics_where_lower_is_better_are_turned_round():
    (table,) = tables([*lra_records(), *novels()])
    (row,) = rows(table)
    assert (row["lra_task"], row["downstream_task"], row["metric"]) == (
        *("listops", "novels", "perplexity"),
    )
    assert (row["spearman"], row["kendall"], row["mechanisms"]) == (1.0, 1.0, 6)
    # Of 720 orders one is as good, and one is the reverse.
    assert row["p"] == row["adjusted_p"] == pytest.approx(2 / 720)
    assert table.rows[0][4].emphasis is not None
    assert table.verdict == ("novels (perplexity): ranked alike by listops.",)


def test_opposite_and_unrelated_orders_are_said():
    opposite = [*lra_records(NAMES[::-1]), *novels()]
    (table,) = tables(opposite)
    assert rows(table)[0]["spearman"] == -1.0
    assert table.verdict == ("novels (perplexity): ranked in opposite order by listops.",)
    mixed = [NAMES[i] for i in (1, 0, 5, 3, 2, 4)]
    (table,) = tables([*lra_records(mixed), *novels()])
    rho = rows(table)[0]["spearman"]
    # Squared differences of ranks: 1 + 1 + 4 + 0 + 1 + 9 = 16; 1 - 6 * 16 / 210.
    assert rho == pytest.approx(1 - 6 * 16 / 210)
    assert table.verdict == (
        "novels (perplexity): no significant correlation with Long Range Arena; the strongest is "
        "+0.54 (listops, 6 mechanisms, adjusted p 0.297).",
    )


def test_p_is_corrected_for_the_rows_of_the_table():
    runs = [*lra_records(), *lra_records(task="text"), *novels()]
    (table,) = tables(runs)
    found = {row["lra_task"]: row for row in rows(table)}
    # The mean over both tasks is a predictor too: the smallest of three p is tripled.
    assert list(found) == ["listops", "text", "Mean"]
    assert found["listops"]["p"] == pytest.approx(2 / 720)
    assert found["listops"]["adjusted_p"] == pytest.approx(3 * 2 / 720)


def test_fewer_than_six_mechanisms_are_said():
    (table,) = tables([*lra_records(NAMES[:5]), *novels(NAMES[:5])])
    (row,) = rows(table)
    assert (row["spearman"], row["p"], row["mechanisms"]) == (None, None, 5)
    assert table.verdict == (
        "novels (perplexity): no correlation; at most 5 mechanisms in common.",
    )
    assert "Fewer than 6 mechanisms have scores under both: full, linear, local" in table.notes[0]
    assert tables([*lra_records(NAMES[:3]), *novels(NAMES[3:])]) == []


def test_interval_over_seeds_and_examples_is_of_the_records():
    rng = np.random.default_rng(0)
    hard, nats = rng.random(300), rng.random(300)
    runs = [record_of_answers(x, 0, hard < 0.3 + 0.01 * i) for i, x in enumerate(NAMES)]
    for i, name in enumerate(NAMES):
        both = np.stack([nats + 0.1 * (6 - i), np.ones(300)], axis=1)
        runs.append(record_of_statistics(name, 0, both, "novels", "perplexity", protocol="books"))
    (table,) = tables(runs)
    (row,) = rows(table)
    # Rows differ on few of the same examples, so resampled examples hardly change their order.
    assert row["redrawn_over"] == "examples"
    assert table.notes == ("Scores were redrawn over examples.",)
    assert row["spearman_low_over_scores"] > 0.5
    assert re.fullmatch(
        r"[+−][\d.]+…[+−][\d.]+ · [+−][\d.]+…[+−][\d.]+",
        table.rows[0][table.keys.index("spearman")].detail,
    )
    without = [*lra_records(), *novels()]
    (table,) = tables(without)
    assert rows(table)[0]["redrawn_over"] is None


def test_tasks_have_roles():
    def roles(run):
        (board,) = build_leaderboards([run])
        return len(lra_columns(board)), len(downstream_columns(board))

    assert roles(record("full", "text")) == (1, 0)
    assert roles(record("full", "path_x")) == (1, 0)
    assert roles(record("full", "needle")) == (0, 0)
    assert roles(record("full", "masked_text")) == (0, 0)
    assert roles(record("full", "mine")) == (0, 1)
    # A task of Long Range Arena with a tokenizer is not one under its rules.
    pieces = record("full", "text")
    task = TaskConfig(name="text", version=1, options={"vocabulary": "tokenizer:sha256:0"})
    pieces = record("full", "text", config=replace_task(pieces.config, task))
    assert roles(pieces) == (0, 1)


def replace_task(config, task):
    return dataclasses.replace(config, task=task)


def test_names_with_several_rows_are_left_out():
    other = record("local", score=0.9, options={"window": 3}, protocol="lra-small")
    (table,) = tables([*lra_records(), other, *novels()])
    assert rows(table)[0]["mechanisms"] == 5
    assert table.notes[-1] == "Left out, as they have several rows: local."


def test_task_without_scored_rules_has_no_correlation():
    unscored = [dataclasses.replace(run, rules=None) for run in lra_records()]
    (table,) = tables([*unscored, *lra_records(task="text"), *novels()])
    found = {row["lra_task"]: row["spearman"] for row in rows(table)}
    assert (found["listops"], found["Mean"]) == (None, None)
    assert found["text"] is not None
    said = "No correlation with listops, whose rules were not scored; run `longspan results"
    assert table.notes[0].startswith(said)
    targets = [dataclasses.replace(run, rules=None) for run in novels()]
    (table,) = tables([*lra_records(), *targets])
    assert table.verdict[0].startswith("novels (perplexity): no correlation, as its rules were not")


def test_own_and_published_correlations_are_side_by_side():
    context = Context(published=read_published(), published_figures=read_published_figures())
    own, published = tables([*lra_records(), *novels()], context)
    (row,) = rows(own)
    stats = pytest.importorskip("scipy.stats")
    listops, perplexity = XIONG[:, 0], XIONG[:, 3]
    expected = stats.spearmanr(listops, -perplexity).statistic
    assert row["published_spearman"] == pytest.approx(expected)
    assert row["published_kendall"] == pytest.approx(
        stats.kendalltau(listops, -perplexity).statistic
    )
    assert row["published_task"] == "masked language modeling"
    assert own.rows[0][own.keys.index("published_spearman")].detail.startswith("p 0.")
    assert len(published.rows) == 4 * 5
    assert "Xiong et al. 2022" in published.title


def test_published_metric_is_that_of_every_cutoff():
    metric = dataclasses.replace(get_metric("mrr"), name="mrr@10")
    column = ScoreColumn(label="papers", metric=metric, scores={})
    (found,) = published_predictions(read_published(), read_published_figures())
    predictor = found.pairs[0].predictor
    pair = Pair(predictor=predictor, target=column, names=(), correlation=None)
    assert counterpart(pair, found.pairs).target.label == "document retrieval"


def test_published_correlations_equal_those_of_the_printed_tables():
    stats = pytest.importorskip("scipy.stats")
    (found,) = published_predictions(read_published(), read_published_figures())
    means = np.round(XIONG[:, :3].mean(axis=1), 6)
    predictors = np.column_stack([XIONG[:, :3], means]).T
    targets = XIONG[:, 3:].T * np.array([[-1], [1], [1], [1], [1]])
    assert len(found.pairs) == 20
    for pair, (target, predictor) in zip(
        found.pairs, itertools.product(targets, predictors), strict=True
    ):
        assert pair.correlation.count == 8
        assert pair.correlation.rho.value == pytest.approx(
            stats.spearmanr(predictor, target).statistic
        )
    assert [pair.predictor.label for pair in found.pairs[:4]] == [
        *("listops", "text", "retrieval", "Mean of 3"),
    ]
    assert {pair.target.label for pair in found.pairs} == {
        *("masked language modeling", "triviaqa", "document retrieval", "hyperpartisan"),
    }


def test_published_correlations_are_with_their_own_protocol():
    context = Context(published=read_published(), published_figures=read_published_figures())
    (table,) = tables([record("full", protocol="xiong")], context)
    assert len(table.rows) == 20
    assert all(sentence.startswith("Published: ") for sentence in table.verdict)
    assert tables([record("full", protocol="lra-paper")], context) == []


def test_published_correlations_are_of_one_publication_and_of_the_same_task_if_possible():
    def scores(protocol, task, order):
        return [
            PublishedScore(
                task=task,
                mechanism=name,
                value=0.1 * order.index(i) + 0.1,
                metric="accuracy",
                protocol=protocol,
                source=f"{protocol}, table 1",
            )
            for i, name in enumerate(NAMES)
        ]

    up, down = [*range(6)], [*range(6)][::-1]
    published = (
        *scores("one", "listops", up),
        *scores("one", "letters", down),
        *scores("one", "papers", up),
        *scores("other", "listops", up),
        *scores("other", "letters", up),
    )
    context = Context(published=published)
    (table,) = tables([record("full", protocol="one")], context)
    assert [(row["downstream_task"], row["spearman"]) for row in rows(table)] == [
        *(("letters", -1.0), ("papers", 1.0)),
    ]
    own = [record(x, "papers", score=0.1 * i, protocol="mine") for i, x in enumerate(NAMES)]
    own_table, *_ = tables([*lra_records(), *own], context)
    assert (rows(own_table)[0]["published_task"], rows(own_table)[0]["published_spearman"]) == (
        *("papers", 1.0),
    )


def test_every_budget_is_a_predictor():
    timed = lra_records(budget=Budget(kind="seconds", limit=60.0))
    found = tables([*lra_records(), *timed, *novels()])
    assert [table.title.partition(" as")[0] for table in found] == [
        *("lra-small", "lra-small, equal training time (1 min)"),
    ]


@pytest.mark.parametrize("kind", WRITERS)
def test_section_is_in_every_format(kind):
    text = WRITERS[kind](tables([*lra_records(), *novels()]))
    assert "listops" in text
    assert "+1.00" in text or "1.0" in text


def test_page_has_section_with_its_answer_and_chart():
    text = render_page(build_leaderboards([*lra_records(), *novels()]))
    assert "Does Long Range Arena predict it?" in text
    assert text.count("<p>novels (perplexity): ranked alike by listops.</p>") == 1
    assert "novels against listops of lra-small" in text


def test_chart_shows_both_scores_of_each_mechanism(tmp_path):
    boards = build_leaderboards([*lra_records(), *lra_records(task="text"), *novels()])
    styles = assign_styles(families_by_label(boards))
    books = boards[0]
    source = FigureSource(board=books, styles=styles, boards=boards)
    (figure,) = source.predictions()
    assert figure.caption == "novels against Mean of lra-small"
    alt.LayerChart.from_dict(figure.content, validate=True)
    dots = {dot["mechanism"]: dot for dot in figure.content["data"]["values"]}
    assert {name: (dot["across"], dot["score"]) for name, dot in dots.items()} == {
        name: (pytest.approx(30 + 2 * i), 9.0 - i) for i, name in enumerate(NAMES)
    }
    assert "lower is better" in json.dumps(figure.content)
    assert save_chart(figure.content, tmp_path / "chart.svg").read_text().count("<path") > 6
    assert [*FigureSource(board=books, styles=styles).predictions()] == []


def test_columns_are_those_of_the_first_table():
    changed = lra_records(overrides={"training.steps": 9})
    boards = build_leaderboards([*lra_records(), *changed, *novels()])
    (match,) = match_columns(boards[0], boards)
    assert len(match.predictors) == 1
    assert set(match.predictors[0].scores) == set(NAMES)
