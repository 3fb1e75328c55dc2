"""Whoever looks on while a model is trained."""

from typing import Protocol, runtime_checkable

import torch

from longspan.results import Alarm, Point


@runtime_checkable
class Callback(Protocol):
    """Whoever wants to see the run while it goes on."""

    def on_train_begin(self, steps: int) -> None:
        """Training begins, or goes on: so many steps in all, as the budget has it."""

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """One optimiser step is done: its loss, and tokens and seconds of the run so far."""

    def on_evaluate(self, point: Point) -> None:
        """A point of the learning curve is there."""

    def on_alarm(self, alarm: Alarm) -> None:
        """Something looks wrong; the run goes on."""
