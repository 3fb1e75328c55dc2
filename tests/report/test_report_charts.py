import dataclasses
import io
import itertools
import xml.etree.ElementTree as ElementTree

import altair as alt
import pytest
from jsonschema import ValidationError
from longspan.report.dots import groupings, slices
from longspan.report.figures import Drawing, write_figures
from longspan.report.layout import Box, Span, places, scores, speeds
from longspan.report.page import SWATCHES
from longspan.report.pictures import heat, overlay
from longspan.report.styles import COLOURS, SHAPES, styles
from PIL import Image
from report_records import analysis, curve, failure, record

from longspan.errors import OptionError
from longspan.report import dots
from longspan.report.charts import POINTS, learning_curves, save, score_against_cost
from longspan.report.tables import leaderboard
from longspan.results import Slice

NAMES = ["bigbird", "linear", "performer"]
LOOK = styles(NAMES)
# Machado, Oliveira and Fernandes 2009: what is seen without one kind of cone.
BLIND = {
    "protan": [(0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.0520)],
    "deutan": [(0.3673, 0.8606, -0.2280), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689)],
    "tritan": [(1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039)],
}


def small():
    return leaderboard(
        record(name, task, 0, 0.3 + 0.02 * i, tokens_per_second=1e4 * (i + 1))
        for i, name in enumerate(NAMES)
        for task in ("listops", "text")
    )


def values(chart):
    for part in (chart, *chart["layer"]):
        yield from part.get("data", {}).get("values", ())


def linear_light(colour):
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [((part + 0.055) / 1.055) ** 2.4 if part > 0.04045 else part / 12.92 for part in parts]


def seen(colour, cones):
    """CIE Lab of a colour as a reader without one kind of cone sees it."""
    light = linear_light(colour)
    r, g, b = (sum(x * y for x, y in zip(row, light, strict=True)) for row in cones)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.0888,
    )
    x, y, z = (max(v, 0) ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("kind", BLIND)
def test_colours_stay_distinct_to_colour_blind_readers(kind):
    for one, two in itertools.combinations(COLOURS, 2):
        pairs = zip(seen(one, BLIND[kind]), seen(two, BLIND[kind]), strict=True)
        assert sum((a - b) ** 2 for a, b in pairs) ** 0.5 > 12, (one, two)


@pytest.mark.parametrize("background", ["#ffffff", "#14171a"])
def test_colours_stand_out_from_both_backgrounds(background):
    def luminance(colour):
        weights = (0.2126, 0.7152, 0.0722)
        return sum(w * x for w, x in zip(weights, linear_light(colour), strict=True))

    for colour in COLOURS:
        dim, bright = sorted((luminance(colour), luminance(background)))
        assert (bright + 0.05) / (dim + 0.05) > 2, colour


def test_no_two_of_28_mechanisms_are_drawn_alike():
    look = styles(f"m{i:02}" for i in range(28))
    assert len(set(zip(look.colours, look.dashes, strict=True))) == 28
    assert len(set(zip(look.colours, look.shapes, strict=True))) == 28
    assert set(SWATCHES) == set(SHAPES)


def test_every_chart_is_a_sound_specification():
    pair = [record(name, task, s) for name in NAMES for task in ("listops", "text") for s in (0, 1)]
    pair = [dataclasses.replace(run, slices=sliced({"2": 0.4, "3": 0.5})) for run in pair]
    of = [analysis(run) for run in pair]
    drawing = Drawing(table=leaderboard(pair), look=LOOK, legend=True, analyses=of)
    charts = [figure.drawn for figure in drawing.all()]
    assert len(charts) == 2 + 3 + 4 + 2 + 4
    for chart in charts:
        alt.LayerChart.from_dict(chart, validate=True)
        with pytest.raises(ValidationError):
            alt.LayerChart.from_dict({**chart, "layer": [{"mark": "lines"}]}, validate=True)


def test_a_mechanism_has_one_colour_in_every_chart():
    table = small()
    charts = [
        learning_curves(table, 0, "validation accuracy", LOOK),
        learning_curves(table, 1, "training loss", LOOK),
        score_against_cost(table, None, "cpu, float32", LOOK),
    ]
    for chart in charts:
        scales = [
            layer["encoding"]["color"]["scale"]
            for layer in chart["layer"]
            if "scale" in layer.get("encoding", {}).get("color", {})
        ]
        assert scales
        assert all(scale == {"domain": NAMES, "range": list(COLOURS[:3])} for scale in scales)


def test_curves_show_measured_points_only_and_keep_the_last():
    runs = [record(curve=curve(0.4, points=1000, steps=5000))]
    (drawn,) = (
        row
        for row in values(learning_curves(leaderboard(runs), 0, "training loss", LOOK))
        if "step" in row
    )
    assert len(drawn["step"]) <= POINTS + 1
    assert drawn["step"][0] == 5
    assert drawn["step"][-1] == 5000
    assert drawn["value"][-1] == pytest.approx(1.7, abs=1e-4)


def test_accuracy_is_drawn_in_percent():
    chart = learning_curves(leaderboard([record()]), 0, "validation accuracy", LOOK)
    (drawn,) = (row for row in values(chart) if "step" in row)
    assert drawn["value"][-1] == pytest.approx(
        100 * record().curve[-1].validation_accuracy, abs=0.01
    )
    assert 17.45 in [round(row["value"], 9) for row in values(chart) if "step" not in row]


def test_a_line_is_the_mean_of_its_seeds_and_its_band_their_range():
    # The second seed was measured at every other step only.
    few = curve(0.2, points=5)
    table = leaderboard([record(seed=0, curve=curve(0.4)), record(seed=1, curve=few)])
    chart = learning_curves(table, 0, "validation accuracy", LOOK)
    (drawn,) = (row for row in values(chart) if "step" in row)
    assert drawn["step"] == [0, 100, 200, 300, 400, 500]
    assert drawn["seeds"] == "2 seeds"
    ends = [100 * run[-1].validation_accuracy for run in (few, curve(0.4))]
    assert drawn["low"][-1] == pytest.approx(ends[0], abs=0.01)
    assert drawn["high"][-1] == pytest.approx(ends[1], abs=0.01)
    assert drawn["value"][-1] == pytest.approx(sum(ends) / 2, abs=0.01)


def test_seeds_without_a_common_step_have_a_line_each():
    pair = [record(seed=0, curve=curve(0.4)[1:]), record(seed=1, curve=curve(0.4, 7, 490)[1:])]
    chart = learning_curves(leaderboard(pair), 0, "training loss", LOOK)
    assert [row["seeds"] for row in values(chart) if "step" in row] == ["seed 0", "seed 1"]


def sliced(accuracies):
    return {"depth": [Slice(label=k, accuracy=v, examples=9) for k, v in accuracies.items()]}


def test_slices_are_means_over_the_seeds_that_all_have_them():
    runs = [
        record(seed=0, slices=sliced({"10": 0.4, "2": 0.5})),
        record(seed=1, slices=sliced({"10": 0.2, "3": 0.9})),
    ]
    table = leaderboard(runs)
    assert groupings(table, 0) == ["depth"]
    drawn = [row for row in values(slices(table, 0, "depth", LOOK)) if "place" in row]
    assert [(row["place"], row["value"]) for row in drawn] == [("10", pytest.approx(30.0))]
    assert slices(table, 0, "length", LOOK) is None


def test_scores_are_ranked_with_their_intervals():
    table = small()
    chart = dots.scores(table, 0, LOOK)
    found = {row["row"]: row for row in values(chart) if "row" in row}
    for row in table.rows:
        interval = row.cells[0].interval
        drawn = found[row.label]
        assert (drawn["low"], drawn["high"]) == (100 * interval.low, 100 * interval.high)
    orders = [layer["encoding"]["y"]["sort"] for layer in chart["layer"][-2:]]
    assert orders == [NAMES[::-1]] * 2
    assert dots.scores(leaderboard([record()]), 0, LOOK) is None


def pixels(data):
    with Image.open(io.BytesIO(data)) as image:
        return [[image.getpixel((x, y)) for x in range(image.width)] for y in range(image.height)]


def test_a_heat_map_is_pale_where_low_and_dark_where_high():
    picture = heat([[0.0, 0.5], [0.75, 1.0], [0.25, 0.0]], "Cosine", "of something")
    found = pixels(picture.png())
    assert found == [list(row) for row in picture.cells]
    order = sorted((value, sum(found[y][x])) for y, x, value in [(0, 0, 0), (0, 1, 0.5), (1, 1, 1)])
    assert [light for _, light in order] == sorted(
        (sum(c) for c in (found[0][0], found[0][1], found[1][1])), reverse=True
    )
    assert list(picture.steps) == [0, 128, 191, 255, 64, 0]
    assert len(pixels(picture.png(times=4))) == 12
    assert pixels(picture.png(times=4))[11][7] == found[2][1]


def test_an_overlay_keeps_the_image_where_nothing_is_looked_at():
    picture = overlay([10, 20, 30, 40], [0.0, 0.0, 0.2, 0.0], 2, "Share", "of something")
    found = pixels(picture.png())
    assert found[0] == [(10, 10, 10), (20, 20, 20)]
    assert found[1][1] == (40, 40, 40)
    assert found[1][0][0] > 150 > found[1][0][2]


def test_every_figure_is_written_for_print(tmp_path):
    runs = [record(name, slices=sliced({"2": 0.4})) for name in NAMES]
    files = write_figures([leaderboard(runs)], tmp_path / "figures", "both")
    stems = ["scores", "cost", "curves", "curves", "slices"]
    assert [path.name.split("-")[2] for path in files[::2]] == stems
    assert {path.suffix for path in files} == {".svg", ".png"}
    assert sorted(files) == sorted((tmp_path / "figures").iterdir())
    curves = next(
        path for path in files if path.name == "lra-small-curves-listops-training-loss.svg"
    )
    assert all(f">{name}<" in curves.read_text(encoding="utf-8") for name in NAMES)
    for path in files[1::2]:
        assert pixels(path.read_bytes())[0][0][:3] == (255, 255, 255)
    with pytest.raises(OptionError, match="svg, png or both, got 'gif'"):
        write_figures([], tmp_path, "gif")


def test_figures_show_the_hole_that_a_failure_leaves(tmp_path):
    runs = [record(name, seed=seed) for name in NAMES for seed in (0, 1)]
    table = leaderboard(runs, [failure("linear", seed=2)])
    write_figures([table], tmp_path, "svg")
    drawn = (tmp_path / "lra-small-scores-listops.svg").read_text(encoding="utf-8")
    assert [f">{name}<" in drawn for name in NAMES] == [True, False, True]


FIVE = ("listops", "text", "retrieval", "image", "pathfinder")


def test_the_chart_of_the_mean_is_of_its_own_tasks():
    """Path-X is there for one row, with another majority and another speed."""
    runs = [record(x, y, accuracy=0.3 * i) for i, x in enumerate(NAMES, 1) for y in FIVE]
    runs.append(record(NAMES[0], "path_x", accuracy=0.9, tokens_per_second=1.0, chance=0.5))
    table = leaderboard(runs)
    drawing = Drawing(table=table, look=LOOK, legend=False)
    first = drawing.costs()[0]
    assert first.caption == "Mean of 5, cpu, float32"
    dots = [row for row in values(first.drawn) if "mechanism" in row]
    assert {dot["mechanism"] for dot in dots} == set(NAMES)
    assert {dot["speed"] for dot in dots} == {52_345.6789}
    assert {dot["seeds"] for dot in dots} == {"5 tasks"}
    majorities = [column.majority for column in table.columns if column.task in FIVE]
    (floor,) = {row["value"] for row in values(first.drawn) if "value" in row}
    assert floor == pytest.approx(100 * sum(majorities) / 5)


def test_runs_without_a_curve_give_no_chart():
    assert learning_curves(leaderboard([record(curve=[])]), 0, "training loss", LOOK) is None


def test_bubbles_hold_what_the_table_holds():
    table = small()
    dots = {
        row["mechanism"]: row
        for row in values(score_against_cost(table, None, "cpu, float32", LOOK))
        if "mechanism" in row
    }
    assert dots.keys() == set(NAMES)
    for row in table.rows:
        dot = dots[row.mechanism]
        assert dot["accuracy"] == pytest.approx(100 * row.mean)
        assert dot["speed"] == row.cost.tokens_per_second
        assert dot["memory"] == row.cost.peak_memory / 2**20


def test_bubbles_of_another_device_are_left_out():
    runs = [record("bigbird"), record("linear", device="NVIDIA H200")]
    chart = score_against_cost(leaderboard(runs), 0, "NVIDIA H200, float32", LOOK)
    assert [row["mechanism"] for row in values(chart) if "mechanism" in row] == ["linear"]
    assert score_against_cost(leaderboard(runs), 0, "TPU, float32", LOOK) is None


def test_rows_with_a_hole_have_no_bubble_of_the_mean():
    runs = [record("bigbird", "listops"), record("linear", "listops"), record("linear", "text")]
    chart = score_against_cost(leaderboard(runs), None, "cpu, float32", LOOK)
    assert [row["mechanism"] for row in values(chart) if "mechanism" in row] == ["linear"]


def test_bubble_of_unknown_memory_is_drawn_as_the_smallest():
    runs = [
        record("bigbird"),
        record("linear", peak_memory=None),
        record("performer", peak_memory=2**30),
    ]
    chart = score_against_cost(leaderboard(runs), 0, "cpu, float32", LOOK)
    areas = {row["mechanism"]: row["area"] for row in values(chart) if "mechanism" in row}
    assert areas == {"bigbird": 1536, "linear": 1024, "performer": 1024}


def test_names_avoid_points_and_each_other():
    boxes = [Box(200, 100, 8, 9), Box(230, 100, 8, 9), Box(200, 125, 8, 9)]
    found = places(boxes, 480)
    assert found[0].align == "right"
    assert found[1].align == "left"
    assert all(abs(box.x + place.dx) < 480 for box, place in zip(boxes, found, strict=True))


def test_names_at_the_edge_turn_inwards():
    (right,) = places([Box(470, 100, 8, 9)], 480)
    (left,) = places([Box(10, 100, 8, 9)], 480)
    assert (right.align, left.align) == ("right", "left")


def test_axes_cover_every_value():
    assert speeds([1e3, 1e5]).log
    assert not speeds([1e3, 2e3]).log
    for span, inside in [
        (speeds([1e3, 1e5]), (1e3, 1e5)),
        (speeds([7.0]), (7.0,)),
        (scores([30.0], [40.0], 25.0), (25.0, 40.0)),
        (scores([30.0], [30.0], None), (30.0,)),
    ]:
        assert all(0 < span.pixel(value, 100) < 100 for value in inside)
    # A floor far below would squeeze what is compared.
    assert scores([39.0], [40.0], 10.0).low > 30
    assert Span(0, 10).pixel(2.5, 100) == 25


def test_charts_are_saved_as_pictures(tmp_path):
    chart = score_against_cost(small(), 0, "cpu, float32", LOOK, legend=False)
    text = save(chart, tmp_path / "cost.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert all(f">{name}<" in text for name in NAMES)
    assert save(chart, tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cost.png", "cost.svg"]


def test_saving_as_something_else_is_refused(tmp_path):
    chart = score_against_cost(small(), 0, "cpu, float32", LOOK)
    with pytest.raises(OptionError, match=r"as .svg or .png, got 'cost.gif'"):
        save(chart, tmp_path / "cost.gif")


def test_curves_are_drawn_from_the_data_they_carry(tmp_path):
    runs = [record(curve=curve(0.4, points=5)), record("linear", curve=curve(0.2, points=5))]
    chart = learning_curves(leaderboard(runs), 0, "validation accuracy", LOOK, legend=False)
    picture = ElementTree.fromstring(save(chart, tmp_path / "c.svg").read_text(encoding="utf-8"))
    lines = [
        path.get("d")
        for path in picture.iter("{http://www.w3.org/2000/svg}path")
        if path.get("stroke") in COLOURS
    ]
    assert len([line for line in lines if line.count("L") == 5]) == 2


def test_diverged_points_are_left_out():
    broken = dataclasses.replace(curve(0.3)[5], train_loss=float("inf"))
    table = leaderboard([record(curve=[*curve(0.3)[:5], broken])])
    chart = learning_curves(table, 0, "training loss", LOOK)
    (drawn,) = (row for row in values(chart) if "step" in row)
    assert len(drawn["step"]) == 4
