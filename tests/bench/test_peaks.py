"""The process that measures peak memory: equal figures, whatever the process before it kept."""

import functools
import multiprocessing
import os
import runpy
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from longspan import memory
from longspan.arena.plugins import load_plugin
from longspan.bench.cases import Case
from longspan.bench.groups import call_of
from longspan.bench.peaks import PeakMeter
from longspan.errors import RunError
from longspan.results.efficiency import Sizes
from longspan.training.footprint import LiveTensorBytes

MIB = 2**20
CPU = torch.device("cpu")
SIZES = Sizes(hidden_size=128, heads=2, intermediate_size=64, layers=1, vocab_size=20)
PLUGIN = """
from longspan.attention import register
from longspan.attention.mechanisms.full import FullAttention

@register("of_the_parent")
class OfTheParent(FullAttention):
    pass
"""

pytestmark = pytest.mark.skipif(
    not memory.CLEAR.exists(), reason="the kernel keeps no such count here"
)


@pytest.fixture(scope="module")
def peaks():
    """Meter whose process serves all tests: one takes seconds to start."""
    with PeakMeter(CPU) as meter:
        assert meter.executor is None
        yield meter


def case_of(mechanism, length=4_096):
    return Case(
        mechanism=mechanism,
        options={},
        scope="layer",
        work="training",
        length=length,
        batch_size=1,
        precision="float32",
        padding=0.0,
    )


def leave_holes():
    """Return a callable that frees blocks of different sizes below one that stays."""
    held = []

    def call():
        blocks = [torch.ones(n * MIB // 4) for n in (3, 48, 5, 30, 7)]
        held[:] = blocks[::2]

    return call


def end_process():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("mechanism", ["full", "reformer", "transformer_xl"])
def test_peaks_are_those_of_live_tensors_and_repeat(peaks, mechanism):
    make = functools.partial(call_of, case_of(mechanism), SIZES, CPU)
    first = peaks.measure(make)
    peaks.measure(leave_holes)
    assert peaks.measure(make) == pytest.approx(first, abs=2 * MIB)
    call = make()
    call()
    with LiveTensorBytes() as live:
        call()  # counts the weights and inputs once they are used
        held = live.peak = live.current
        call()
    assert first == pytest.approx(live.peak - held, abs=2 * MIB)


def test_a_script_without_guard_is_told_so(tmp_path):
    """Start a process while the script is imported; the child imports no more than it needs to."""
    script = tmp_path / "measure.py"
    script.write_text(
        "import multiprocessing\n"
        "from functools import partial\n"
        "if multiprocessing.current_process().name == 'MainProcess':\n"
        "    import torch\n"
        "    from longspan.bench.peaks import PeakMeter\n"
        "    PeakMeter(torch.device('cpu')).measure(partial(partial, list))\n"
        "multiprocessing.get_context('spawn').Process(target=list).start()\n"
    )
    with pytest.raises(RunError, match='must do so under `if __name__ == "__main__":`'):
        runpy.run_path(str(script), run_name="__main__")


def test_the_process_ends_with_the_context():
    with PeakMeter(CPU) as meter:
        # A fork has imported what takes seconds.
        context = multiprocessing.get_context("fork")
        meter.executor = ProcessPoolExecutor(1, mp_context=context)
        meter.executor.submit(os.getpid).result()
        (child,) = meter.executor._processes.values()
    assert not child.is_alive()


def measure_and_be_killed(meter, connection):
    connection.send(meter.measure(functools.partial(call_of, case_of("of_the_parent"), SIZES, CPU)))
    connection.send(meter.measure(leave_holes))
    connection.send(next(iter(meter.executor._processes)))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("registries")
def test_another_process_starts_with_the_plugins_and_ends_with_a_parent_that_is_killed(
    peaks, tmp_path
):
    with pytest.raises(MemoryError, match="ended the process that measures memory"):
        peaks.measure(end_process)
    path = tmp_path / "of_the_parent.py"
    path.write_text(PLUGIN)
    load_plugin(str(path))
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    parent = context.Process(target=measure_and_be_killed, args=(peaks, sender))
    parent.start()
    parent.join()
    assert parent.exitcode == -signal.SIGKILL
    assert receiver.recv() > 0
    assert receiver.recv() > 90 * MIB
    child, end = Path(f"/proc/{receiver.recv()}"), time.monotonic() + 60
    while child.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not child.exists()
