"""Time of training steps, measured on this machine."""

import contextlib
import dataclasses
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import PreTrainedModel

from longspan.config import TrainingConfig
from longspan.tasks.base import Task
from longspan.training.callbacks import Callback
from longspan.training.fitting import fit

WARMUP_STEPS, TIMED_STEPS = 2, 8
UNREACHED_STEP = 10**9
MATMUL_SIZE, MATMUL_TRIALS = 1024, 5


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
        steps=UNREACHED_STEP,
        evaluate_every=UNREACHED_STEP,
        checkpoint_every=UNREACHED_STEP,
    )
    timer = _StepTimer(timed_steps, patience)
    with (
        tempfile.TemporaryDirectory(prefix="longspan-") as scratch,
        contextlib.suppress(_TimingDone),
    ):
        folder = Path(scratch)
        fit(model, task, endless, seed=seed, folder=folder, device=device, callback=timer)
    return timer.median()


def measure_matmul_rate(device: torch.device) -> float:
    """Return the best FLOP/s of a large float32 matrix product on the device."""
    a = torch.ones(MATMUL_SIZE, MATMUL_SIZE, device=device)
    seconds = []
    for _ in range(MATMUL_TRIALS):
        started = time.perf_counter()
        (a @ a)[0, 0].item()
        seconds.append(time.perf_counter() - started)
    return 2 * MATMUL_SIZE**3 / min(seconds)
