"""Callbacks of the training loop."""

import torch

from longspan.results import Alarm, Point


class Callback:
    """Base class of training callbacks; every method does nothing by default."""

    def on_train_begin(self, steps: int) -> None:
        """Handle the start or resumption of training.

        Args:
            steps: total number of optimizer steps, as the budget allows.
        """

    def on_step(self, step: int, loss: torch.Tensor, tokens: int, seconds: float) -> None:
        """Handle the end of an optimizer step.

        Args:
            step: number of steps done.
            loss: mean loss of the batch; reading it synchronizes the device.
            tokens: number of tokens trained on since the first step.
            seconds: training time since the first step.
        """

    def on_evaluate(self, point: Point) -> None:
        """Handle a new point of the learning curve."""

    def on_alarm(self, alarm: Alarm) -> None:
        """Handle an alarm; training continues."""
