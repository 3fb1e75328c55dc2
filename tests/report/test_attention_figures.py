"""Figures of analyses: required spans by task, similarity of every position, rollouts."""

import base64
import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import altair as alt
import numpy as np
import pytest
from PIL import Image
from report_records import analysis, build_leaderboard, record, rollout

from longspan.report import sections
from longspan.report.charts.figures import similarity_maps, span_figures
from longspan.report.charts.pictures import Picture, blue_shades, draw_matrix
from longspan.report.charts.rollout_pictures import draw_rollouts, lay_out
from longspan.report.charts.similarity_maps import STEPS, draw_similarity, draw_similarity_grid
from longspan.report.charts.styles import assign_styles
from longspan.report.context import Context, styles_of
from longspan.report.output.page import render_page
from longspan.report.sections import write_figures
from longspan.report.tables.attention_span import (
    attention_span,
    published_span,
    required_spans,
    spans_of,
)
from longspan.results import BASELINE, Similarity, pack_levels, pack_tokens, quantize

TEXT = "{http://www.w3.org/2000/svg}text"
IMAGE = "{http://www.w3.org/2000/svg}image"


def similarity(rows, columns, dimensions=64, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(rows * columns, dimensions))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Similarity(
        count=rows * columns,
        grid=[rows, columns],
        dimensions=dimensions,
        vectors=quantize(vectors, 8),
    )


def elements(picture, tag):
    return list(ElementTree.fromstring(picture.svg).iter(tag))


def labels(picture):
    return [element.text for element in elements(picture, TEXT)]


def pixels(element):
    data = base64.b64decode(element.get("href").partition("base64,")[2])
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGBA")).astype(int)


def board_and_analyses(names=("full", "linear"), tasks=("image", "text"), **fields):
    runs = [record(name, task, length=1024, **fields) for name in names for task in tasks]
    return build_leaderboard(runs), [analysis(run) for run in runs]


def test_every_position_has_a_tile_with_its_similarities_at_their_places():
    found = similarity(32, 32)
    picture = draw_similarity_grid(found, "position embedding")
    grid = pixels(elements(picture, IMAGE)[-1])
    assert grid.shape[:2] == (32 * 33, 32 * 33)
    cosines, shades = found.cosines(), np.rint(blue_shades(STEPS))
    low, high = np.quantile(cosines[~np.eye(1024, dtype=bool)], [0.005, 0.995])
    for row, column in ((0, 0), (5, 30), (31, 31)):
        tile = grid[33 * row : 33 * row + 32, 33 * column : 33 * column + 32, :3]
        own = cosines[32 * row + column].reshape(32, 32)
        steps = np.rint(((own - low) / (high - low)).clip(0, 1) * (STEPS - 1)).astype(int)
        assert (tile == shades[steps]).all()
        # The most similar position of a tile is its own.
        assert np.unravel_index(own.argmax(), own.shape) == (row, column)
    assert (grid[32::33] == 255).all()
    assert (grid[:, 32::33] == 255).all()


def test_grid_names_its_axes_and_the_ends_of_its_scale():
    found = similarity(32, 32)
    picture = draw_similarity_grid(found, "position embedding")
    others = found.cosines()[~np.eye(1024, dtype=bool)]
    low, high = np.quantile(others, [0.005, 0.995])
    shown = labels(picture)
    assert f"≤ −{-low:.2f}" in shown
    assert f"≥ {high:.2f}" in shown
    assert {"Row of the position", "Column of the position"} <= set(shown)
    assert [shown.count(str(n)) for n in (1, 16, 32, 33)] == [2, 2, 2, 0]
    # A page with a million random cells stays small.
    assert len(picture.svg) < 1_000_000


def test_tiles_of_few_positions_are_enlarged_to_the_same_picture():
    small = draw_similarity_grid(similarity(8, 8), "position embedding")
    large = draw_similarity_grid(similarity(32, 32), "position embedding")
    assert small.width == pytest.approx(large.width, rel=0.15)
    drawn = elements(small, IMAGE)[-1]
    assert float(drawn.get("width")) / pixels(drawn).shape[1] >= 10


def test_small_map_averages_over_tiles():
    found = similarity(16, 24, dimensions=4)
    cosines = found.cosines().reshape(8, 2, 8, 3, 8, 2, 8, 3).mean((1, 3, 5, 7))
    expected = draw_matrix(cosines.swapaxes(1, 2).reshape(64, 64), "Cosine", "")
    # A level of a color, since a mean on the border of two levels is rounded either way.
    colors = draw_similarity(found, "position").colors.astype(int)
    np.testing.assert_allclose(colors, expected.colors.astype(int), atol=1)


def test_only_one_model_of_a_task_has_a_fine_map():
    board, analyses = board_and_analyses(names=("linear", "full", "local"), tasks=("image",))
    analyses = [replace(one, positions=similarity(32, 32)) for one in analyses]
    styles = styles_of([board])
    source = (board, Context(styles=styles, analyses=analyses))
    fine = {
        x.caption.split()[0] for x in similarity_maps(*source) if isinstance(x.content, Picture)
    }
    assert fine == {BASELINE}


def test_image_is_drawn_plain_and_under_its_shares():
    levels, shares = [[10, 20], [30, 40]], [0.0, 0.0, 0.2, 0.0]
    one = rollout(shares, side=2, levels=pack_levels(levels))
    picture = draw_rollouts([one])
    plain, overlay, _ = map(pixels, elements(picture, IMAGE))
    assert plain[..., 0].tolist() == levels
    assert overlay[0, :, :3].tolist() == [[10] * 3, [20] * 3]
    red, _, blue, _ = overlay[1, 0]
    assert red > 150 > blue
    assert labels(picture)[:4] == [
        "Example 3",
        "label: cat",
        "predicted: <dog>",
        "0–20 %, mean 5.0 %",
    ]


def test_examples_stand_side_by_side_in_lines():
    levels = pack_levels(range(16))
    many = [rollout(range(1, 17), row=row, side=4, levels=levels) for row in range(8)]
    picture = draw_rollouts(many)
    names = {x.text: x for x in elements(picture, TEXT) if x.text.startswith("Example")}
    assert len(names) == 8
    tops = [float(names[f"Example {row}"].get("y")) for row in range(8)]
    assert tops[:6] == tops[:1] * 6
    assert tops[6] == tops[7] > tops[0]
    lefts = [float(names[f"Example {row}"].get("x")) for row in range(6)]
    assert lefts == sorted(set(lefts))


def test_text_stands_on_its_shares():
    tokens = ["[MAX", "3", "[MIN", "0", "7", "]", "]"]
    shares = [0.5, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0]
    pair = [rollout(shares, part=part, **pack_tokens(tokens)) for part in (1, 2)]
    picture = draw_rollouts(pair)
    assert "[MAX\xa03\xa0[MIN\xa00\xa07\xa0]\xa0]" in labels(picture)
    assert "Example 3, second text" in labels(picture)
    opacity = pixels(elements(picture, IMAGE)[0])[0, :, 3]
    assert (opacity[:4] == opacity.max()).all()
    assert opacity[4] == opacity[5] == 0
    assert 0 < opacity[7] == opacity[10] < opacity[0]
    assert opacity[11:].sum() == 0


def test_long_text_says_what_is_left_out():
    shares = np.r_[np.full(1536, 0.0002), np.full(464, 0.0006)]
    picture = draw_rollouts([rollout(shares, **pack_tokens(["a"] * 2000))])
    assert "436 more tokens, not shown, hold 26 %" in labels(picture)
    assert len(picture.svg) < 20_000


def test_layout_keeps_tokens_whole_and_characters_of_one_width():
    lines, places = lay_out(["[MAX", "12", "[SM"], " ", 7, 10)
    assert lines == ["[MAX\xa012", "[SM"]
    assert places == [(0, 0, 4), (0, 5, 2), (1, 0, 3)]
    lines, _ = lay_out(list("a\n\0é漢�b"), "", 4, 10)
    assert lines == ["a↵·é", "··b"]
    assert lay_out(list("abcdef"), "", 2, 2)[1] == [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)]


def test_outliers_do_not_hide_the_other_shares():
    shares = np.r_[1.0, np.linspace(0, 0.01, 999)]
    one = rollout(shares, **pack_tokens(["a"] * 1000))
    opacity = pixels(elements(draw_rollouts([one]), IMAGE)[0])[..., 3]
    assert len(np.unique(opacity)) > 50


def test_text_of_labels_is_escaped_on_the_page():
    board, (one, *_) = board_and_analyses(tasks=("image",))
    one = replace(one, rollouts=[rollout([0.1], text="<")])
    page = render_page([board], Context(analyses=(one,)))
    assert "predicted: &lt;dog&gt;" in page
    assert "<dog>" not in page


def test_pictures_are_written_as_svg_and_png(tmp_path, monkeypatch):
    board, (one, *_) = board_and_analyses(tasks=("image",))
    picture = [rollout(range(4), side=2, levels=pack_levels(range(4)))]
    one = replace(one, rollouts=picture, positions=similarity(8, 8))
    pictures = [x for x in sections.SECTIONS if x.name in ("embeddings", "rollouts")]
    monkeypatch.setattr(sections, "SECTIONS", pictures)
    written = write_figures([board], tmp_path, "both", Context(analyses=[one]))
    for kind in ("rollout", "position"):
        svg, png = (path for path in written if kind in path.name)
        root = ElementTree.parse(svg).getroot()
        assert root.get("color")
        with Image.open(png) as image:
            assert image.width == 2 * int(root.get("width"))
            assert image.getpixel((0, 0)) == (255, 255, 255)


def _mean(line):
    (spans,) = spans_of(line)
    return spans.mean.mean


def test_required_span_has_a_bar_for_each_task_and_published_ones_where_lengths_compare():
    board, analyses = board_and_analyses(tasks=("image", "listops"))
    assert [
        (x.task.label, _mean(x), published_span(x)) for x in required_spans(board, analyses)
    ] == [("image", 12.5, 250), ("listops", 12.5, None)]
    styles = assign_styles({"full": "dense", "linear": "kernel"})
    source = (board, Context(styles=styles, analyses=analyses))
    (chart,) = (x.content for x in span_figures(*source) if "required" in x.name)
    alt.LayerChart.from_dict(chart, validate=True)
    bars = [(x["task"], x["kind"].split()[0], x["value"]) for x in chart["data"]["values"]]
    assert bars == [
        ("image", "measured", 12.5),
        ("image", "published", 250.0),
        ("listops", "measured", 12.5),
    ]
    ours = next(x for x in chart["data"]["values"] if x["kind"] == "measured")
    assert (ours["low"], ours["high"]) == (11.5, 13.5)


def test_required_span_is_that_of_full_attention_alone():
    board, analyses = board_and_analyses(names=("linear",))
    assert required_spans(board, analyses) == []
    assert not [x for x in attention_span(board, analyses) if "required" in x.name]


def test_required_span_prefers_rows_that_keep_to_the_protocol():
    own = record("full", "image", length=1024)
    other = record("full", "image", length=1024, overrides={"training.steps": 3}, seed=0)
    other = replace(other, config_hash="ffffffffff")
    board = build_leaderboard([other, own])
    analyses = [analysis(other, (1.0,)), analysis(own, (5.0,))]
    assert [_mean(one) for one in required_spans(board, analyses)] == [5.0]


def test_refused_models_are_named_below_the_table():
    board, (full, linear) = board_and_analyses(tasks=("image",))
    linear = replace(linear, spans=None, refusal="linear has no attention weights")
    _, table = attention_span(board, [full, linear])
    assert table.notes == ("No span: linear has no attention weights.",)
    assert len(table.rows) == 1
    styles = assign_styles({"full": "dense", "linear": "kernel"})
    source = (board, Context(styles=styles, analyses=[full, linear]))
    assert not re.search("linear", str([x.content for x in span_figures(*source)]))
