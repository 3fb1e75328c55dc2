"""Progress of a run: the part of its state that is not a tensor."""

import dataclasses
from typing import Any


@dataclasses.dataclass
class Progress:
    """State of a run that is not a tensor.

    Attributes:
        step: optimizer steps so far.
        stage: number of the stage of the training, from 0 on.
        seconds: training time.
        data_wait_seconds: part of `seconds` spent waiting for batches.
        tokens: tokens trained on, without padding.
        curve: points of the learning curve.
        best: main validation metric of the best checkpoint.
        best_loss: its validation loss.
        best_step: its step.
        window_loss: sum of the losses of the steps since the last point of the curve.
        window_steps: number of these steps.
        window_statistics: sums of per-example statistics over them, by metric.
        alarms: alarms raised so far.
        warm_seconds: `seconds` at the first evaluation of the stage.
        warm_data_wait_seconds: `data_wait_seconds` then.
        peak_memory: largest number of bytes so far.
        scaler: state of the loss scaler under fp16.
    """

    step: int = 0
    stage: int = 0
    seconds: float = 0.0
    data_wait_seconds: float = 0.0
    tokens: int = 0
    curve: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: float | None = None
    best_loss: float | None = None
    best_step: int | None = None
    window_loss: float = 0.0
    window_steps: int = 0
    window_statistics: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    alarms: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    warm_seconds: float = 0.0
    warm_data_wait_seconds: float = 0.0
    peak_memory: int | None = None
    scaler: dict[str, Any] | None = None
