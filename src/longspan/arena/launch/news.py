"""What a run in another process tells of itself: short messages, not too many."""

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from longspan.results import Alarm, Point
from longspan.training import Watcher

Message: TypeAlias = tuple[str, tuple[Any, ...]]  # a method of a watcher, and what it is given

EVERY = 1.0  # seconds between two reports of a step


class Reporter:
    """A watcher that sends what it sees, and of steps one each second."""

    def __init__(self, send: Callable[[Message], None]):
        """Send by this function."""
        self.send = send
        self.sent = 0.0

    def begins(self, steps: int) -> None:
        """Training begins."""
        self.send(("begins", (steps,)))

    def stepped(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """A step is done; reading its loss waits for the device."""
        now = time.monotonic()
        if now - self.sent >= EVERY:
            self.sent = now
            self.send(("stepped", (step, float(loss), tokens, seconds)))

    def evaluated(self, point: Point) -> None:
        """A point of the curve is there."""
        self.send(("evaluated", (point,)))

    def alarmed(self, alarm: Alarm) -> None:
        """Something looks wrong."""
        self.send(("alarmed", (alarm,)))


def tell(watcher: Watcher, message: Message) -> int | None:
    """Give a watcher what a `Reporter` sent; the step that it tells of, if it does."""
    name, values = message
    if name == "begins":
        watcher.begins(*values)
        return None
    if name == "stepped":
        step, loss, tokens, seconds = values
        watcher.stepped(step, torch.tensor(loss), tokens, seconds)
        return step
    getattr(watcher, name)(*values)
    return values[0].step
