"""Scores against a swept option, against bytes of the state, and against the length."""

import dataclasses
import statistics

import pytest
from report_records import build_leaderboard, cross_evaluation, digest, lines, record

from longspan.config import MechanismConfig, TaskConfig
from longspan.errors import UnknownNameError
from longspan.report.charts.styles import PRINT, save_chart
from longspan.report.charts.sweeps import sweep_charts
from longspan.report.context import Context
from longspan.report.sections import board_figures, section_tables
from longspan.report.tables.sweep import (
    STATE,
    check_swept,
    length_points,
    scores_by_length,
    sweep,
    sweep_points,
)
from longspan.results import DecodingState

PAIRS, SEEDS, ROWS = (2, 4, 8), (0, 1), ("full", "local")


def swept(mechanism, pairs, seed, *, score=None, rate=1e-4, window=4, **changes):
    """Return a record of recall of some pairs, with as many queries."""
    task = {"task.pairs": pairs, "task.queries": pairs}
    options = {"window": window} if mechanism == "local" else {}
    score = pairs / 10 + seed / 100 if score is None else score
    overrides = {**task, "training.learning_rate": rate, "mechanism.window": window}
    run = record(mechanism, "recall", seed, score, training={"learning_rate": rate})
    config = dataclasses.replace(
        run.config,
        task=TaskConfig(name="recall", version=1, options={"pairs": pairs, "queries": pairs}),
        mechanism=MechanismConfig(name=mechanism, options=options),
    )
    named = {name: x for name, x in overrides.items() if options or name != "mechanism.window"}
    checksum = f"{pairs:064x}"
    identity = {"config": config, "overrides": named, "config_hash": digest(config)}
    return dataclasses.replace(run, **identity, data_checksum=checksum, **changes)


@pytest.fixture
def board():
    return build_leaderboard(
        [swept(*x) for x in ((m, p, s) for m in ROWS for p in PAIRS for s in SEEDS)]
    )


def test_table_has_the_mean_of_each_row_at_each_value(board):
    (table,) = sweep(board, "task.pairs")
    assert [column.name for column in table.columns] == ["Task", "Mechanism", "2", "4", "8"]
    assert len(table.rows) == len(ROWS)
    for line in table.rows:
        assert line[0].value == "recall"
        for pairs, entry in zip(PAIRS, line[2:], strict=True):
            assert entry.value == pytest.approx(
                statistics.fmean(pairs / 10 + x / 100 for x in SEEDS)
            )
            assert entry.detail == "2 seeds"


def test_other_options_are_other_groups_and_those_of_the_mechanism_other_rows():
    runs = [
        swept("local", pairs, 0, rate=rate, window=window)
        for pairs in PAIRS
        for rate in (1e-3, 1e-4)
        for window in (4, 8)
    ]
    points = sweep_points(build_leaderboard(runs), "task.pairs")
    assert {(x.group, x.row) for x in points} == {
        (f"recall, training.learning_rate = {rate}", f"local mechanism.window = {window}")
        for rate in ("0.001", "0.0001")
        for window in (4, 8)
    }
    assert sorted(x.place for x in points) == sorted([*PAIRS] * 4)
    by_window = sweep_points(build_leaderboard(runs), "mechanism.window")
    assert {x.row for x in by_window} == {"local"}
    assert len({x.group for x in by_window}) == len(PAIRS) * 2


def test_state_is_swept_by_the_options_that_decide_it():
    runs = [
        swept("local", 4, seed, window=window, score=window / 100, decoding_state=state)
        for window in (4, 8, 16)
        for seed in SEEDS
        for state in [DecodingState(num_bytes=1024 * window, grows=False)]
    ]
    mixed = [*runs, swept("full", 4, 0)]  # a run without a recorded state
    (table,) = sweep(build_leaderboard(mixed), STATE)
    assert [x.name for x in table.columns[2:]] == ["4.00 KiB", "8.00 KiB", "16.0 KiB"]
    assert [entry.value for entry in table.rows[0][2:]] == [0.04, 0.08, 0.16]
    assert len(table.rows) == 1


def test_state_does_not_decide_other_options_of_the_mechanism():
    runs = [
        dataclasses.replace(run, overrides={**run.overrides, "mechanism.kernel": kernel})
        for window in (4, 8)
        for kernel, score in (("relu", 0.9), ("elu", 0.1))
        for state in [DecodingState(num_bytes=1024 * window, grows=False)]
        for run in [swept("local", 4, 0, window=window, score=score, decoding_state=state)]
    ]
    runs = [dataclasses.replace(x, config_hash=f"{n:010}") for n, x in enumerate(runs)]
    (table,) = sweep(build_leaderboard(runs), STATE)
    assert [[entry.value for entry in row[1:]] for row in table.rows] == [
        ["local mechanism.kernel = relu", 0.9, 0.9],
        ["local mechanism.kernel = elu", 0.1, 0.1],
    ]


def of_version(run):
    """Return a run on the second version of the data of its task."""
    task = dataclasses.replace(run.config.task, version=2)
    config = dataclasses.replace(run.config, task=task)
    checksum = f"ab{run.data_checksum[2:]}"
    return dataclasses.replace(
        run, config=config, config_hash=digest(config), data_checksum=checksum
    )


def of_recipe(run):
    """Return a run of another version of the protocol, which the overrides do not name."""
    config = dataclasses.replace(
        run.config, training=dataclasses.replace(run.config.training, weight_decay=0.5)
    )
    return dataclasses.replace(run, config=config, config_hash=digest(config))


def of_data(run):
    """Return a run of the same configuration on other data."""
    return dataclasses.replace(run, data_checksum=f"cd{run.data_checksum[2:]}")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("change", "groups"),
    [
        (of_version, ("task.version = 1", "task.version = 2")),
        (of_recipe, ("training.weight_decay = 0.0", "training.weight_decay = 0.5")),
        (of_data, ("data sha256 = 00000000", "data sha256 = cd000000")),
    ],
)
def test_runs_that_are_other_rows_of_the_leaderboard_have_no_mean(change, groups, seed):
    old = [swept("full", pairs, 0, score=0.9) for pairs in PAIRS]
    new = [change(swept("full", pairs, seed, score=0.1)) for pairs in PAIRS]
    (table,) = sweep(build_leaderboard([*old, *new]), "task.pairs")
    assert sorted([entry.value for entry in row] for row in table.rows) == [
        [f"recall, {groups[0]}", "full", 0.9, 0.9, 0.9],
        [f"recall, {groups[1]}", "full", 0.1, 0.1, 0.1],
    ]


def test_unknown_options_are_refused_and_no_option_has_no_table(board):
    with pytest.raises(UnknownNameError, match=r"did you mean task\.pairs"):
        check_swept([x for row in board.rows for x in row.runs(0)], "task.pair")
    assert sweep(board, "task.pair") == []  # another leaderboard of the report may have it
    assert sweep(board, None) == []
    assert not section_tables([board], Context(boards=(board,)), "sweep")


def test_charts_have_every_seed_and_the_same_axes(board, tmp_path):
    runs = [
        swept(m, p, s, rate=r) for m in ROWS for p in PAIRS for s in SEEDS for r in (1e-3, 1e-4)
    ]
    charts = dict(
        sweep_charts(sweep_points(build_leaderboard(runs), "task.pairs"), "task.pairs", PRINT)
    )
    assert len(charts) == 2
    scales = []
    for label, chart in charts.items():
        dots = chart["data"]["values"]
        assert {(x["row"], x["place"], x["seed"]) for x in dots} == {
            (m, p, s) for m in ROWS for p in PAIRS for s in SEEDS
        }
        *_, points = chart["layer"]
        scales.append((points["encoding"]["x"]["scale"], points["encoding"]["y"]["scale"]))
        assert points["encoding"]["x"]["scale"]["type"] == "log"
        text = save_chart(chart, tmp_path / f"{len(label)}{len(scales)}.svg").read_text()
        assert all(row in text for row in ROWS)
    assert scales[0] == scales[1]
    context = Context(boards=(board,), sweep="task.pairs")
    assert sum("sweep" in x.name for x in board_figures(board, context)) == 1


def test_values_that_are_no_numbers_are_in_order():
    runs = [
        dataclasses.replace(run, config=dataclasses.replace(run.config, model=model))
        for n, name in enumerate(("rotary", "none"))
        for run in [swept("full", 4, 0, rate=1e-3 * (n + 1))]
        for model in [dataclasses.replace(run.config.model, position=name)]
    ]
    points = sweep_points(build_leaderboard(runs), "model.position")
    assert {x.group for x in points} == {"recall"}  # each position has one learning rate
    (chart,) = (x for _, x in sweep_charts(points, "model.position", PRINT))
    axis = chart["layer"][-1]["encoding"]["x"]
    assert axis["type"] == "ordinal"
    assert sorted(axis["sort"]) == ["none", "rotary"]


def test_lengths_have_the_test_score_of_the_training_and_no_other_evaluations():
    run = dataclasses.replace(swept("full", 4, 0, score=0.9), length=128)
    options = {**run.config.task.options, "length": 128}
    config = dataclasses.replace(
        run.config, task=dataclasses.replace(run.config.task, options=options)
    )
    run = dataclasses.replace(run, config=config)

    def at(length, score, split="test", **more):
        task = TaskConfig(name="recall", version=1, options={**options, "length": length, **more})
        return cross_evaluation(run, score, evaluated_on=task, length=length, split=split)

    evaluations = [
        *(at(256, 0.8), at(512, 0.7, train=64, test=10), at(1024, 0.1, split="train")),
        at(64, 0.2, pairs=8),
        cross_evaluation(run, 0.5),
    ]
    board = build_leaderboard([run])
    assert {(x.place, x.score) for x in length_points(board, evaluations)} == {
        (128, 0.9),
        (256, 0.8),
        (512, 0.7),
    }
    (table,) = scores_by_length(board, evaluations)
    assert list(lines(table)[0].values())[2:] == [0.9, 0.8, 0.7]
    context = Context(boards=(board,), evaluations=tuple(evaluations))
    assert sum("sweep-length" in x.name for x in board_figures(board, context)) == 1
    assert scores_by_length(board, evaluations[2:]) == []


@pytest.mark.parametrize("sizes", [(50, 100, 400), (400, 100, 50), (100, 400, 50)])
@pytest.mark.parametrize("has_test", [True, False])
def test_lengths_have_the_score_of_the_largest_sample(sizes, has_test):
    run = swept("full", 4, 0, score=0.9)
    task = dataclasses.replace(run.config.task, options={**run.config.task.options, "length": 256})
    whole = cross_evaluation(run, 0.0, evaluated_on=task, length=256, split="test")
    samples = [
        dataclasses.replace(
            whole,
            score=dataclasses.replace(
                whole.score, num_examples=size, metrics={"accuracy": size / 1000}
            ),
        )
        for size in sizes
    ]
    if not has_test:
        run = dataclasses.replace(run, scores={"validation": run.scores["validation"]})
    points = length_points(build_leaderboard([run]), samples)
    own = {(run.length, 0.9)} if has_test else set()
    assert {(x.place, x.score) for x in points} == {(256, 0.4)} | own
