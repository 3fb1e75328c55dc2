"""Time of calls, training steps and matrix products, measured on this machine."""

import contextlib
import dataclasses
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel

from longspan.config import TrainingConfig
from longspan.tasks.base import Task
from longspan.training.callbacks import Callback
from longspan.training.fitting import fit

WARMUP_STEPS, TIMED_STEPS = 2, 8
_UNREACHED_STEP = 10**9
# Rows and columns of the matrices; on a GPU small products do not fill the device.
MATMUL_SIZES = {"cpu": (2048,), "cuda": (2048, 4096, 8192)}
_MATMUL_REPEATS = {"cpu": 1, "cuda": 10}  # products in a timed call, of which each is launched
_MATMUL_TRIALS = 7


class _TimingDone(Exception):
    """Raised to end the training after enough steps."""


class _StepTimer(Callback):
    """Records when steps end, and stops the training after enough of them."""

    def __init__(self, timed_steps: int, patience: float | None):
        self.timed_steps, self.patience = timed_steps, patience
        self.started = time.perf_counter()
        self.ends: list[float] = []

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        # Reading the loss waits until the device has finished the step.
        loss.item()
        self.ends.append(time.perf_counter())
        is_late = self.patience is not None and self.ends[-1] - self.started > self.patience
        done = len(self.ends) - WARMUP_STEPS
        if done >= self.timed_steps or (is_late and done > 0):
            raise _TimingDone

    def median(self) -> float:
        ends = self.ends[WARMUP_STEPS - 1 :]
        return statistics.median(b - a for a, b in itertools.pairwise(ends))


def measure_step_seconds(
    model: PreTrainedModel,
    task: Task,
    config: TrainingConfig,
    *,
    seed: int,
    device: str | None = None,
    timed_steps: int = TIMED_STEPS,
    patience: float | None = None,
) -> float:
    """Return the median time of a training step: data, forward, backward, optimizer.

    Args:
        model: model to train; its weights change.
        task: an open task.
        config: training configuration; its number of steps is ignored.
        seed: seed of the batches, which are the first ones of a run with this seed.
        device: device, as in `fit`.
        timed_steps: number of steps to time, after two warmup steps.
        patience: seconds after which fewer timed steps are enough, but at least one.

    Raises:
        OptionError, RunError: as in `fit`.
    """
    endless = dataclasses.replace(
        config,
        steps=_UNREACHED_STEP,
        evaluate_every=_UNREACHED_STEP,
        checkpoint_every=_UNREACHED_STEP,
    )
    timer = _StepTimer(timed_steps, patience)
    with (
        tempfile.TemporaryDirectory(prefix="longspan-") as scratch,
        contextlib.suppress(_TimingDone),
    ):
        folder = Path(scratch)
        fit(model, task, endless, seed=seed, folder=folder, device=device, callback=timer)
    return timer.median()


def time_call(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call: by the device's own clock on CUDA, else by that of the wall.

    On CUDA the clock runs between two events, so it includes the time in which the device waits for
    the host to launch the next kernel.
    """
    if device.type != "cuda":
        started = time.perf_counter()
        call()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1_000


def measure_matmul_rate(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """Return the best FLOP/s of large square matrix products on a device, of several sizes."""
    return max(_matmul_rate(n, device, dtype) for n in MATMUL_SIZES[device.type])


def _matmul_rate(size: int, device: torch.device, dtype: torch.dtype) -> float:
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    repeats = _MATMUL_REPEATS[device.type]

    def multiply() -> None:
        for _ in range(repeats):
            a @ b

    multiply()  # the first product on a device is slower
    seconds = min(time_call(multiply, device) for _ in range(_MATMUL_TRIALS))
    return 2 * repeats * size**3 / seconds
