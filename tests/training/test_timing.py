"""Seconds of a step: what is counted and what is not, by a clock that the test moves."""

import pytest

import tiny
from longspan.arena.model import make_model
from longspan.training import timing
from longspan.training.timing import COUNTED, WARM, measure_step_seconds


class Time:
    """Each look at the clock is one look further down a list of times."""

    def __init__(self, durations):
        self.now, self.durations = 0.0, iter(durations)

    def perf_counter(self):
        now = self.now
        self.now += next(self.durations)
        return now


@pytest.fixture
def timed(listops, monkeypatch, tmp_path):
    """Time steps that last as long as the test says; also how many there were."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(durations, **options):
        experiment = tiny.experiment()
        monkeypatch.setattr(timing, "time", Time([*durations, 0.0]))
        model = make_model(experiment, listops)
        found = measure_step_seconds(
            model, listops, experiment.train, seed=0, device="cpu", **options
        )
        assert list(tmp_path.iterdir()) == [], "the scratch folder is gone"
        return found

    return run


def test_the_median_of_what_comes_after_the_warm_up(timed):
    slow, steps = [50.0] * WARM, [1.0, 9.0, 2.0, 3.0, 2.0, 2.5, 2.25, 8.0]
    assert len(steps) == COUNTED
    assert timed([*slow, *steps]) == (2.25 + 2.5) / 2


def test_patience_ends_it_early_but_never_without_a_step(timed):
    assert timed([1.0, 1.0, 4.0, 6.0, 100.0], patience=10.0) == 5.0
    assert timed([100.0, 100.0, 7.0], patience=10.0) == 7.0


def test_as_many_steps_as_asked_for(timed):
    assert timed([1.0, 1.0, 3.0, 5.0], counted=2) == 4.0


def test_a_run_of_few_steps_is_timed_beyond_its_end(timed):
    """The tiny experiment has 12 steps, and evaluations after 4."""
    assert timed([1.0] * (WARM + 20), counted=20) == 1.0


def test_a_rate_is_operations_by_seconds(monkeypatch):
    import torch

    monkeypatch.setattr(timing, "time", Time([3.0, 0, 0.5, 0, 2.0, 0, 2.0, 0, 2.0, 0]))
    assert timing.measure_matmul_rate(torch.device("cpu")) == 2 * 1024**3 / 0.5
