"""Seconds of training steps, measured on the machine at hand."""

import contextlib
import dataclasses
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import PreTrainedModel

from longspan.results import Alarm, Point
from longspan.tasks.base import Task
from longspan.training.config import TrainConfig
from longspan.training.loop import fit

WARM, COUNTED = 2, 8  # steps
ENDLESS = 10**9  # steps
SIDE, TRIALS = 1024, 5  # of the product that `product_rate` times


class _Enough(Exception):
    pass


class _Clock:
    """A callback that notes when steps end, and ends the run after some of them."""

    def __init__(self, counted: int, patience: float | None):
        self.counted, self.patience = counted, patience
        self.started = time.perf_counter()
        self.ends: list[float] = []

    def on_train_begin(self, steps: int) -> None:
        pass

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        # reading the loss waits for the device
        loss.item()
        self.ends.append(time.perf_counter())
        late = self.patience is not None and self.ends[-1] - self.started > self.patience
        if len(self.ends) >= WARM + self.counted or (late and len(self.ends) > WARM):
            raise _Enough

    def on_evaluate(self, point: Point) -> None:
        pass

    def on_alarm(self, alarm: Alarm) -> None:
        pass

    def median(self) -> float:
        ends = self.ends[WARM - 1 :]
        return statistics.median(b - a for a, b in itertools.pairwise(ends))


def seconds_per_step(
    model: PreTrainedModel,
    task: Task,
    config: TrainConfig,
    *,
    seed: int,
    device: str | None = None,
    counted: int = COUNTED,
    patience: float | None = None,
) -> float:
    """The median time of real training steps: data, forward, backward, optimiser.

    Args:
        model: is trained by these steps: give one that is not needed afterwards.
        task: open.
        config: the recipe; its number of steps does not matter.
        seed: of the batches, which are the first ones of a run with this seed.
        device: as `fit` takes it.
        counted: steps that count, after the first two, which warm up.
        patience: seconds after which fewer steps are enough, but never none.

    Raises:
        OptionError, RunError: as `fit` does.
    """
    endless = dataclasses.replace(
        config, steps=ENDLESS, evaluate_every=ENDLESS, checkpoint_every=ENDLESS
    )
    clock = _Clock(counted, patience)
    with tempfile.TemporaryDirectory(prefix="longspan-") as scratch, contextlib.suppress(_Enough):
        folder = Path(scratch)
        fit(model, task, endless, seed=seed, folder=folder, device=device, callback=clock)
    return clock.median()


def product_rate(device: torch.device) -> float:
    """Floating-point operations per second of a large matrix product in float32, at its best."""
    a = torch.ones(SIDE, SIDE, device=device)
    seconds = []
    for _ in range(TRIALS):
        started = time.perf_counter()
        (a @ a)[0, 0].item()
        seconds.append(time.perf_counter() - started)
    return 2 * SIDE**3 / min(seconds)
