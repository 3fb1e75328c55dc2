"""Published costs and other figures next to ours."""

import dataclasses

import pytest
from report_records import build_leaderboard, failure, published, record

from longspan.report.context import Context, styles_of
from longspan.report.sections import section_tables
from longspan.report.tables.published import QUANTITIES, compare_figures, read_published

TASKS_OF_LRA = ("listops", "text", "retrieval", "image", "pathfinder", "path_x")


def figure(mechanism="linear", **changes):
    fields = {"task": "text", "quantity": "memory", "value": 1.0, "length": 4000}
    return published(**{**fields, "mechanism": mechanism, **changes})


def own_records(**changes):
    """Return records of `full` and `linear`, which takes a quarter of the memory and time."""
    return [
        record(name, "text", length=4096, seconds=seconds, peak_memory=memory, **changes)
        for name, seconds, memory in [("full", 1000.0, 8_000_000_000), ("linear", 250.0, 2 * 10**9)]
    ]


def test_costs_are_compared_as_ratios_to_the_baseline():
    figures = [figure("full", value=9.48), figure(value=1.03)]
    full, linear = compare_figures(build_leaderboard(own_records()), figures)
    assert (full.ours, linear.ours) == (8.0, 2.0)
    assert (linear.published_base, linear.our_base) == (9.48, 8.0)
    assert linear.ratio is None
    steps = [figure(quantity="steps_per_second", value=7.8)]
    (speed,) = compare_figures(build_leaderboard(own_records()), steps)
    assert (speed.ours, speed.our_base) == (500 / 250, 500 / 1000)
    assert speed.published_base is None


def test_ratios_need_one_device():
    runs = own_records()
    runs[0] = dataclasses.replace(runs[0], device="NVIDIA H200")
    (found,) = compare_figures(build_leaderboard(runs), [figure()])
    assert (found.ours, found.our_base) == (2.0, None)


@pytest.mark.parametrize("quantity", ["steps_per_second", "memory", "gflops"])
def test_overridden_rows_have_the_baseline_of_their_table(quantity):
    own = own_records()
    costs = {"seconds": 10.0, "peak_memory": 10**9, "flops": 10**8}
    other = own_records(overrides={"training.batch_size": 8})
    other[0] = dataclasses.replace(other[0], **costs)
    found = compare_figures(build_leaderboard([*own, *other]), [figure(quantity=quantity)])
    values = {
        "steps_per_second": (500 / 1000, 500 / 10),
        "memory": (8.0, 1.0),
        "gflops": (own[0].flops / 2e9, 0.05),
    }[quantity]
    assert [x.label for x in found] == ["linear", "linear (training.batch_size=8)"]
    assert [x.our_base for x in found] == pytest.approx(values)
    protocols = ["lra-small", "lra-small with training.batch_size = 8"]
    assert [x.protocol for x in found] == protocols


@pytest.mark.parametrize(("length", "count"), [(1000, 0), (4000, 1), (4300, 0), (None, 1)])
def test_lengths_match(length, count):
    board = build_leaderboard(own_records())
    assert len(compare_figures(board, [figure(length=length)])) == count


@pytest.mark.parametrize(("protocol", "ratio"), [("xiong", 2.0), ("lra-small", None)])
def test_flops_are_halved_and_compared_under_the_same_protocol(protocol, ratio):
    runs = [record("linear", "text", flops=4 * 10**9, protocol=protocol)]
    one = figure(quantity="gflops", value=1.0, protocol="xiong", length=None)
    (found,) = compare_figures(build_leaderboard(runs), [one])
    assert (found.ours, found.ratio) == (2.0, ratio)


def test_overridden_rows_are_not_compared_with_the_protocol():
    run = record("linear", "text", protocol="xiong", overrides={"training.steps": 9})
    one = figure(quantity="gflops", protocol="xiong", length=None)
    (found,) = compare_figures(build_leaderboard([run]), [one])
    assert found.ours is not None
    assert found.ratio is None


def test_figures_of_the_same_protocol_are_listed_without_ours():
    board = build_leaderboard([record("linear", "listops", protocol="xiong")])
    figures = [x for x in read_published() if x.task != "listops" or not x.metric]
    found = compare_figures(board, figures)
    assert {one.published.protocol for one in found} == {"xiong"}
    quantities = {one.published.quantity for one in found}
    assert {"gflops", "perplexity", "words_per_second", "exact_match"} <= quantities
    assert [one.ours for one in found] == [None] * len(found)
    other = build_leaderboard([record("full", "listops")])
    xiong = [x for x in figures if x.protocol == "xiong"]
    assert section_tables([other], Context(published=tuple(xiong)), "published") == []


def test_rows_that_failed_have_no_figures():
    board = build_leaderboard([record("full", "text")], [failure("linear", "text")])
    assert compare_figures(board, [figure(length=None)]) == []


def test_training_accuracy_is_that_of_the_tested_checkpoint():
    run = record("linear", "image", length=1024)
    train = dataclasses.replace(run.scores["test"], metrics={"accuracy": 0.5})
    runs = [dataclasses.replace(run, scores={**run.scores, "train": train})]
    one = figure(task="image", quantity="train_accuracy", value=65.61, length=None)
    (found,) = compare_figures(build_leaderboard(runs), [one])
    assert found.ours == 50.0


def test_published_tables_are_complete():
    """Count the figures, and compare speeds with the quotients that table 2 of LRA prints."""
    figures = [x for x in read_published() if not x.metric or x.task not in TASKS_OF_LRA]
    figures = [x for x in figures if x.source.startswith(("Tay et al. 2021", "Xiong et al. 2022"))]
    assert {one.quantity for one in figures if not one.metric} == set(QUANTITIES)
    found = {(one.task, one.quantity, one.mechanism, one.length): one.value for one in figures}
    assert len(found) == len(figures) == 2 * 9 * 4 + 11 + 8 + 8 * 6
    steps = {name: found["text", "steps_per_second", name, 4000] for name in ("full", "performer")}
    assert steps["performer"] / steps["full"] == pytest.approx(5.7, abs=0.05)
    quotients = {"strided_local": 5.3, "linformer": 5.5, "reformer": 0.8, "bigbird": 1.1}
    for name, times in quotients.items():
        quotient = found["text", "steps_per_second", name, 4000] / steps["full"]
        assert quotient == pytest.approx(times, abs=0.05)
    assert found["listops", "gflops", "blockwise", None] == 0.146
    assert found["masked language modeling", "perplexity", "long_short", None] == 3.36


def test_local_attention_of_lra_is_the_strided_one():
    """Pair "Local Attention" with what Long Range Arena ran, and Xiong's with the window."""
    found = read_published()
    of_lra = {x.mechanism for x in found if x.source.startswith("Tay et al. 2021")}
    assert "strided_local" in of_lra
    assert "local" not in of_lra
    assert "local" in {x.mechanism for x in found if x.protocol == "xiong"}


def test_section_shows_ratios_of_costs():
    board = build_leaderboard(own_records())
    (table,) = section_tables([board], Context(published=(figure(),)), "published")
    assert table.name == "lra-small-published"
    (row,) = table.rows
    texts = dict(zip(table.keys, (entry.text for entry in row), strict=True))
    assert (texts["published"], texts["ours"], texts["ours_over_full"]) == (
        "1.00",
        "2.00",
        "0.250 ×",
    )


def test_reference_rows_are_no_rows_of_full():
    runs = [record("full", "image", score=0.4), record("linear", "image", score=0.3)]
    runs += [record("full", "image", score=0.6, overrides={"row": "cnn"})]
    board = build_leaderboard(runs)
    scores = [
        x for x in read_published() if x.task == "image" and x.protocol == "lra-paper" and x.metric
    ]
    pairs = {x.published.mechanism: x.label for x in compare_figures(board, scores) if x.label}
    assert pairs == {"full": "full", "linear": "linear"}
    own = figure("cnn", task="image", value=0.7, quantity="accuracy", length=None)
    (pair,) = compare_figures(board, [own])
    assert (pair.label, pair.ours) == ("cnn", 0.6)
    figures = compare_figures(board, [figure("full", task="image", quantity="gflops", length=None)])
    assert [one.label for one in figures] == ["full"]
    row = next(row for row in board.rows if row.label == "cnn")
    assert (row.mechanism, row.reference, row.family) == ("full", "cnn", None)
    assert [board.notes[note] for note in row.notes] == [
        "Not ranked: a reference row of the protocol, not a mechanism."
    ]
    assert next(row for row in board.rows if row.label == "full").family == "dense"


def test_reference_row_and_equal_configuration_are_two_runs():
    same = {"overrides": {"model.stem": "convolution"}, "config_hash": "0123456789"}
    runs = [record("full", "image", **same)]
    runs += [dataclasses.replace(runs[0], overrides={"row": "cnn-stem"})]
    board = build_leaderboard([*runs, record("full", "image")])
    assert sorted(row.row_name for row in board.rows) == ["cnn-stem", "full", "full"]


def test_family_of_foreign_mechanism_is_that_of_its_record():
    board = build_leaderboard([record("mine", family="kernel"), record("other_one")])
    assert {row.mechanism: row.family for row in board.rows} == {
        "mine": "kernel",
        "other_one": "other",
    }
    styles = styles_of([board]).by_name
    assert styles["mine"].family == "kernel"


def test_models_of_the_image_task_that_are_no_mechanisms_have_published_scores():
    found = {x.mechanism: x.value for x in read_published() if x.task == "image" and x.metric}
    names = ("cnn-stem", "relative-2d", "wide-resnet")
    assert [found[name] for name in names] == [0.7532, 0.6172, 0.8921]
    run = record("full", "image", score=0.7, overrides={"row": "cnn-stem"})
    pairs = compare_figures(build_leaderboard([run]), read_published())
    (own,) = [x for x in pairs if x.label]
    assert (own.published.mechanism, own.published.value, own.ours) == ("cnn-stem", 0.7532, 0.7)
