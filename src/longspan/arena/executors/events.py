"""Training events that one process sends to another."""

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from longspan.results import Alarm, Point
from longspan.training import Callback

Event: TypeAlias = tuple[str, tuple[Any, ...]]  # name of a callback method, and its arguments

STEP_INTERVAL = 1.0  # seconds between two step events


class EventSender(Callback):
    """Sends every training event; of steps, at most one a second."""

    def __init__(self, send: Callable[[Event], None]):
        """Send events with a function that takes one."""
        self.send = send
        self.last_step_event = 0.0

    def on_train_begin(self, steps: int) -> None:
        """Send the number of steps."""
        self.send(("on_train_begin", (steps,)))

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """Send the step if the last one was sent long enough ago."""
        now = time.monotonic()
        if now - self.last_step_event >= STEP_INTERVAL:
            self.last_step_event = now
            # float() synchronizes the device, so it is called for the steps that are sent only.
            self.send(("on_step", (step, float(loss), tokens, seconds)))

    def on_evaluate(self, point: Point) -> None:
        """Send the point."""
        self.send(("on_evaluate", (point,)))

    def on_alarm(self, alarm: Alarm) -> None:
        """Send the alarm."""
        self.send(("on_alarm", (alarm,)))


def dispatch_event(callback: Callback, event: Event) -> int | None:
    """Call the callback method that an event names; return the event's step, if it has one."""
    name, arguments = event
    if name == "on_train_begin":
        callback.on_train_begin(*arguments)
        return None
    if name == "on_step":
        step, loss, tokens, seconds = arguments
        callback.on_step(step, torch.tensor(loss), tokens, seconds)
        return step
    getattr(callback, name)(*arguments)
    return arguments[0].step
