"""Learning rate schedules."""

import itertools
import math

import pytest
import torch
from transformers import get_polynomial_decay_schedule_with_warmup

from longspan.config import TrainingConfig
from longspan.training.schedule import compute_learning_rate

EXACT = {"rel": 1e-9, "abs": 1e-15}
SCHEDULES = ("linear", "cosine", "cubic", "rsqrt", "constant", "one_cycle")


def make_config(schedule, steps=100, warmup=10, learning_rate=1e-3):
    return TrainingConfig(
        steps=steps,
        batch_size=1,
        learning_rate=learning_rate,
        warmup_steps=warmup,
        schedule=schedule,
        evaluate_every=steps,
    )


def rates_of(config):
    return [compute_learning_rate(config, step) for step in range(config.steps)]


@pytest.mark.parametrize(("steps", "warmup"), [(100, 10), (5000, 1000), (7, 2), (20, 19), (30, 30)])
def test_one_cycle_equals_that_of_torch(steps, warmup):
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1.0)
    truth = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=1e-4,
        total_steps=steps,
        pct_start=warmup / steps,
        anneal_strategy="linear",
        div_factor=25,
        final_div_factor=1e4,
        cycle_momentum=False,
    )
    rates = []
    for step in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step + 1 < steps:
            truth.step()
    assert rates_of(make_config("one_cycle", steps, warmup, 1e-4)) == pytest.approx(rates, **EXACT)


def test_rsqrt_equals_rule_of_long_range_arena():
    config = make_config("rsqrt", steps=20_000, warmup=8_000, learning_rate=0.05)
    rates = rates_of(config)
    for step in (1, 2, 777, 7_999, 8_000, 8_001, 20_000):
        rule = 0.05 * min(1.0, step / 8_000) / math.sqrt(max(step, 8_000))
        assert rates[step - 1] == pytest.approx(rule, **EXACT)
    assert max(rates) == pytest.approx(5.59e-4, rel=1e-3)
    # A run shorter than its warmup never reaches the peak.
    assert rates[4_999] == pytest.approx(3.49e-4, rel=2e-3)


def test_cosine_is_half_cosine_after_warmup():
    rates = rates_of(make_config("cosine"))
    assert rates[9] == rates[10] == 1e-3
    assert rates[55] == pytest.approx(0.5e-3)
    assert 0 < rates[-1] < 1e-6
    steepest = max(range(10, 99), key=lambda step: rates[step] - rates[step + 1])
    assert steepest in (54, 55)


def test_constant_stays_at_peak():
    assert set(rates_of(make_config("constant"))[9:]) == {1e-3}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_rises_during_warmup_only(schedule):
    rates = rates_of(make_config(schedule))
    assert all(a < b for a, b in itertools.pairwise(rates[:10]))
    assert all(a >= b for a, b in itertools.pairwise(rates[9:]))
    assert min(rates) > 0


@pytest.mark.parametrize("schedule", [x for x in SCHEDULES if x != "one_cycle"])
def test_warmup_is_linear(schedule):
    rates = rates_of(make_config(schedule))
    assert [rate / rates[9] for rate in rates[:10]] == pytest.approx([n / 10 for n in range(1, 11)])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (5, 0), (5, 5), (5, 9)])
def test_short_runs_have_positive_rate_at_every_step(schedule, steps, warmup):
    rates = rates_of(make_config(schedule, steps, warmup))
    assert all(0 < rate <= 1e-3 for rate in rates)


@pytest.mark.parametrize("schedule", ["linear", "cubic"])
@pytest.mark.parametrize(("steps", "warmup"), [(100, 10), (7, 2), (10, 0)])
def test_polynomials_equal_those_of_transformers(schedule, steps, warmup):
    """Our steps count from 1, so that the first one has a learning rate; theirs from 0."""
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.AdamW([parameter], lr=1e-4)
    power = {"linear": 1, "cubic": 3}[schedule]
    truth = get_polynomial_decay_schedule_with_warmup(
        optimizer, warmup, steps, lr_end=0.0, power=power
    )
    rates = []
    for _ in range(steps):
        rates.append(truth.get_last_lr()[0])
        optimizer.step()
        truth.step()
    ours = rates_of(make_config(schedule, steps, warmup, 1e-4))
    assert ours[:warmup] == pytest.approx([*rates[1:warmup], 1e-4][:warmup], **EXACT)
    assert ours[warmup:] == pytest.approx(rates[warmup:], **EXACT)


def test_one_cycle_without_warmup_decreases_to_its_end():
    rates = rates_of(make_config("one_cycle", steps=10, warmup=0))
    assert all(a > b for a, b in itertools.pairwise(rates))
    assert rates[-1] == pytest.approx(1e-3 / 250_000)
