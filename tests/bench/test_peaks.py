"""The process that measures peak memory: equal figures, whatever the process before it kept."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from longspan import memory
from longspan.arena.plugins import load_plugin
from longspan.bench.cases import Case
from longspan.bench.groups import call_of
from longspan.bench.peaks import PeakMeter
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
    with PeakMeter(CPU) as process:
        yield process


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
    assert peaks.measure(make) == pytest.approx(first, abs=MIB)
    call = make()
    call()
    with LiveTensorBytes() as live:
        call()  # counts the weights and inputs once they are used
        held = live.peak = live.current
        call()
    assert first == pytest.approx(live.peak - held, abs=2 * MIB)


def test_the_process_that_ends_is_out_of_memory_and_another_starts():
    with PeakMeter(CPU) as process:
        with pytest.raises(MemoryError, match="ended the process that measures memory"):
            process.measure(end_process)
        assert process.measure(leave_holes) > 90 * MIB


def test_a_script_without_guard_is_told_so(tmp_path):
    script = tmp_path / "measure.py"
    script.write_text(
        "from functools import partial\n"
        "import torch\n"
        "from longspan.bench.peaks import PeakMeter\n"
        "PeakMeter(torch.device('cpu')).measure(partial(partial, list))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 1
    assert 'must do so under `if __name__ == "__main__":`' in done.stderr


@pytest.mark.usefixtures("registries")
def test_one_process_starts_with_the_plugins_and_ends_with_the_context(tmp_path):
    path = tmp_path / "of_the_parent.py"
    path.write_text(PLUGIN)
    load_plugin(str(path))
    with PeakMeter(CPU) as process:
        assert process.executor is None
        assert process.measure(functools.partial(call_of, case_of("of_the_parent"), SIZES, CPU)) > 0
        (child,) = process.executor._processes.values()
    assert not child.is_alive()


def test_the_process_ends_with_a_parent_that_is_killed():
    program = """
import os, signal, torch
from functools import partial
from longspan.bench.peaks import PeakMeter
process = PeakMeter(torch.device("cpu"))
process.measure(partial(partial, list))
(child,) = process.executor._processes
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    child, end = Path(f"/proc/{int(done.stdout)}"), time.monotonic() + 60
    while child.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not child.exists()
