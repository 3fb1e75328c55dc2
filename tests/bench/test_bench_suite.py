"""Suites: what is interleaved, what memory forbids, records and what they say."""

import contextlib
import dataclasses
import math
import weakref

import pytest
import torch

from longspan.bench import Suite, Timing, groups, run_suite
from longspan.bench import suite as suite_module
from longspan.bench.cases import IDENTITY
from longspan.bench.memory import MemoryEstimate
from longspan.bench.peaks import PeakMeter
from longspan.bench.suite import default_path
from longspan.bench.suites import SUITES, change_suite
from longspan.errors import DataError, OptionError, RunError, UnknownNameError
from longspan.report.tables.efficiency import (
    crossing_length,
    exponent,
    memory_over_baseline,
    over_baseline,
)
from longspan.results import load_efficiency, save_efficiency
from longspan.results.efficiency import Limits, Measurement, Sizes, efficiency_paths

pytestmark = pytest.mark.usefixtures("frozen_heap", "fixed_peaks")

CPU = torch.device("cpu")
SIZES = Sizes(hidden_size=32, heads=2, intermediate_size=48, layers=1, vocab_size=20)
TINY = Suite(
    name="tiny", mechanisms=("full", "local"), lengths=(16, 32), tokens=64, sizes=SIZES, runs=2
)


@pytest.fixture(autouse=True)
def quick_limits(monkeypatch):
    """Do not measure the machine: a large product takes longer than these suites."""
    made = Limits(flops_per_second=1e9, bytes_per_second=1e9)
    monkeypatch.setattr(suite_module, "measure_limits", lambda dtype, device: made)


def test_cases_of_a_shape_are_interleaved(monkeypatch):
    calls = []

    def workload_of(case, sizes, device):
        made = real(case, sizes, device)
        if device_is_real():
            return dataclasses.replace(
                made, call=lambda: calls.append((case.length, case.mechanism))
            )
        return made

    def device_is_real():
        return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None

    real = groups.make_workload
    monkeypatch.setattr(groups, "make_workload", workload_of)
    record = run_suite(TINY, CPU)
    both = ["full", "local"]
    # Each warms up and its operations are counted; then both run interleaved, once untimed and
    # twice timed.
    order = ["full"] * 2 + ["local"] * 2 + both * 3
    expected = [(n, name) for n in (16, 32) for name in order]
    assert calls == expected
    assert [(x.length, x.batch_size) for x in record.measurements] == [
        (16, 4), (16, 4), (32, 2), (32, 2)
    ]  # fmt: skip
    assert {x.runs for x in record.measurements} == {2}


def test_measurements_hold_time_memory_and_work():
    seen = []
    record = run_suite(TINY, CPU, on_measurement=seen.append)
    assert seen == record.measurements
    for one in seen:
        assert one.state == "measured"
        assert 0 < one.minimum <= one.median <= one.maximum
        assert one.executed_flops >= one.flops * 0.9
        assert one.useful == pytest.approx(one.least_seconds / one.median)
        assert one.tokens_per_second == pytest.approx(64 / one.median)
    assert record.threads == torch.get_num_threads()
    assert record.options == {"full": {}, "local": {}}


def test_too_large_cases_are_recorded_and_never_run(monkeypatch):
    limit = 10**6
    monkeypatch.setattr(groups, "free_memory", lambda device: limit)
    suite = dataclasses.replace(TINY, mechanisms=("full",), lengths=(16, 4_096, 8_192), tokens=16)
    real, built = groups.make_workload, []

    def watched(case, sizes, device):
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None:
            built.append(case.length)
        return real(case, sizes, device)

    monkeypatch.setattr(groups, "make_workload", watched)
    small, large, larger = run_suite(suite, CPU).measurements
    assert built == [16]
    assert (small.state, large.state, larger.state) == ("measured", *["out of memory"] * 2)
    assert large.estimated_memory > limit
    assert "needs" in large.reason
    assert larger.reason == "so are 4,096 tokens"
    assert large.useful is None


THREE = ("full", "local", "linear")


def live_workloads(monkeypatch):
    """Return the names of built workloads with the numbers of those in memory, and the calls."""
    real, alive, built, called = groups.make_workload, weakref.WeakSet(), [], []

    class Held:
        """Weights of a workload, which its call holds."""

    def watched(case, sizes, device):
        made = real(case, sizes, device)
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return made
        held = Held()
        alive.add(held)
        built.append((case.mechanism, len(alive)))

        def call(held=held):
            called.append(case.mechanism)
            return made.call()

        return dataclasses.replace(made, call=call)

    monkeypatch.setattr(groups, "make_workload", watched)
    return built, called


def test_workloads_that_do_not_fit_together_are_held_one_at_a_time(monkeypatch):
    suite = dataclasses.replace(TINY, mechanisms=THREE, lengths=(16,))
    (case, *_), *_ = suite.groups()
    one = groups.estimate_memory(lambda: groups.make_workload(case, SIZES, CPU))
    assert 0 < one.held < one.peak
    built, called = live_workloads(monkeypatch)
    together = run_suite(suite, CPU)
    assert built == [("full", 1), ("local", 2), ("linear", 3)]
    assert called[-6:] == [*THREE, *THREE]
    built.clear()
    called.clear()
    # Each fits alone.
    largest = max(x.estimated_memory for x in together.measurements)
    monkeypatch.setattr(groups, "free_memory", lambda device: largest)
    apart = run_suite(suite, CPU)
    assert built == [(name, 1) for name in (*THREE, *THREE)]
    # Each is warmed up and timed twice; before the first time, operations are counted.
    assert called == [name for n in (3, 2) for name in THREE for _ in range(n)]
    kept = ("mechanism", "state", "runs", "flops", "executed_flops", "estimated_memory", "backend")
    pairs = zip(together.measurements, apart.measurements, strict=True)
    assert all(getattr(a, x) == getattr(b, x) for a, b in pairs for x in kept)


@pytest.mark.parametrize(("times", "is_mapped"), [(1, True), (4, False)])
def test_shapes_that_could_fill_the_machine_keep_no_freed_memory(monkeypatch, times, is_mapped):
    suite = dataclasses.replace(TINY, mechanisms=THREE, lengths=(16,))
    largest = max(x.estimated_memory for x in run_suite(suite, CPU).measurements)
    entered = []

    @contextlib.contextmanager
    def mapped():
        entered.append(True)
        yield

    monkeypatch.setattr(groups, "fit_together", lambda *_: False)
    monkeypatch.setattr(groups, "map_large_blocks", mapped)
    monkeypatch.setattr(groups, "free_memory", lambda device: times * largest)
    found = run_suite(suite, CPU).measurements
    assert {x.state for x in found} == {"measured"}
    assert entered == [True] * is_mapped


def test_workloads_fit_together_if_the_largest_runs_beside_the_others():
    estimates = [MemoryEstimate(peak=10, held=4), MemoryEstimate(peak=8, held=1)]
    # The first needs 10 bytes in the process that measures memory, beside the 5 that both hold.
    assert groups.fit_together(estimates, 15)
    assert not groups.fit_together(estimates, 14)
    assert groups.fit_together(estimates[:1], 1), "whether it fits alone was decided before"
    assert groups.fit_together(estimates, None)
    assert not groups.fit_together([estimates[0], None], 100)


def test_memory_that_ends_while_workloads_are_held_is_tried_one_at_a_time(monkeypatch):
    def fail(calls, peaks, *, runs, device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    built, _ = live_workloads(monkeypatch)
    monkeypatch.setattr(groups, "time_interleaved", fail)
    suite = dataclasses.replace(TINY, mechanisms=THREE, lengths=(16,))
    assert {x.state for x in run_suite(suite, CPU).measurements} == {"measured"}
    assert built[3:] == [(name, 1) for name in (*THREE, *THREE)]


def test_slow_mechanisms_are_not_tried_at_longer_lengths(monkeypatch):
    def timed(calls, peaks, *, runs, device):
        calls = {name: call() for name, call in calls.items()}
        timing = Timing(median=2.0, minimum=1.0, maximum=3.0, runs=runs, peak_memory=None)
        return dict.fromkeys(calls, timing)

    monkeypatch.setattr(groups, "time_interleaved", timed)
    suite = dataclasses.replace(
        TINY, mechanisms=("full",), lengths=(16, 24, 64, 128), batch_size=1, max_seconds=4.0
    )
    found = run_suite(suite, CPU).measurements
    # 24 tokens would take 3 s, 64 tokens more than 5 s.
    assert [x.state for x in found] == ["measured", "measured", "too slow", "too slow"]
    assert found[2].reason == "24 tokens took 2.0 s, the limit is 4 s"
    assert found[3].reason == "so are 64 tokens"


def test_suites_that_differ_have_records_of_their_own(tmp_path):
    changes = ({}, {"lengths": (16,)}, {"precisions": ("bfloat16",)}, {"mechanisms": ("full",)})
    suites = [dataclasses.replace(TINY, **x) for x in changes]
    suites.append(change_suite(TINY, {"layers": 2}))
    paths = {default_path(tmp_path, suite, CPU) for suite in suites}
    assert len(paths) == len(suites)
    assert default_path(tmp_path, dataclasses.replace(TINY), CPU) in paths


def test_the_record_so_far_survives_an_interruption(monkeypatch):
    saved, real = [], groups.make_workload

    def interrupted(case, sizes, device):
        if case.length == 32:
            raise KeyboardInterrupt
        return real(case, sizes, device)

    monkeypatch.setattr(groups, "make_workload", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_suite(TINY, CPU, save=saved.append)
    (record,) = saved
    assert [x.length for x in record.measurements] == [16, 16]


def test_a_mechanism_that_refuses_does_not_end_the_suite(monkeypatch):
    real = groups.make_workload

    def refusing(case, sizes, device):
        if case.mechanism == "local":
            raise OptionError("local: too short\nsecond line")
        return real(case, sizes, device)

    monkeypatch.setattr(groups, "make_workload", refusing)
    monkeypatch.setattr(groups, "estimate_memory", lambda make: None)
    found = {(x.mechanism, x.state, x.reason) for x in run_suite(TINY, CPU).measurements}
    assert found == {("full", "measured", None), ("local", "refused", "local: too short")}


def test_memory_that_ends_in_a_run_is_a_result(monkeypatch):
    def fail(self, make):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 1 byte")

    monkeypatch.setattr(PeakMeter, "measure", fail)
    found = run_suite(TINY, CPU).measurements
    assert {x.state for x in found} == {"out of memory"}

    def break_down(self, make):
        raise RuntimeError("sizes must match")

    monkeypatch.setattr(PeakMeter, "measure", break_down)
    with pytest.raises(RuntimeError, match="sizes must match"):
        run_suite(TINY, CPU)


def test_a_process_that_does_not_start_ends_the_suite(monkeypatch):
    def fail(self, make):
        raise RunError("the process that measures memory did not start")

    monkeypatch.setattr(PeakMeter, "measure", fail)
    with pytest.raises(RunError, match="did not start"):
        run_suite(TINY, CPU)


def test_mechanisms_without_a_causal_form_are_refused_in_decoding():
    suite = dataclasses.replace(
        TINY, mechanisms=("full", "linformer", IDENTITY), works=("decoding",)
    )
    states = {x.mechanism: x.state for x in run_suite(suite, CPU).measurements}
    assert states == {"full": "measured", "linformer": "refused", IDENTITY: "refused"}


def test_implementations_of_a_mechanism_are_cases_of_their_own():
    rows = ("full", "local:torch", "local:diagonals", "local:varlen")
    suite = dataclasses.replace(
        TINY, mechanisms=rows, options=lambda name, _: {"window": 3} if name == "local" else {}
    )
    record = run_suite(suite, CPU)
    found = {(x.mechanism, x.length): x for x in record.measurements}
    assert set(found) == {(row, length) for row in rows for length in (16, 32)}
    for length in (16, 32):
        bodies = [found[row, length] for row in rows[1:3]]
        assert [x.backend for x in bodies] == ["torch", "diagonals"]
        assert bodies[0].flops == bodies[1].flops
        refused = found["local:varlen", length]
        assert refused.state == "refused"
        assert "device must be cuda, got cpu" in refused.reason
    assert record.options["local:torch"] == {"window": 3}


def test_kernels_that_torch_cannot_count_have_no_executed_operations(monkeypatch):
    monkeypatch.setattr(groups, "UNCOUNTED", ("diagonals",))
    suite = dataclasses.replace(TINY, mechanisms=("local:diagonals",), lengths=(16,))
    (one,) = run_suite(suite, CPU).measurements
    assert one.executed_flops is None
    assert one.least_seconds > 0


@pytest.mark.parametrize("name", SUITES)
def test_every_named_suite_runs(name):
    small = {
        "hidden_size": 32, "heads": 2, "intermediate_size": 48, "layers": 1, "lengths": (96,),
        "batch_size": 1, "runs": 1,
    }  # fmt: skip
    suite = change_suite(SUITES[name](), small)
    # A compiled kernel takes half a minute, and cannot be traced with the types of the tests.
    names = [x for x in suite.mechanisms if not x.endswith(":flex")]
    suite = dataclasses.replace(suite, mechanisms=(*names[:1], *names[-3:]))
    record = run_suite(suite, CPU)
    assert all(x.state != "out of memory" for x in record.measurements)
    assert len(record.measurements) == sum(map(len, suite.groups()))


def test_repeated_values_are_measured_once():
    once = Suite(name="x", mechanisms=("full", "local"), lengths=(64, 128))
    twice = Suite(
        name="x", mechanisms=("full", "local", "full"), lengths=(128, 64, 128),
        works=("training",) * 2,
    )  # fmt: skip
    assert [*twice.groups()] == [*once.groups()]


def test_changes_keep_the_rest_of_a_suite():
    suite = change_suite(SUITES["lra-speed"](), {"tokens": 64, "layers": 1, "runs": None})
    assert (suite.batch_size, suite.tokens, suite.sizes.layers, suite.runs) == (None, 64, 1, 3)
    assert suite.sizes.hidden_size == SUITES["lra-speed"]().sizes.hidden_size
    assert suite.options("linformer", 1_000)["rank"] > 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mechanisms": ("locl",)}, UnknownNameError, "did you mean local?"),
        ({"mechanisms": ("local:tirch",)}, UnknownNameError, "did you mean torch?"),
        ({"mechanisms": ("identity:torch",)}, UnknownNameError, "no backend of 'identity'"),
        ({"scopes": ("layers",)}, UnknownNameError, "did you mean layer?"),
        ({"works": ("train",)}, UnknownNameError, "no pass called 'train'"),
        ({"precisions": ("fp32",)}, UnknownNameError, "no dtype called 'fp32'"),
        ({"lengths": (0, 4)}, OptionError, "lengths must be at least 1, got 0"),
        ({"runs": 0}, OptionError, "runs must be at least 1, got 0"),
        ({"max_seconds": 0.0}, OptionError, "max_seconds must be above 0"),
        ({"padding": 1.0}, OptionError, "padding must be at least 0 and below 1"),
        ({"heads": 3}, OptionError, "heads"),
    ],
)
def test_invalid_suites_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        change_suite(TINY, changes)


def test_records_are_read_as_written(tmp_path):
    record = run_suite(TINY, CPU)
    path = default_path(tmp_path, TINY, CPU)
    save_efficiency(record, path)
    assert load_efficiency(path) == record
    assert efficiency_paths([tmp_path]) == [path]
    path.write_text('{"schema": 9}')
    with pytest.raises(DataError, match="measure again with `longspan bench`"):
        load_efficiency(path)
    path.write_text(path.read_text().replace("9", "1"))
    with pytest.raises(DataError):
        load_efficiency(path)


def measurement(mechanism, length, seconds, **changes):
    fields = {
        "scope": "layer", "work": "training", "batch_size": 1, "precision": "float32",
        "padding": 0.0, "state": "measured", "minimum": seconds, "maximum": seconds,
    }  # fmt: skip
    return Measurement(mechanism=mechanism, length=length, median=seconds, **{**fields, **changes})


def test_summaries_of_known_laws():
    lengths = (256, 1_024, 4_096, 16_384)
    full = [measurement("full", n, n**2 / 1e6, peak_memory=100) for n in lengths]
    own = [measurement("linear", n, 1_000 * n / 1e6, peak_memory=50) for n in lengths]
    assert exponent(full) == pytest.approx(2)
    assert exponent(own) == pytest.approx(1)
    assert crossing_length(own, full) == pytest.approx(1_000)
    assert crossing_length(own[:1], full) == math.inf
    assert crossing_length(own[2:], full) == 0
    assert crossing_length([], full) is None
    assert exponent(own[:2]) is None
    assert over_baseline(own[2], full + own) == pytest.approx(4.096)
    assert memory_over_baseline(own[2], full + own) == 0.5
    assert over_baseline(own[2], own) is None
    # Rows of a batch are one of several: the time of a row counts.
    batched = [dataclasses.replace(x, batch_size=2, median=2 * x.median) for x in own]
    assert crossing_length(batched, full) == pytest.approx(1_000)
