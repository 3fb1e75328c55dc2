"""Timing of training steps, with a clock that the test controls."""

import pytest

import tiny
from longspan.arena.model import make_model
from longspan.training import timing
from longspan.training.timing import TIMED_STEPS, WARMUP_STEPS, measure_step_seconds


class Time:
    """A clock that each reading moves by the next duration of a list."""

    def __init__(self, durations):
        self.now, self.durations = 0.0, iter(durations)

    def perf_counter(self):
        now = self.now
        self.now += next(self.durations)
        return now


@pytest.fixture
def timed(listops, monkeypatch, tmp_path):
    """Time steps of given durations."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(durations, **options):
        experiment = tiny.experiment()
        monkeypatch.setattr(timing, "time", Time([*durations, 0.0]))
        model = make_model(experiment, listops)
        seconds = measure_step_seconds(
            model, listops, experiment.config.training, seed=0, device="cpu", **options
        )
        assert list(tmp_path.iterdir()) == [], "the scratch folder is removed"
        return seconds

    return run


def test_the_median_excludes_warmup_steps(timed):
    slow, steps = [50.0] * WARMUP_STEPS, [1.0, 9.0, 2.0, 3.0, 2.0, 2.5, 2.25, 8.0]
    assert len(steps) == TIMED_STEPS
    assert timed([*slow, *steps]) == (2.25 + 2.5) / 2


def test_patience_ends_the_timing_after_one_step_at_least(timed):
    assert timed([1.0, 1.0, 4.0, 6.0, 100.0], patience=10.0) == 5.0
    assert timed([100.0, 100.0, 7.0], patience=10.0) == 7.0


def test_the_number_of_timed_steps(timed):
    assert timed([1.0, 1.0, 3.0, 5.0], timed_steps=2) == 4.0


def test_the_number_of_steps_of_the_configuration_is_ignored(timed):
    """The tiny experiment has 12 steps, and evaluations after 4."""
    assert timed([1.0] * (WARMUP_STEPS + 20), timed_steps=20) == 1.0


def test_the_matmul_rate_is_operations_per_second_of_the_best_trial(monkeypatch):
    import torch

    monkeypatch.setattr(timing, "time", Time([3.0, 0, 0.5, 0, 2.0, 0, 2.0, 0, 2.0, 0]))
    assert timing.measure_matmul_rate(torch.device("cpu")) == 2 * 1024**3 / 0.5
