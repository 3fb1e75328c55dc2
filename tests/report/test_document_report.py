"""Own documents in reports: runs beside TF-IDF, and the reliability of their probabilities."""

from dataclasses import replace

import altair as alt
import pytest
from report_records import BINS, build_leaderboard, document_scores, lines, record

from longspan.report.charts.figures import document_figures
from longspan.report.context import Context, styles_of
from longspan.report.output.page import render_page
from longspan.report.sections import section_tables


@pytest.fixture
def source():
    runs = [record("local", seed=0), record("local", seed=1), record("full")]
    scores = [document_scores(runs[0]), document_scores(runs[1], 0.9)]
    scores += [document_scores(runs[0], rows_sha256="2" * 64, config_hash="0" * 10)]
    scores += [document_scores(runs[2], 0.6, rows_sha256="3" * 64)]
    board = build_leaderboard(runs)
    return board, Context(documents=tuple(scores), styles=styles_of([board]))


def test_runs_stand_beside_the_baselines_of_their_documents(source):
    board, context = source
    first, second = section_tables([board], context, "documents")
    found = [(x["way"], x["seed"], x["accuracy"], x["auc"]) for x in lines(first)]
    assert found == [
        ("local", 0, 0.8, 0.75),
        ("local", 1, 0.9, 0.75),
        ("TF-IDF", None, 0.7, 0.75),
        ("shares of the classes", None, 0.5, None),
    ]
    assert [x["way"] for x in lines(second)] == ["full", "TF-IDF", "shares of the classes"]
    assert first.title.endswith(": 60 documents of test")
    assert second.title == f"{first.title}, 33333333"
    assert [x["options"] for x in lines(first)][1:3] == ["length 512", "C 1"]


def test_sets_that_differ_in_the_threshold_alone_are_all_listed(source):
    board, context = source
    first = context.documents[0]
    thresholds = [replace(first, threshold=x) for x in (0.25, 0.5, 0.75)]
    tables = section_tables([board], replace(context, documents=tuple(thresholds)), "documents")
    assert len({x.title for x in tables}) == 3
    assert tables[2].title.endswith(", 11111111, threshold 0.75")


def test_reliability_has_the_bins_of_the_records(source):
    board, context = source
    first, second = document_figures(board, context)
    chart = first.content
    alt.LayerChart.from_dict(chart)
    values = chart["data"]["values"]
    points = [(x["row"], x["confidence"], x["correct"], x["count"]) for x in values]
    runs = [(f"local, seed {seed}", *x) for seed in (0, 1) for x in BINS["local"]]
    assert points == [(name, *map(pytest.approx, x)) for name, *x in runs] + [
        ("TF-IDF", 0.65, 0.75, 60)
    ]
    colors = chart["layer"][1]["encoding"]["color"]["scale"]
    style = context.styles.by_name["local"].color
    assert dict(zip(colors["domain"], colors["range"], strict=True))["local"] == style
    assert {x["mechanism"] for x in second.content["data"]["values"]} == {"full", "TF-IDF"}


def test_numbers_have_no_reliability(source):
    board, context = source
    rows = [replace(x, calibration=[]) for x in context.documents[0].rows]
    without = replace(context, documents=(replace(context.documents[0], rows=rows),))
    assert not list(document_figures(board, without))
    assert section_tables([board], without, "documents")


def test_page_has_table_and_chart(source):
    board, context = source
    page = render_page([board], context)
    assert "Own documents, beside TF-IDF" in page
    assert "Reliability, listops: 60 documents of test" in page
    assert "Own documents" not in render_page([board], Context(styles=context.styles))
