"""Legends, labels and axes of charts as a reader sees them."""

import dataclasses
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
import vl_convert
from report_records import analysis, build_leaderboard, curve, record, rollout

from longspan.report.charts.intervals import slice_series
from longspan.report.charts.rollout_pictures import draw_rollouts
from longspan.report.charts.styles import PAPER, PRINT, assign_styles, save_chart
from longspan.report.charts.tradeoff import score_against_cost
from longspan.report.context import Context, styles_of
from longspan.report.mechanisms import family_of
from longspan.report.sections import board_figures, write_figures
from longspan.results import Slice, pack_tokens

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
WINDOWS = (16, 64, 256)


def variants():
    """Return runs of `local` with three windows, and of `full`, on one task."""
    runs = [
        record("local", score=0.3 + i / 100, options={"window": window}, seconds=800 + 50 * i)
        for i, window in enumerate(WINDOWS)
    ]
    runs.append(record("full", score=0.35, options={}))
    parts = {"depth": [Slice(label=str(d), value=0.4, num_targets=9) for d in (2, 3)]}
    return [dataclasses.replace(run, slices=parts) for run in runs]


def texts(chart, width, medium=PRINT):
    """Return the visible texts of a chart at a width."""
    config = {**chart["config"], **medium.config}
    svg = vl_convert.vegalite_to_svg({**chart, "width": width, "config": config})
    tree = ElementTree.fromstring(svg)
    return [
        item.text
        for item in tree.iter("{http://www.w3.org/2000/svg}text")
        if item.text and item.get("opacity") != "0"
    ]


def domains(chart):
    """Return the rows that the legends of a chart list."""
    return [
        channel["scale"]["domain"]
        for layer in chart["layer"]
        for name, channel in layer["encoding"].items()
        if name != "size" and isinstance(channel, dict) and channel.get("legend")
    ]


def charts_of(board, medium=PRINT, analyses=()):
    context = Context(styles=styles_of([board], medium), analyses=analyses)
    return {figure.name: figure.content for figure in board_figures(board, context)}


NAMES = [f"local (window={window})" for window in WINDOWS]


def test_variants_of_a_mechanism_differ_in_every_chart():
    runs = variants()
    board = build_leaderboard(runs)
    assert {row.label for row in board.rows} == {*NAMES, "full"}
    charts = charts_of(board, analyses=[analysis(run) for run in runs])
    for name, chart in charts.items():
        if "required-span" in name:
            continue
        drawn = json.dumps(chart)
        assert all(label in drawn for label in NAMES), name
    curves = charts["lra-small-curves-listops-training-loss"]
    for channel in ("dash", "shape"):
        styles = styles_of([board])
        values = [json.dumps(getattr(styles.by_name[label], channel)) for label in NAMES]
        assert len(set(values)) == len(WINDOWS)
    assert [name for name in domains(curves)[0] if name in NAMES] == NAMES
    assert {label for label in texts(curves, 600) if "local" in label} == set(NAMES)


def test_legends_list_what_is_drawn_and_nothing_else():
    runs = [*variants(), record("linear", "text"), record("performer", "text")]
    board = build_leaderboard(runs)
    for name, chart in charts_of(board).items():
        rows = {value["mechanism"] for value in chart["data"]["values"]}
        families = {value.get("family") for value in chart["data"]["values"]}
        for domain in domains(chart):
            assert set(domain) in (rows, families), name


def test_every_row_of_a_large_family_has_a_look_of_its_own():
    labels = ["bigbird", "blockwise", "dilated", "disjoint", "longformer", "sparse_transformer"]
    labels += ["strided_local", *NAMES]
    styles = assign_styles({label: family_of(label.partition(" ")[0]) for label in labels})
    looks = [(style.dash, style.shape) for style in styles.by_name.values()]
    assert all(len({look[i] for look in looks}) == len(labels) for i in (0, 1))


@pytest.mark.parametrize("steps", [1000, 20_000])
def test_axes_have_plain_numbers(steps):
    runs = [
        record(
            name,
            seconds=seconds,
            peak_memory=memory,
            score=score,
            curve=curve(score, points=5, steps=steps),
            steps=steps,
        )
        for name, seconds, memory, score in [
            ("full", 90_000, 2**34, 0.4),
            ("linear", 9, 2**21, 0.3),
            ("local", 800, 2**28, 0.35),
        ]
    ]
    for name, chart in charts_of(build_leaderboard(runs)).items():
        shown = texts(chart, 480)
        numbers = [text for text in shown if re.fullmatch(r"[\d.,eE+\-−kM]+", text)]
        assert numbers, name
        assert not [text for text in numbers if re.search(r"[eE]", text)], name
        if "curves" in name:
            assert {"20k"} <= {*numbers} if steps > 1000 else {"400", "1k"} <= {*numbers}
            assert not [text for text in numbers if re.fullmatch(r"0\.\d+k", text)]


@pytest.mark.parametrize("width", [270, 480])
def test_class_names_are_complete_at_every_width(width):
    slices = {"class": [Slice(label=x, value=0.3, num_targets=9) for x in CLASSES]}
    board = build_leaderboard([record(x, "image", slices=slices) for x in ("full", "local")])
    chart = slice_series(board, 0, "class", styles_of([board]))
    assert [text for text in texts(chart, width) if text in CLASSES] == CLASSES
    # Classes have no order, so no line joins them.
    assert [layer["mark"]["type"] for layer in chart["layer"]] == ["point"]


def crowd():
    names = (
        *("full", "bigbird", "local", "longformer"),
        *("linear", "performer", "nystrom", "linformer"),
    )
    return build_leaderboard(
        record(name, score=0.3 + 0.001 * i, seconds=500 + 2 * i, peak_memory=2**28 + i * 2**20)
        for i, name in enumerate(names)
    )


@pytest.mark.parametrize("medium", [PAPER, PRINT])
def test_rows_of_the_trade_off_are_in_the_legend(medium):
    board = crowd()
    styles = styles_of([board], medium)
    chart = score_against_cost(board, 0, "cpu, float32", styles)
    assert set(texts(chart, medium.width)) >= {row.label for row in board.rows}


def test_figures_for_a_paper_have_its_width_and_readable_letters(tmp_path):
    board = build_leaderboard(variants())
    files = write_figures([board], tmp_path, "svg", medium=PAPER)
    for path in files:
        tree = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        # 3.3 inches at 96 pixels; 10 pixels are 7.5 points.
        assert float(tree.get("width")) == pytest.approx(3.3 * 96, rel=0.05), path.name
        sizes = [x.get("font-size") for x in tree.iter("{http://www.w3.org/2000/svg}text")]
        assert min(float(size.removesuffix("px")) for size in sizes if size) >= 10
    (curves,) = (path for path in files if "training-loss" in path.name)
    assert all(name in curves.read_text(encoding="utf-8") for name in NAMES)


def test_figures_are_written_as_pdf(tmp_path):
    board = build_leaderboard(variants())
    files = write_figures([board], tmp_path, "pdf", medium=PAPER)
    assert {path.suffix for path in files} == {".pdf"}
    assert all(path.read_bytes().startswith(b"%PDF") for path in files)
    chart = charts_of(board)["lra-small-scores-listops"]
    assert save_chart(chart, tmp_path / "scores.pdf").read_bytes().startswith(b"%PDF")


def test_rollouts_show_their_tokens_and_fit_a_phone():
    words = [f"token{i}" for i in range(60)]
    one = rollout([1 / 60] * 60, **pack_tokens(words))
    picture = draw_rollouts([one, one])
    # A screen of 390 pixels less the margins of the page.
    assert picture.width <= 358
    tree = ElementTree.fromstring(picture.file_svg)
    shown = [item for item in tree.iter() if item.tag.endswith("text")]
    written = " ".join(item.text for item in shown)
    assert set(words) <= set(re.split(r"[\s\u00a0]+", written))
    sizes = [float(item.get("font-size", 12)) for item in shown]
    assert min(sizes) >= 11
    places = [(float(item.get("x")), float(item.get("y"))) for item in shown]
    assert all(one != other for one, other in itertools.combinations(places, 2))
    assert all(0 <= x < picture.width and 0 < y <= picture.height for x, y in places)
