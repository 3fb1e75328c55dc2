"""What a run in another process tells of itself: short messages, not too many."""

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from longspan.results import Alarm, Point
from longspan.training import Callback

Message: TypeAlias = tuple[str, tuple[Any, ...]]  # a method of a callback, and what it is given

EVERY = 1.0  # seconds between two reports of a step


class Reporter:
    """A callback that sends what it sees, and of steps one each second."""

    def __init__(self, send: Callable[[Message], None]):
        """Send by this function."""
        self.send = send
        self.sent = 0.0

    def on_train_begin(self, steps: int) -> None:
        """Training begins."""
        self.send(("begins", (steps,)))

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """A step is done; reading its loss waits for the device."""
        now = time.monotonic()
        if now - self.sent >= EVERY:
            self.sent = now
            self.send(("stepped", (step, float(loss), tokens, seconds)))

    def on_evaluate(self, point: Point) -> None:
        """A point of the curve is there."""
        self.send(("evaluated", (point,)))

    def on_alarm(self, alarm: Alarm) -> None:
        """Something looks wrong."""
        self.send(("alarmed", (alarm,)))


def tell(callback: Callback, message: Message) -> int | None:
    """Give a callback what a `Reporter` sent; the step that it tells of, if it does."""
    name, values = message
    if name == "begins":
        callback.on_train_begin(*values)
        return None
    if name == "stepped":
        step, loss, tokens, seconds = values
        callback.on_step(step, torch.tensor(loss), tokens, seconds)
        return step
    getattr(callback, name)(*values)
    return values[0].step
