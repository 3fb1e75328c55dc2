"""Whoever looks on while a model is trained."""

from typing import Protocol, runtime_checkable

import torch

from longspan.results import Alarm, Point


@runtime_checkable
class Watcher(Protocol):
    """Whoever wants to see the run while it goes on."""

    def begins(self, steps: int) -> None:
        """Training begins, or goes on: so many steps in all, as the budget has it."""

    def stepped(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """One optimiser step is done: its loss, and tokens and seconds of the run so far."""

    def evaluated(self, point: Point) -> None:
        """A point of the learning curve is there."""

    def alarmed(self, alarm: Alarm) -> None:
        """Something looks wrong; the run goes on."""
