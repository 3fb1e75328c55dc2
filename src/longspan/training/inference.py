"""Speed and memory of inference: an evaluation whose forward passes are timed."""

import contextlib
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from longspan.memory import PeakMemory
from longspan.results import Inference
from longspan.tasks.base import Split, Task
from longspan.training.distributed.group import SINGLE_PROCESS, ProcessGroup
from longspan.training.evaluate import Evaluation, evaluate, warm_up


class _ForwardClock:
    """Seconds inside forward passes and generations; the device is synchronized at both ends."""

    def __init__(self, device: torch.device):
        self.device, self.seconds, self._started, self._depth = device, 0.0, 0.0, 0

    @contextlib.contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """Count the calls of a model inside the context."""
        # Sharded models gather their parameters in hooks of their own, which count.
        before = model.register_forward_pre_hook(lambda *_: self._start(), prepend=True)
        after = model.register_forward_hook(lambda *_: self._stop())
        try:
            yield
        finally:
            before.remove()
            after.remove()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time inside the context; the forward passes in it are not counted again."""
        self._start()
        try:
            yield
        finally:
            self._stop()

    def _start(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._synchronize()
            self._started = time.perf_counter()

    def _stop(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._synchronize()
            self.seconds += time.perf_counter() - self._started

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def evaluate_timed(
    model: nn.Module,
    task: Task,
    split: Split,
    *,
    batch_size: int,
    device: torch.device,
    group: ProcessGroup = SINGLE_PROCESS,
    rows: np.ndarray | None = None,
) -> tuple[Evaluation, Inference]:
    """Evaluate as `evaluate` does, and measure its cost; see `longspan.results.Inference`.

    A random batch of the split is evaluated first and not timed. What later batches of other widths
    compile or allocate is timed. Of several processes the slowest counts, and the one with the most
    memory.

    Raises:
        NonFiniteLossError: the loss is NaN or infinite.
    """
    memory, clock = PeakMemory(device.type), _ForwardClock(device)
    memory.start()
    warm_up(model, task, split, batch_size=batch_size, device=device, group=group)
    with clock.attached(model):
        evaluation = evaluate(
            model,
            task,
            split,
            batch_size=batch_size,
            device=device,
            group=group,
            rows=rows,
            timed=clock.running,
        )
    seconds = group.all_reduce_max(clock.seconds)
    peak = group.all_reduce_max(memory.peak())
    inference = Inference(
        examples_per_second=(evaluation.score.num_examples + evaluation.num_documents) / seconds,
        peak_memory=None if peak is None else int(peak),
    )
    return evaluation, inference
