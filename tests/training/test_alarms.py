"""Alarms on synthetic curves and on a run that does not learn."""

import dataclasses
import io

import pytest
from rich.console import Console

import tiny
from longspan.arena.console import ConsoleCallback
from longspan.config import TrainingConfig
from longspan.metrics import get_metric
from longspan.results import Alarm, Point, Score
from longspan.training import Callback
from longspan.training.alarms import at_chance, diverging, raise_alarms, waiting_for_data
from longspan.training.progress import Progress

CONFIG = TrainingConfig(
    steps=1_000,
    batch_size=32,
    learning_rate=5e-4,
    warmup_steps=100,
    schedule="linear",
    evaluate_every=50,
)


def curve(accuracies=(), losses=(), every=50):
    """Return points at equal step intervals; omitted values are constant."""
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


def state(points, *, majority=0.5, examples=2_000, config=CONFIG, metric="accuracy"):
    """Return recipe, metric, curve and validation scores of a run."""
    score = Score(
        metrics={metric: 0.5},
        loss=1.0,
        num_examples=examples,
        num_targets=examples,
        majority_baseline=majority,
    )
    return config, get_metric(metric), points, score


def alarms_of(accuracies=(), losses=(), **changes):
    """Return the alarms of a curve that grows point by point, as (kind, step)."""
    points, progress = curve(accuracies, losses), Progress(seconds=100.0)
    for n in range(1, len(points) + 1):
        new = raise_alarms(*state(points[:n], **changes), progress)
        progress.alarms += map(dataclasses.asdict, new)
    return [(alarm["kind"], alarm["step"]) for alarm in progress.alarms]


def test_chance_alarm_is_raised_once_after_a_third_of_steps():
    at_half = [0.497, 0.503, 0.5, 0.5, 0.51, 0.499, 0.5] * 3
    assert alarms_of(at_half[:20]) == [("chance", 350)]


def test_chance_message_states_problem_and_remedies():
    assert at_chance(*state(curve([0.5] * 8))) == (
        "validation accuracy is 50.0 % after 400 of 1,000 steps, no better than always predicting "
        "the most frequent class (50.0 %, with noise up to 52.2 %); some runs leave chance late, "
        "others need another learning rate (now 0.0005), a longer warmup (now 100 steps) or "
        "another seed"
    )


def test_chance_interval_is_binomial():
    """Test the bounds: 1.96 * sqrt(2,000 / 4) = 43.8 correct examples around 1,000 of 2,000."""
    assert at_chance(*state(curve([1_043 / 2_000] * 8)))
    assert not at_chance(*state(curve([1_044 / 2_000] * 8)))
    # 1.96 * sqrt(2,000 * 0.9 * 0.1) = 26.3 of 1,800
    assert at_chance(*state(curve([1_826 / 2_000] * 8), majority=0.9))
    assert not at_chance(*state(curve([1_827 / 2_000] * 8), majority=0.9))
    # With a tenth of the examples, the same accuracy is within noise.
    assert at_chance(*state(curve([1_044 / 2_000] * 8), examples=200))


@pytest.mark.parametrize(
    ("accuracies", "majority", "expected"),
    [
        # ListOps under lra-small: the majority class for a seventh of the steps, then 35 %.
        ([0.174, 0.176, *([0.33, 0.35, 0.36] * 6)], 0.174, []),
        ([*[0.17] * 7, 0.31, *[0.35] * 12], 0.174, [("chance", 350)]),
        ([*[0.5] * 5, 0.56, 0.5, 0.56, 0.5, 0.56, 0.6, 0.6], 0.5, []),
        ([0.9] * 8, 0.9, [("chance", 350)]),
        ([0.6] * 8, 0.9, [("chance", 350)]),
        ([0.6] * 8, 0.5, []),
    ],
    ids=["leaves early", "leaves late", "above at times", "at majority", "below", "above"],
)
def test_chance_is_that_of_the_majority_class(accuracies, majority, expected):
    assert alarms_of(accuracies, majority=majority) == expected


def test_chance_alarm_is_raised_after_a_third_of_the_steps_of_a_stage():
    """A stage that began late had an alarm at its third evaluation."""
    points = curve([0.5] * 16)[12:]
    assert at_chance(*state(points)) is not None
    assert at_chance(*state(points), first_step=640) is not None
    assert at_chance(*state(points[:3]), first_step=640) is None


def test_chance_alarm_requires_three_evaluations():
    config = dataclasses.replace(CONFIG, steps=100)
    assert not at_chance(*state(curve([0.5] * 2), config=config))
    assert at_chance(*state(curve([0.5] * 3), config=config))


def test_lasting_loss_increase_raises_one_alarm():
    # A window of 1,000 examples is 31.25 steps, so that each point is one window.
    losses = [2.3, 1.5, 1.0, 1.2, 1.6, 1.7, 2.0, 2.4, 3.0]
    assert alarms_of(losses=losses) == [("diverging", 300)]
    assert diverging(*state(curve(losses=losses[:6]))[:3]) == (
        "the training loss has risen to 1.70 nats from 1.00 nats at step 150; lower the learning "
        "rate (now 0.0005), lengthen the warmup (now 100 steps) or clip gradients "
        "(training.max_grad_norm)"
    )


@pytest.mark.parametrize(
    "losses",
    [
        [2.3, 2.0, 1.5, 1.2, 1.0, 0.9],  # falls
        [2.3, 1.0, 1.7, 1.0, 1.7, 1.0],  # single windows above
        [2.3, 1.0, 1.4, 1.45, 1.49, 1.5],  # less than half a nat
        [8.0, 6.0, 6.6, 7.0, 8.5, 8.9],  # more than half a nat, less than 50 %
        [0.01, 0.3, 0.4, 0.5, 0.45, 0.5],  # fifty times a small loss, by less than half a nat
        [9.0, 9.0],  # no earlier minimum
    ],
    ids=["falls", "spike", "little", "share", "small", "start"],
)
def test_no_alarm_without_divergence(losses):
    assert alarms_of(losses=losses) == []


def test_divergence_alarm_averages_evaluations_of_few_examples():
    """Use batches of 4, with noisy evaluations whose mean over 2,000 examples is constant."""
    config = dataclasses.replace(CONFIG, batch_size=4)
    jumps = [1.0, 0.2, 1.8, 1.9, 0.3, 1.7, 1.9, 0.1, 1.2, 0.5] * 2
    assert alarms_of(losses=jumps, config=config) == []
    assert alarms_of(losses=jumps) != []
    rises = [*[1.0] * 10, *[1.8] * 10]
    assert alarms_of(losses=rises, config=config) == [("diverging", 1_000)]


def test_steps_before_a_stage_are_no_part_of_its_first_window():
    """The first evaluation of a later stage was a window by itself, however few its examples."""
    config = dataclasses.replace(CONFIG, batch_size=4)
    noisy = curve(losses=[0.1, 1.2, 1.2, 1.2, 1.3] * 3)
    later = [dataclasses.replace(point, step=point.step + 600) for point in noisy]
    assert diverging(*state(noisy, config=config)[:3]) is None
    assert diverging(*state(later, config=config)[:3], first_step=600) is None
    assert diverging(*state(later, config=config)[:3]) is not None


def test_data_wait_is_counted_after_first_evaluation():
    def message(waited, seconds=110.0, **warm):
        progress = Progress(seconds=seconds, data_wait_seconds=waited, **warm)
        return waiting_for_data(progress, 50)

    warm = {"warm_seconds": 10.0, "warm_data_wait_seconds": 8.0}
    assert message(18.0, **warm) is None
    assert message(18.1, **warm) == (
        "10.1 % of the training time since step 50 was spent waiting for data; put --cache on a "
        "local disk, or give the run more processor cores"
    )
    # Short runs raise no alarm.
    assert message(9.0, seconds=10.0) is None
    assert message(9.0, seconds=9.0) is None


@pytest.mark.parametrize("raised", [(), ("diverging",), ("chance", "diverging", "waiting")])
def test_each_kind_of_alarm_is_raised_once(raised):
    now = state(curve([0.5] * 8, [2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 3.0]))
    alarms = [{"kind": kind} for kind in raised]
    progress = Progress(seconds=100.0, data_wait_seconds=50.0, alarms=alarms)
    kinds = [x for x in ("chance", "diverging", "waiting") if x not in raised]
    assert [alarm.kind for alarm in raise_alarms(*now, progress)] == kinds


class AlarmLog(Callback):
    """Callback that logs alarms and raises KeyboardInterrupt at a step."""

    def __init__(self, stop=None):
        self.alarms, self.stop = [], stop

    def on_step(self, step, loss, tokens, seconds):
        if step == self.stop:
            raise KeyboardInterrupt

    def on_alarm(self, alarm):
        self.alarms.append(alarm)


# The learning rate is too small to change the weights.
NO_LEARNING = {"training.learning_rate": 1e-12, "training.steps": 40}


@pytest.fixture
def train_without_learning(listops, tmp_path):
    experiment = tiny.experiment(changes=NO_LEARNING)
    return lambda callback: tiny.train(experiment, listops, tmp_path, callback)


def test_run_without_learning_raises_alarm_and_finishes(train_without_learning):
    log = AlarmLog()
    outcome = train_without_learning(log)
    assert outcome.alarms == log.alarms
    assert [(alarm.kind, alarm.step) for alarm in log.alarms] == [("chance", 16)]
    assert outcome.steps == 40


def test_alarm_survives_interruption_and_is_raised_once(train_without_learning):
    first, second = AlarmLog(stop=30), AlarmLog()
    with pytest.raises(KeyboardInterrupt):
        train_without_learning(first)
    outcome = train_without_learning(second)
    assert [alarm.step for alarm in first.alarms] == [16]
    assert second.alarms == []
    assert outcome.alarms == first.alarms


def test_metrics_without_majority_baseline_raise_no_chance_alarm():
    points = [
        dataclasses.replace(point, validation_metrics={"bits_per_byte": 8.0})
        for point in curve([0.5] * 8)
    ]
    assert at_chance(*state(points, majority=None, metric="bits_per_byte")) is None


def test_console_prints_alarm_in_single_line():
    output = io.StringIO()
    callback = ConsoleCallback(Console(file=output, width=40))
    callback.on_run_begin(2, 3, tiny.experiment(seed=1))
    callback.for_run(2).on_alarm(
        Alarm(kind="chance", step=4, message="nothing [bold]learnt[/x] so far, 50 %")
    )
    assert output.getvalue().splitlines()[-1] == (
        "alarm: run 2/3  local on listops, seed 1: nothing [bold]learnt[/x] so far, 50 %"
    )
