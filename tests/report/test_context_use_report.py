"""The use of the context in reports: tables, the chart, and the pages."""

from dataclasses import replace

import altair as alt
import pytest
from report_records import build_leaderboard, context_use, lines, record

from longspan.report.charts.figures import context_figures
from longspan.report.context import Context, styles_of
from longspan.report.output.page import render_page
from longspan.report.sections import board_figures, section_tables, write_figures


def board_and_uses():
    """Two mechanisms; one has two seeds, and its state and longer contexts are measured."""
    runs = [record("local", seed=0), record("local", seed=1), record("full")]
    uses = [
        context_use(runs[0]),
        context_use(runs[1], (1.5, 1.125)),
        context_use(
            runs[2],
            (2.0, 1.0, 1.0, 0.75),
            positions=[
                type(x)(first=x.first, last=x.last, targets=9, fresh=x.fresh, kept=None)
                for x in context_use(runs[2]).positions
            ],
            parts=[],
            buckets=[],
            part_windows=0,
        ),
        context_use(runs[2], config_hash="0" * 10),
    ]
    return build_leaderboard(runs), tuple(uses)


@pytest.fixture
def tables():
    board, uses = board_and_uses()
    return section_tables([board], Context(context_uses=uses), "context")


def test_losses_by_context_are_listed_by_run(tables):
    table = tables[0]
    found = {(x["mechanism"], x["seed"]): x for x in lines(table)}
    assert set(found) == {("local", 0), ("local", 1), ("full", 0)}
    one = found["local", 1]
    assert [one[x] for x in ("32", "64", "128", "256")] == [1.5, 1.125, None, None]
    assert (one["effective"], one["blocks"], one["split"]) == (64, 20, "validation")
    (row,) = (x for x in table.rows if (x[0].value, x[1].value) == ("local", 0))
    shown = [(entry.text, entry.detail) for entry in row[2:5]]
    assert shown == [
        ("1.500 nats", "+0.500 [−0.250, +0.500] nats"),
        ("1.200 nats", "+0.200 [−0.250, +0.500] nats"),
        ("1.000 nats", "longest"),
    ]


def test_losses_by_position_are_listed_with_and_without_state(tables):
    table = tables[1]
    found = {(x["mechanism"], x["seed"], x["state"]): x for x in lines(table)}
    assert set(found) == {
        ("local", 0, "kept"),
        ("local", 0, "new"),
        ("local", 1, "kept"),
        ("local", 1, "new"),
        ("full", 0, "new"),
    }
    assert [found["local", 0, "kept"][x] for x in ("0", "1", "2_3")] == [1.5, 1.25, 1.125]
    assert [found["full", 0, "new"][x] for x in ("0", "1", "2_3")] == [2.0, 1.75, 1.5]
    (row,) = (x for x in table.rows if x[0].value == "full")
    assert (row[3].text, row[3].detail) == ("2.000 nats", "2.885 bits")


def test_attention_by_part_is_listed_by_layer_with_a_memory(tables):
    _, _, table, _ = tables
    assert [(x["mechanism"], x["seed"], x["layer"]) for x in lines(table)] == [
        ("local", 0, 1),
        ("local", 1, 1),
    ]
    assert [entry.text for entry in table.rows[0][3:]] == ["12.5", "25.0", "62.5", "7"]
    assert table.keys[3:6] == ["compressed_memory", "memory", "segment"]


def test_attention_by_bucket_is_averaged_over_layers_with_a_memory():
    run = record("local")
    layer = {"memory": [0.25, 0.25], "segment": [0.25, 0.25]}
    other = {"memory": [0.0, 0.125], "segment": [0.375, 0.5]}
    parts = [{name: sum(x) for name, x in own.items()} for own in (layer, {}, other)]
    use = context_use(run, parts=parts, buckets=[layer, {}, other])
    *_, table = section_tables([build_leaderboard([run])], Context(context_uses=(use,)), "context")
    assert table.title == "listops: attention by bucket of the keys"
    found = {x["part"]: [x["1"], x["2"]] for x in lines(table)}
    assert found == {"memory": [0.125, 0.1875], "segment": [0.3125, 0.375]}
    assert [entry.text for entry in table.rows[0][3:]] == ["12.5", "18.8", "7"]
    # A record of schema 1 has none.
    old = (replace(use, buckets=[]),)
    tables = section_tables([build_leaderboard([run])], Context(context_uses=old), "context")
    assert len(tables) == 3


def test_chart_draws_the_numbers_of_the_table(tables, tmp_path):
    board, uses = board_and_uses()
    styles = styles_of([board])
    source = (board, Context(styles=styles, context_uses=uses))
    figure, _ = context_figures(*source)
    assert figure in board_figures(*source)
    alt.LayerChart.from_dict(figure.content, validate=True)
    points = figure.content["data"]["values"]
    drawn = {(x["row"], x["place"]): x["value"] for x in points}
    expected = {
        (line["mechanism"] if line["mechanism"] == "full" else f"local, seed {line['seed']}", x):
        line[x]
        for line in lines(tables[0])
        for x in ("32", "64", "128", "256")
        if line[x] is not None
    }  # fmt: skip
    assert drawn == expected
    (x,) = {str(layer["encoding"]["x"]["sort"]) for layer in figure.content["layer"]}
    assert x == "['32', '64', '128', '256']"
    written = write_figures([board], tmp_path, "svg", Context(context_uses=uses))
    assert f"{figure.name}.svg" in {path.name for path in written}


def test_chart_of_buckets_has_the_oldest_keys_first():
    runs = [record("local"), record("full")]
    newer = {"memory": [0.25, 0.125], "segment": [0.125, 0.5]}
    older = {
        "compressed memory": [0.125, 0.25],
        **{x: [y / 2 for y in z] for x, z in newer.items()},
    }
    uses = [context_use(run, buckets=[own]) for run, own in zip(runs, (newer, older), strict=True)]
    board = build_leaderboard(runs)
    styles = styles_of([board])
    figures = context_figures(board, Context(styles=styles, context_uses=uses))
    _, figure = figures
    alt.LayerChart.from_dict(figure.content, validate=True)
    (order,) = {str(layer["encoding"]["x"]["sort"]) for layer in figure.content["layer"]}
    parts = ("compressed memory", "memory", "segment")
    assert order == str([f"{part} {number}" for part in parts for number in (1, 2)])
    points = figure.content["data"]["values"]
    drawn = {(x["row"], x["place"]): x["value"] for x in points}
    assert drawn["local", "memory 1"] == 25.0
    assert drawn["full", "segment 2"] == 25.0
    assert len(drawn) == 4 + 6


def test_reports_without_measurements_have_no_section():
    board, uses = board_and_uses()
    styles = styles_of([board])
    assert section_tables([board], Context(), "context") == []
    assert [*context_figures(board, Context(styles=styles))] == []
    assert "Use of the context" not in render_page([board], Context())
    page = render_page([board], Context(context_uses=uses))
    assert "Use of the context" in page
    assert "listops, loss by the context that is left" in page  # the caption of the chart


def test_page_of_a_run_has_its_own_measurements():
    one, other = record("local"), record("full")
    uses = tuple(context_use(x) for x in (one, other))
    page = render_page([build_leaderboard([one])], Context(context_uses=uses), one)
    assert "attention by part of the keys" in page
    assert "loss by the context that is left" in page


def test_contexts_of_all_runs_are_in_order():
    """A run with fewer and longer contexts comes first."""
    runs = [record("local", score=0.9), record("full", score=0.1)]
    few = context_use(runs[0], (1.5, 1.0))
    few = replace(few, contexts=[few.contexts[0], replace(few.contexts[1], context=300)])
    board = build_leaderboard(runs)
    styles = styles_of([board])
    source = (board, Context(styles=styles, context_uses=[few, context_use(runs[1])]))
    ((figure, *_), (table, *_)) = (
        [*context_figures(*source)],
        section_tables([board], source[1], "context"),
    )
    order = ["32", "64", "128", "300"]
    assert figure.content["layer"][0]["encoding"]["x"]["sort"] == order
    assert table.keys[2:6] == order
    assert table.rows[0][0].value == "local"
