"""Alarms on curves that were made up, and on one run that learns nothing."""

import dataclasses
import io

import pytest
from rich.console import Console

import tiny
from longspan.arena import make_model
from longspan.arena.console import ConsoleCallback
from longspan.config import TrainingConfig
from longspan.metrics import get_metric
from longspan.results import Alarm, Point, Score
from longspan.training import Callback, fit
from longspan.training.alarms import (
    TrainingState,
    WarmUp,
    at_chance,
    diverging,
    raise_alarms,
    waiting_for_data,
)

CONFIG = TrainingConfig(
    steps=1_000,
    batch_size=32,
    learning_rate=5e-4,
    warmup_steps=100,
    schedule="linear",
    evaluate_every=50,
)


def curve(accuracies=(), losses=(), every=50):
    """Points at equal distances; what is not given stays the same."""
    count = max(len(accuracies), len(losses))
    return [
        Point(
            step=every * (n + 1),
            seconds=float(n),
            learning_rate=1e-3,
            train_loss=losses[n] if losses else 1.0,
            train_metrics={"accuracy": 0.5},
            validation_loss=1.0,
            validation_metrics={"accuracy": accuracies[n] if accuracies else 0.9},
        )
        for n in range(count)
    ]


def state(points, *, majority=0.5, examples=2_000, config=CONFIG, metric="accuracy", **seconds):
    score = Score(
        metrics={metric: 0.5},
        loss=1.0,
        num_examples=examples,
        num_targets=examples,
        majority_baseline=majority,
    )
    clock = {"seconds": 100.0, "data_wait_seconds": 0.0, "warm_up": WarmUp(0.0, 0.0), **seconds}
    return TrainingState(
        config=config, metric=get_metric(metric), curve=points, validation=score, **clock
    )


def raised(accuracies=(), losses=(), **about):
    """Every alarm of a curve that grows point by point, as (kind, step)."""
    points, given = curve(accuracies, losses), []
    for n in range(1, len(points) + 1):
        given += raise_alarms(state(points[:n], **about), [alarm.kind for alarm in given])
    return [(alarm.kind, alarm.step) for alarm in given]


def test_pathfinder_at_a_half_is_told_once_after_a_third_of_the_steps():
    half = [0.497, 0.503, 0.5, 0.5, 0.51, 0.499, 0.5] * 3
    assert raised(half[:20]) == [("chance", 350)]


def test_the_message_says_what_is_wrong_and_what_to_try():
    assert at_chance(state(curve([0.5] * 8))) == (
        "validation accuracy is 50.0 % after 400 of 1,000 steps, no better than always predicting "
        "the most frequent class (50.0 %, with noise up to 52.2 %); some runs leave chance late, "
        "others need another learning rate (now 0.0005), a longer warmup (now 100 steps) or "
        "another seed"
    )


def test_the_interval_is_the_binomial_one():
    """Of 2,000 fair coins 95 % of the counts are within 1.96 * sqrt(2,000 / 4) = 43.8 of 1,000."""
    assert at_chance(state(curve([1_043 / 2_000] * 8)))
    assert not at_chance(state(curve([1_044 / 2_000] * 8)))
    # 1.96 * sqrt(2,000 * 0.9 * 0.1) = 26.3 of 1,800
    assert at_chance(state(curve([1_826 / 2_000] * 8), majority=0.9))
    assert not at_chance(state(curve([1_827 / 2_000] * 8), majority=0.9))
    # a tenth of the examples: the same share is luck
    assert at_chance(state(curve([1_044 / 2_000] * 8), examples=200))


def test_a_curve_that_leaves_chance_in_time_is_silent():
    """ListOps under lra-small: the majority class until a seventh of the steps, then 35 %."""
    leaves = [0.174, 0.176, *([0.33, 0.35, 0.36] * 6)]
    assert raised(leaves, majority=0.174) == []
    late = [*[0.17] * 7, 0.31, *[0.35] * 12]
    assert raised(late, majority=0.174) == [("chance", 350)]


def test_leaving_chance_between_the_looks_is_leaving_it():
    assert raised([*[0.5] * 5, 0.56, 0.5, 0.56, 0.5, 0.56, 0.6, 0.6], majority=0.5) == []


def test_the_majority_counts_not_the_share_of_a_class():
    """Nine in ten examples are of one class: 90 % is nothing, 60 % is worse than nothing."""
    assert raised([0.9] * 8, majority=0.9) == [("chance", 350)]
    assert raised([0.6] * 8, majority=0.9) == [("chance", 350)]
    assert raised([0.6] * 8, majority=0.5) == []


def test_too_few_evaluations_say_nothing_of_chance():
    config = dataclasses.replace(CONFIG, steps=100)
    assert not at_chance(state(curve([0.5] * 2), config=config))
    assert at_chance(state(curve([0.5] * 3), config=config))


def test_a_loss_that_rises_for_long_is_told_once():
    # windows of 1,000 examples are 31.25 steps: each point is one
    losses = [2.3, 1.5, 1.0, 1.2, 1.6, 1.7, 2.0, 2.4, 3.0]
    assert raised(losses=losses) == [("diverging", 300)]
    assert diverging(state(curve(losses=losses[:6]))) == (
        "the training loss has risen to 1.70 from 1.00 at step 150; lower the learning rate "
        "(now 0.0005), lengthen the warmup (now 100 steps) or clip gradients "
        "(training.max_grad_norm)"
    )


@pytest.mark.parametrize(
    "losses",
    [
        [2.3, 2.0, 1.5, 1.2, 1.0, 0.9],  # falls
        [2.3, 1.0, 1.7, 1.0, 1.7, 1.0],  # one window above, then none
        [2.3, 1.0, 1.4, 1.45, 1.49, 1.5],  # less than half a nat
        [8.0, 6.0, 6.6, 7.0, 8.5, 8.9],  # more than half a nat, less than a half more
        [0.01, 0.3, 0.4, 0.5, 0.45, 0.5],  # fifty times a small loss is little
        [9.0, 9.0],  # nothing was better before
    ],
    ids=["falls", "spike", "little", "share", "small", "start"],
)
def test_what_does_not_diverge_is_silent(losses):
    assert raised(losses=losses) == []


def test_few_examples_are_averaged_before_they_say_anything():
    """Batches of 4: the ten points of 2,000 examples jump, their mean does not."""
    config = dataclasses.replace(CONFIG, batch_size=4)
    jumps = [1.0, 0.2, 1.8, 1.9, 0.3, 1.7, 1.9, 0.1, 1.2, 0.5] * 2
    assert raised(losses=jumps, config=config) == []
    assert raised(losses=jumps) != []
    rises = [*[1.0] * 10, *[1.8] * 10]
    assert raised(losses=rises, config=config) == [("diverging", 1_000)]


def test_waiting_counts_after_the_first_evaluation():
    points = curve([0.9] * 3)
    about = {"seconds": 110.0, "warm_up": WarmUp(10.0, 8.0)}
    assert waiting_for_data(state(points, data_wait_seconds=18.0, **about)) is None
    assert waiting_for_data(state(points, data_wait_seconds=18.1, **about)) == (
        "10.1 % of the training time since step 50 was spent waiting for data; put --cache on a "
        "local disk, or give the run more processor cores"
    )
    # a share of few seconds is nobody's concern
    assert waiting_for_data(state(points, seconds=10.0, data_wait_seconds=9.0)) is None
    assert waiting_for_data(state(points[:1], seconds=9.0, data_wait_seconds=9.0)) is None


def test_kinds_are_told_apart_each_once():
    points = curve([0.5] * 8, [2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0])
    now = state(points, data_wait_seconds=50.0)
    assert [alarm.kind for alarm in raise_alarms(now, [])] == ["chance", "diverging", "waiting"]
    assert [alarm.kind for alarm in raise_alarms(now, ["diverging"])] == ["chance", "waiting"]
    assert list(raise_alarms(now, ["chance", "diverging", "waiting"])) == []


class Ear(Callback):
    """A callback that keeps alarms and may stop the run."""

    def __init__(self, stop=None):
        self.alarms, self.stop = [], stop

    def on_step(self, step, loss, tokens, seconds):
        if step == self.stop:
            raise KeyboardInterrupt

    def on_alarm(self, alarm):
        self.alarms.append(alarm)


# a rate at which nothing moves
ASLEEP = {"training.learning_rate": 1e-12, "training.steps": 40}


@pytest.fixture
def asleep(listops, tmp_path):
    made = tiny.experiment(changes=ASLEEP)

    def train(callback):
        model = make_model(made, listops)
        return fit(
            model,
            listops,
            made.config.training,
            seed=0,
            folder=tmp_path,
            device="cpu",
            callback=callback,
        )

    return train


def test_a_run_that_learns_nothing_tells_so_and_goes_on(asleep):
    ear = Ear()
    outcome = asleep(ear)
    assert outcome.alarms == ear.alarms
    assert [(alarm.kind, alarm.step) for alarm in ear.alarms] == [("chance", 16)]
    assert outcome.steps == 40


def test_an_alarm_is_kept_over_a_stop_and_told_once(asleep):
    first, second = Ear(stop=30), Ear()
    with pytest.raises(KeyboardInterrupt):
        asleep(first)
    outcome = asleep(second)
    assert [alarm.step for alarm in first.alarms] == [16]
    assert second.alarms == []
    assert outcome.alarms == first.alarms


def test_metrics_without_a_majority_baseline_raise_no_chance_alarm():
    points = [
        dataclasses.replace(point, validation_metrics={"bits_per_byte": 8.0})
        for point in curve([0.5] * 8)
    ]
    assert at_chance(state(points, majority=None, metric="bits_per_byte")) is None


def test_the_console_tells_an_alarm_in_one_line():
    output = io.StringIO()
    callback = ConsoleCallback(Console(file=output, width=40))
    callback.on_run_begin(2, 3, tiny.experiment(seed=1))
    callback.on_alarm(Alarm(kind="chance", step=4, message="nothing [bold]learnt[/x] so far, 50 %"))
    assert output.getvalue().splitlines()[-1] == (
        "alarm: run 2/3  local on listops, seed 1: nothing [bold]learnt[/x] so far, 50 %"
    )
