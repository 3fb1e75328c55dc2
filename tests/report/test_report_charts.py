"""Chart specifications, chart files and heatmaps."""

import dataclasses
import io
import itertools
import json
import xml.etree.ElementTree as ElementTree

import altair as alt
import numpy as np
import pytest
from jsonschema import ValidationError
from PIL import Image
from report_records import (
    analysis,
    build_leaderboard,
    curve,
    failure,
    record,
    record_of_answers,
    with_second_seed,
)

from longspan.config.stages import StageConfig
from longspan.errors import OptionError
from longspan.report.charts.curves import POINTS, learning_curves
from longspan.report.charts.figures import cost_figures
from longspan.report.charts.intervals import score_intervals, slice_series
from longspan.report.charts.pictures import draw_matrix
from longspan.report.charts.styles import COLORS, DASHES, SHAPES, assign_styles, save_chart
from longspan.report.charts.tradeoff import PANELS, score_against_cost
from longspan.report.context import Context
from longspan.report.mechanisms import families, family_of, read_traits
from longspan.report.sections import board_figures, write_figures
from longspan.report.tables.slices import properties
from longspan.results import Slice

NAMES = ["bigbird", "linear", "performer"]
STYLES = assign_styles({name: family_of(name) for name in NAMES})
# Machado, Oliveira and Fernandes 2009: perception without one kind of cone.
COLOR_BLINDNESS = {
    "protan": [(0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.0520)],
    "deutan": [(0.3673, 0.8606, -0.2280), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689)],
    "tritan": [(1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039)],
}


def small_leaderboard():
    return build_leaderboard(
        record(name, task, 0, 0.3 + 0.02 * i, tokens_per_second=1e4 * (i + 1))
        for i, name in enumerate(NAMES)
        for task in ("listops", "text")
    )


def values(chart):
    for part in (chart, *chart["layer"]):
        yield from part.get("data", {}).get("values", ())


def linear_light(color):
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [((part + 0.055) / 1.055) ** 2.4 if part > 0.04045 else part / 12.92 for part in parts]


def perceived_color(color, cones):
    """Return the CIE Lab color perceived without one kind of cone."""
    light = linear_light(color)
    r, g, b = (sum(x * y for x, y in zip(row, light, strict=True)) for row in cones)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.0888,
    )
    x, y, z = (max(v, 0) ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("kind", COLOR_BLINDNESS)
def test_colors_are_distinct_under_color_blindness(kind):
    for one, two in itertools.combinations(COLORS, 2):
        seen = (perceived_color(x, COLOR_BLINDNESS[kind]) for x in (one, two))
        pairs = zip(*seen, strict=True)
        assert sum((a - b) ** 2 for a, b in pairs) ** 0.5 > 12, (one, two)


@pytest.mark.parametrize("background", ["#ffffff", "#14171a"])
def test_colors_contrast_with_both_backgrounds(background):
    def luminance(color):
        weights = (0.2126, 0.7152, 0.0722)
        return sum(w * x for w, x in zip(weights, linear_light(color), strict=True))

    for color in COLORS:
        dim, bright = sorted((luminance(color), luminance(background)))
        assert (bright + 0.05) / (dim + 0.05) > 2, color


def test_registered_mechanisms_have_distinct_styles_and_the_color_of_their_family():
    traits = read_traits()
    names = sorted(traits, key=lambda name: families().index(traits[name]["family"]))
    styles = assign_styles({name: family_of(name) for name in [*reversed(names), "own"]}).by_name
    assert [*styles] == [*names, "own"]
    look = styles.values()
    assert len({(style.color, style.dash) for style in look}) == len(styles)
    assert len({(style.color, style.shape) for style in look}) == len(styles)
    assert {family_of(name): style.color for name, style in styles.items()} == dict(
        zip(families(), COLORS, strict=True)
    )
    assert len(DASHES) == len(SHAPES)


def test_every_chart_is_valid_specification():
    pair = [record(name, task, s) for name in NAMES for task in ("listops", "text") for s in (0, 1)]
    pair = [dataclasses.replace(run, slices=depth_slices({"2": 0.4, "3": 0.5})) for run in pair]
    analyses = [analysis(run) for run in pair]
    board = build_leaderboard(pair)
    context = Context(styles=STYLES, analyses=analyses)
    charts = [figure.content for figure in board_figures(board, context)]
    assert len(charts) == 2 + 6 + 4 + 2 + 4 + 2  # spans, and spectra of both tasks
    for chart in charts:
        alt.LayerChart.from_dict(chart, validate=True)
    with pytest.raises(ValidationError):
        alt.LayerChart.from_dict({**charts[0], "layer": [{"mark": "lines"}]}, validate=True)


def test_mechanism_has_one_color_in_every_chart():
    table = small_leaderboard()
    charts = [
        learning_curves(table, 0, "validation score", STYLES),
        learning_curves(table, 1, "training loss", STYLES),
        score_intervals(table, 0, STYLES),
    ]
    blue, vermilion = COLORS[1], COLORS[4]
    for chart in charts:
        scales = [
            layer["encoding"]["color"]["scale"]
            for layer in chart["layer"]
            if "scale" in layer.get("encoding", {}).get("color", {})
        ]
        assert scales
        expected = {"domain": NAMES, "range": [blue, vermilion, vermilion]}
        assert all(scale == expected for scale in scales)
    cost = score_against_cost(table, len(table.columns), "cpu, float32", STYLES)
    (marks,) = (layer for layer in cost["layer"] if "fill" in layer["encoding"])
    for channel in ("fill", "stroke"):
        assert marks["encoding"][channel]["scale"] == expected


def test_thinned_curves_keep_measured_points_and_last_point():
    runs = [record(curve=curve(0.4, points=1000, steps=5000))]
    chart = learning_curves(build_leaderboard(runs), 0, "training loss", STYLES)
    (drawn,) = (row for row in values(chart) if "step" in row)
    assert len(drawn["step"]) <= POINTS + 1
    assert drawn["step"][0] == 5
    assert drawn["step"][-1] == 5000
    assert drawn["value"][-1] == pytest.approx(1.7, abs=1e-4)


def test_accuracy_is_drawn_in_percent():
    chart = learning_curves(build_leaderboard([record()]), 0, "validation score", STYLES)
    (drawn,) = (row for row in values(chart) if "step" in row)
    assert drawn["value"][-1] == pytest.approx(
        100 * record().curve[-1].validation_metrics["accuracy"], abs=0.01
    )
    assert 17.45 in [round(row["value"], 9) for row in values(chart) if "step" not in row]


def test_line_is_mean_of_seeds_and_band_is_range():
    # The second seed was measured at every other step only.
    few = curve(0.2, points=5)
    table = build_leaderboard([record(seed=0, curve=curve(0.4)), record(seed=1, curve=few)])
    chart = learning_curves(table, 0, "validation score", STYLES)
    (drawn,) = (row for row in values(chart) if "step" in row)
    assert drawn["step"] == [0, 100, 200, 300, 400, 500]
    assert drawn["seeds"] == "2 seeds"
    ends = [100 * run[-1].validation_metrics["accuracy"] for run in (few, curve(0.4))]
    assert drawn["low"][-1] == pytest.approx(ends[0], abs=0.01)
    assert drawn["high"][-1] == pytest.approx(ends[1], abs=0.01)
    assert drawn["value"][-1] == pytest.approx(sum(ends) / 2, abs=0.01)


def test_seeds_without_common_step_have_separate_lines_and_runs_without_curve_none():
    pair = [record(seed=0, curve=curve(0.4)[1:]), record(seed=1, curve=curve(0.4, 7, 490)[1:])]
    chart = learning_curves(build_leaderboard(pair), 0, "training loss", STYLES)
    assert [row["seeds"] for row in values(chart) if "step" in row] == ["seed 0", "seed 1"]
    board = build_leaderboard([record(curve=[])])
    assert learning_curves(board, 0, "training loss", STYLES) is None


def depth_slices(accuracies):
    return {"depth": [Slice(label=k, value=v, num_targets=9) for k, v in accuracies.items()]}


def test_slices_present_in_all_seeds_are_averaged():
    runs = [
        record(seed=0, slices=depth_slices({"10": 0.4, "2": 0.5})),
        record(seed=1, slices=depth_slices({"10": 0.2, "3": 0.9})),
    ]
    table = build_leaderboard(runs)
    assert properties(table, 0) == ["depth"]
    drawn = [row for row in values(slice_series(table, 0, "depth", STYLES)) if "place" in row]
    assert [(row["place"], row["value"]) for row in drawn] == [("10", pytest.approx(30.0))]
    assert slice_series(table, 0, "length", STYLES) is None


def test_scores_are_drawn_in_rank_order_with_intervals():
    table = small_leaderboard()
    chart = score_intervals(table, 0, STYLES)
    found = {row["row"]: row for row in values(chart) if "row" in row}
    for row in table.rows:
        interval = row.cells[0].interval
        drawn = found[row.label]
        assert (drawn["low"], drawn["high"]) == (100 * interval.low, 100 * interval.high)
    orders = [layer["encoding"]["y"]["sort"] for layer in chart["layer"][-2:]]
    assert orders == [NAMES[::-1]] * 2
    assert score_intervals(build_leaderboard([record()]), 0, STYLES) is None


def read_pixels(data):
    with Image.open(io.BytesIO(data)) as image:
        return [[image.getpixel((x, y)) for x in range(image.width)] for y in range(image.height)]


def test_heatmap_darkens_with_value():
    picture = draw_matrix([[0.0, 0.5], [0.75, 1.0], [0.25, 0.0]], "Cosine", "of something")
    found = read_pixels(picture.png())
    assert np.array(found).tolist() == picture.colors.tolist()
    order = sorted((value, sum(found[y][x])) for y, x, value in [(0, 0, 0), (0, 1, 0.5), (1, 1, 1)])
    assert [light for _, light in order] == sorted(
        (sum(c) for c in (found[0][0], found[0][1], found[1][1])), reverse=True
    )
    assert list(picture.steps) == [0, 128, 191, 255, 64, 0]
    assert len(read_pixels(picture.png(scale=4))) == 12
    assert read_pixels(picture.png(scale=4))[11][7] == found[2][1]


@pytest.mark.slow
def test_every_figure_is_written_as_svg_and_png(tmp_path):
    runs = [record(name, slices=depth_slices({"2": 0.4})) for name in NAMES]
    files = write_figures([build_leaderboard(runs)], tmp_path / "figures", "both")
    stems = ["cost", "cost", "scores", "curves", "curves", "slices"]
    assert [path.name.split("-")[2] for path in files[::2]] == stems
    assert {path.suffix for path in files} == {".svg", ".png"}
    assert sorted(files) == sorted((tmp_path / "figures").iterdir())
    curves = next(
        path for path in files if path.name == "lra-small-curves-listops-training-loss.svg"
    )
    assert all(f">{name}<" in curves.read_text(encoding="utf-8") for name in NAMES)
    for path in files[1::2]:
        assert read_pixels(path.read_bytes())[0][0][:3] == (255, 255, 255)
    with pytest.raises(OptionError, match="svg, pdf, png, both, got 'gif'"):
        write_figures([], tmp_path, "gif")


def test_failed_rows_have_no_mark(tmp_path):
    runs = [record(name, seed=seed) for name in NAMES for seed in (0, 1)]
    table = build_leaderboard(runs, [failure("linear", seed=2)])
    write_figures([table], tmp_path, "svg")
    drawn = (tmp_path / "lra-small-scores-listops.svg").read_text(encoding="utf-8")
    assert [f">{name}<" in drawn for name in NAMES] == [True, False, True]


MEAN_TASKS = ("listops", "text", "retrieval", "image", "pathfinder")


def test_chart_of_mean_excludes_tasks_outside_mean():
    """Exclude Path-X, which one row has, with a different majority baseline and speed."""
    runs = [record(x, y, score=0.3 * i) for i, x in enumerate(NAMES, 1) for y in MEAN_TASKS]
    runs.append(record(NAMES[0], "path_x", score=0.9, tokens_per_second=1.0, chance=0.5))
    table = build_leaderboard(runs)
    first = next(cost_figures(table, Context(styles=STYLES)))
    assert first.caption == "Mean of 5, speed, cpu, float32"
    dots = [row for row in values(first.content) if "mechanism" in row]
    assert {dot["mechanism"] for dot in dots} == set(NAMES)
    assert {dot["across"] for dot in dots} == {500 * 32 / 812.4}
    assert {dot["over"] for dot in dots} == {"5 tasks"}
    majorities = [column.majority for column in table.columns if column.task in MEAN_TASKS]
    (floor,) = {row["value"] for row in values(first.content) if "value" in row}
    assert floor == pytest.approx(100 * sum(majorities) / 5)


def test_charts_draw_the_best_score_without_a_model():
    """Listops has a better rule, text a better majority class; the mean is over both."""
    rules = {"listops": {"first operator": 0.36, "worse": 0.2}, "text": {"counts": 0.4}}
    validated = {x: {name: y + 0.03 for name, y in own.items()} for x, own in rules.items()}
    board = build_leaderboard(
        record(name, x, score=0.3 + 0.1 * i, rules={"test": rules[x], "validation": validated[x]})
        for i, name in enumerate(NAMES)
        for x in rules
    )
    intervals = [score_intervals(board, i, STYLES) for i in (0, 1)]
    curves = [learning_curves(board, i, "validation score", STYLES) for i in (0, 1)]
    costs = [score_against_cost(board, i, "cpu, float32", STYLES) for i in (0, len(board.columns))]
    charts = {
        ("rule: first operator", 36.0): [intervals[0], costs[0]],
        ("rule: first operator", 39.0): [curves[0]],
        ("majority class", 50.0): [intervals[1], curves[1]],
        ("best without a model", 43.0): [costs[1]],
    }
    for (name, value), specs in charts.items():
        for spec in specs:
            found = {round(row["value"], 6) for row in values(spec) if set(row) == {"value"}}
            assert found == {value}
            assert f'"value": "{name}"' in json.dumps(spec)


def test_marks_have_values_of_leaderboard():
    table = small_leaderboard()
    dots = {
        row["mechanism"]: row
        for row in values(score_against_cost(table, len(table.columns), "cpu, float32", STYLES))
        if "mechanism" in row
    }
    assert dots.keys() == set(NAMES)
    for row in table.rows:
        dot = dots[row.mechanism]
        assert dot["score"] == pytest.approx(100 * row.overall.score)
        assert dot["across"] == row.cost.examples_per_second == pytest.approx(500 * 32 / 812.4)
        assert dot["area"] == row.cost.peak_memory / 2**20


@pytest.mark.parametrize(
    ("steps", "examples"), [(500, 250 * 128 + 250 * 32), (300, 250 * 128 + 50 * 32), (100, 12_800)]
)
def test_examples_of_all_stages_are_counted(steps, examples):
    """The first of two stages has larger batches; a training may end within either."""
    first = StageConfig(steps=1, changes={"training.batch_size": 128})
    run = record("full", training={"stages": (first, StageConfig(steps=1))}, steps=steps)
    (row,) = build_leaderboard([run]).rows
    assert row.cost.examples_per_second == pytest.approx(examples / run.seconds)


@pytest.mark.parametrize("goal", [None, 0.95])
@pytest.mark.parametrize("place", [0, 2])
def test_scores_of_runs_that_end_at_a_goal_have_no_front(place, goal):
    """A run that stops at 95 % is no better at 97, and a mechanism at chance beats nobody."""
    table = small_leaderboard()
    columns = tuple(dataclasses.replace(x, goal=goal) for x in table.columns)
    assert len(columns) == 2
    chart = score_against_cost(
        dataclasses.replace(table, columns=columns), place, "cpu, float32", STYLES
    )
    marks = [row for row in values(chart) if "mechanism" in row]
    assert {row["front"] for row in marks} == {"no" if goal else "yes"}
    assert any(row["line"] is not None for row in marks) == (goal is None)


def test_marks_of_different_device_are_excluded():
    runs = [record("bigbird"), record("linear", device="NVIDIA H200")]
    chart = score_against_cost(build_leaderboard(runs), 0, "NVIDIA H200, float32", STYLES)
    assert [row["mechanism"] for row in values(chart) if "mechanism" in row] == ["linear"]
    assert score_against_cost(build_leaderboard(runs), 0, "TPU, float32", STYLES) is None


def test_rows_without_mean_have_no_mark():
    runs = [record("bigbird", "listops"), record("linear", "listops"), record("linear", "text")]
    chart = score_against_cost(build_leaderboard(runs), 2, "cpu, float32", STYLES)
    assert [row["mechanism"] for row in values(chart) if "mechanism" in row] == ["linear"]


def test_mark_of_unknown_memory_has_minimum_area():
    runs = [
        record("bigbird"),
        record("linear", peak_memory=None),
        record("performer", peak_memory=2**30),
    ]
    chart = score_against_cost(build_leaderboard(runs), 0, "cpu, float32", STYLES)
    areas = {row["mechanism"]: row["size"] for row in values(chart) if "mechanism" in row}
    assert areas == {"bigbird": 1536, "linear": 1024, "performer": 1024}


def front_of(chart):
    """Return the points on the line of the Pareto front, in its order."""
    dots = [row for row in values(chart) if row.get("line") is not None]
    return sorted(dots, key=lambda dot: dot["line"])


def test_panels_exchange_cost_across_and_area():
    speed, memory = (
        score_against_cost(small_leaderboard(), 0, "cpu, float32", STYLES, panel=panel)
        for panel in PANELS
    )
    for chart, title, area in [
        (speed, "Training speed, examples/s", "Peak memory, MiB"),
        (memory, "Peak memory, MiB (lower is better)", "Training speed, examples/s"),
    ]:
        (marks,) = (layer for layer in chart["layer"] if "fill" in layer["encoding"])
        assert marks["encoding"]["x"]["title"] == title
        assert marks["encoding"]["size"]["legend"]["title"] == area
    for one, other in zip(values(speed), values(memory), strict=True):
        if "mechanism" in one:
            assert (one["across"], one["area"]) == (other["area"], other["across"])


def test_rows_without_cost_have_no_mark_in_its_panel():
    runs = [record("bigbird"), record("linear", peak_memory=None)]
    chart = score_against_cost(build_leaderboard(runs), 0, "cpu, float32", STYLES, panel="memory")
    assert [row["mechanism"] for row in values(chart) if "mechanism" in row] == ["bigbird"]


def test_front_holds_rows_that_no_cheaper_row_beats():
    """Three rows on 1000 examples: the slow one is best, and the last is beaten by a faster one."""
    rng = np.random.default_rng(0)
    order = rng.permutation(1000)
    runs = [
        record_of_answers(name, 0, order < 1000 * score, seconds=seconds, peak_memory=memory)
        for name, score, seconds, memory in [
            ("bigbird", 0.60, 100.0, 2**30),  # slow and best
            ("linear", 0.50, 10.0, 2**20),  # fast
            ("performer", 0.497, 20.0, 2**20),  # slower, and worse by three examples
            ("local", 0.40, 50.0, 2**19),  # slower and worse than `linear`
        ]
    ]
    runs = with_second_seed(runs)
    styles = assign_styles({name: family_of(name) for name in [*NAMES, "local"]})
    speed, memory = (
        score_against_cost(build_leaderboard(runs), 0, "cpu, float32", styles, panel=panel)
        for panel in PANELS
    )
    assert [dot["mechanism"] for dot in front_of(speed)] == ["linear", "bigbird"]
    assert [dot["mechanism"] for dot in front_of(memory)] == ["local", "linear", "bigbird"]
    for chart, off in ((speed, {"local"}), (memory, set())):
        dots = [row for row in values(chart) if "mechanism" in row]
        assert {dot["mechanism"] for dot in dots if dot["front"] == "no"} == off
    (line,) = (x for x in speed["layer"] if x["mark"].get("interpolate"))
    assert line["mark"]["interpolate"] == "step-after"


def test_front_holds_ranked_rows_alone():
    """Neither beat nor mark a row with overrides of its own."""
    runs = [
        record("bigbird", score=0.5, overrides={"training.steps": 9}),
        record("linear", score=0.3, seconds=1e4),
        record("performer", score=0.499, seconds=1e4),
    ]
    board = build_leaderboard(with_second_seed(runs))
    chart = score_against_cost(board, 0, "cpu, float32", STYLES)
    on = {row["mechanism"]: row["front"] for row in values(chart) if "mechanism" in row}
    assert on == {"bigbird (training.steps=9)": "no", "linear": "no", "performer": "yes"}
    chart = score_against_cost(build_leaderboard(runs), 0, "cpu, float32", STYLES)
    on = {row["mechanism"]: row["front"] for row in values(chart) if "mechanism" in row}
    assert on == {"bigbird (training.steps=9)": "no", "linear": "yes", "performer": "yes"}


def test_axis_of_costs_is_logarithmic_beyond_a_factor_of_five():
    for slow, kind in ((100.0, "linear"), (600.0, "log")):
        runs = [record("bigbird", seconds=100.0), record("linear", seconds=slow)]
        chart = score_against_cost(build_leaderboard(runs), 0, "cpu, float32", STYLES)
        assert chart["layer"][-1]["encoding"]["x"]["scale"]["type"] == kind


def test_floor_that_would_compress_the_scores_is_left_out():
    def floors(low):
        runs = [
            record_of_answers(x, s, np.arange(1000) < 1000 * y)
            for x, y in (("bigbird", low), ("linear", 0.9))
            for s in (0, 1)
        ]
        chart = score_against_cost(build_leaderboard(runs), 0, "cpu, float32", STYLES)
        return [row["value"] for row in values(chart) if set(row) == {"value"}]

    assert floors(0.3) == [10.0, 10.0]
    assert floors(0.89) == []


def test_charts_are_saved_as_svg_and_png(tmp_path):
    chart = score_against_cost(small_leaderboard(), 0, "cpu, float32", STYLES)
    text = save_chart(chart, tmp_path / "cost.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert all(f">{name}<" in text for name in NAMES)
    assert save_chart(chart, tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cost.png", "cost.svg"]


def test_unknown_suffixes_are_rejected(tmp_path):
    chart = score_against_cost(small_leaderboard(), 0, "cpu, float32", STYLES)
    with pytest.raises(OptionError, match=r"as .svg, .pdf or .png, got 'cost.gif'"):
        save_chart(chart, tmp_path / "cost.gif")


def test_svg_curves_have_all_points(tmp_path):
    runs = [record(curve=curve(0.4, points=5)), record("linear", curve=curve(0.2, points=5))]
    chart = learning_curves(build_leaderboard(runs), 0, "validation score", STYLES)
    path = save_chart(chart, tmp_path / "curves.svg")
    picture = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    lines = [
        path.get("d")
        for path in picture.iter("{http://www.w3.org/2000/svg}path")
        if path.get("stroke") in COLORS
    ]
    assert len([line for line in lines if line.count("L") == 5]) == 2


def test_lower_is_better_chart_is_ordered_and_labeled():
    runs = [record(name, score=i + 1.0, metric="bits_per_byte") for i, name in enumerate(NAMES)]
    board = build_leaderboard(runs)
    chart = score_intervals(board, 0, STYLES)
    assert chart["layer"][-1]["encoding"]["y"]["sort"] == NAMES
    title = "Test bits per byte (lower is better)"
    assert chart["layer"][-1]["encoding"]["x"]["title"] == title
    dots = [row for row in values(chart) if "mechanism" in row]
    assert [dot["value"] for dot in dots] == [1.0, 2.0, 3.0]
    cost = score_against_cost(board, 0, "cpu, float32", STYLES)
    assert [line["mechanism"] for line in front_of(cost)] == [NAMES[0]]
    assert cost["layer"][-1]["encoding"]["y"]["title"] == title
    assert not any(row.get("value") for row in values(cost) if "mechanism" not in row)
    (drawn, *_) = (
        row
        for row in values(learning_curves(board, 0, "validation score", STYLES))
        if "step" in row
    )
    assert drawn["value"][0] > drawn["value"][-1] == pytest.approx(1.0, abs=0.3)
