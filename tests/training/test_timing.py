"""Timing of training steps, with a fake clock."""

import pytest
import torch

import tiny
from longspan.arena.model import make_model
from longspan.bench import machine
from longspan.training import timing
from longspan.training.timing import TIMED_STEPS, WARMUP_STEPS, measure_step_seconds

CPU = torch.device("cpu")


class FakeTime:
    """Clock that each reading advances by the next duration of a list."""

    def __init__(self, durations):
        self.now, self.durations = 0.0, iter(durations)

    def perf_counter(self):
        now = self.now
        self.now += next(self.durations)
        return now


@pytest.fixture
def measure(listops, monkeypatch, tmp_path):
    """Function that measures steps of given durations."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(durations, **options):
        experiment = tiny.experiment()
        monkeypatch.setattr(timing, "time", FakeTime([*durations, 0.0]))
        model = make_model(experiment, listops)
        seconds = measure_step_seconds(
            model, listops, experiment.config.training, seed=0, device="cpu", **options
        )
        assert list(tmp_path.iterdir()) == [], "the scratch folder is removed"
        return seconds

    return run


def test_median_excludes_warmup_steps(measure):
    slow, steps = [50.0] * WARMUP_STEPS, [1.0, 9.0, 2.0, 3.0, 2.0, 2.5, 2.25, 8.0]
    assert len(steps) == TIMED_STEPS
    assert measure([*slow, *steps]) == (2.25 + 2.5) / 2


def test_patience_ends_timing_after_at_least_one_step(measure):
    assert measure([1.0, 1.0, 4.0, 6.0, 100.0], patience=10.0) == 5.0
    assert measure([100.0, 100.0, 7.0], patience=10.0) == 7.0


def test_timed_steps_limits_number_of_steps(measure):
    assert measure([1.0, 1.0, 3.0, 5.0], timed_steps=2) == 4.0


def test_configured_number_of_steps_is_ignored(measure):
    """Time more steps than the 12 of the tiny experiment."""
    assert measure([1.0] * (WARMUP_STEPS + 20), timed_steps=20) == 1.0


def test_matmul_rate_is_that_of_fastest_repetition(monkeypatch):
    durations = [x for seconds in (3.0, 0.5, 2.0, 2.0, 2.0, 2.0, 2.0) for x in (seconds, 0)]
    monkeypatch.setattr(timing, "time", FakeTime(durations))
    monkeypatch.setitem(timing.MATMUL_SIZES, "cpu", (16,))
    assert timing.measure_matmul_rate(CPU) == 2 * 16**3 / 0.5


def test_matmul_rate_is_that_of_the_fastest_size(monkeypatch):
    monkeypatch.setitem(timing.MATMUL_SIZES, "cpu", (8, 16, 32))
    dtypes, seconds = [], {8: 1.0, 16: 2.0, 32: 64.0}

    def timed(call, device):
        a = call.__closure__[0].cell_contents
        dtypes.append(a.dtype)
        return seconds[len(a)]

    monkeypatch.setattr(timing, "time_call", timed)
    rate = timing.measure_matmul_rate(CPU, torch.bfloat16)
    assert rate == 2 * 16**3 / 2.0
    assert set(dtypes) == {torch.bfloat16}


def test_limits_hold_the_rate_of_products(monkeypatch):
    given = []
    monkeypatch.setattr(machine, "COPIED", 2**10)
    monkeypatch.setattr(machine, "measure_matmul_rate", lambda *x: given.append(x) or 5.0)
    made = machine.measure_limits(torch.float16, CPU)
    assert (made.flops_per_second, given) == (5.0, [(CPU, torch.float16)])
    assert made.bytes_per_second > 0
