"""Learning rate schedules, as pure functions of the step."""

import dataclasses
import math
from collections.abc import Sequence

from longspan.config import TrainingConfig
from longspan.metrics import Metric
from longspan.results import Point

# First and last factor of the one-cycle schedule, relative to its peak.
FIRST_FACTOR, LAST_FACTOR = 1 / 25, 1e-4 / 25


def compute_learning_rate(config: TrainingConfig, step: int) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0.

    - "linear": linear from 0 during warmup, then linear to 0.
    - "cosine": linear from 0 during warmup, then half a cosine to 0.
    - "cubic": linear from 0 during warmup, then the cube of "linear" (Longformer).
    - "rsqrt": the LRA code's rule, factor * min(1, t/warmup) / sqrt(max(t, warmup)).
    - "constant": linear from 0 during warmup, then the peak.
    - "one_cycle": one cycle (Smith 2017) as in the small-model LRA recipe: linear from peak/25 to
      the peak at the end of warmup, then linear to peak/250,000 at the last step.
    """
    return config.learning_rate * _factor(config, step)


def scheduled_steps(config: TrainingConfig, first: int, total: int) -> tuple[TrainingConfig, int]:
    """Return the recipe of a stage's learning rates, and the step of the run that is its step 0.

    With `schedule_over="run"` the recipe has the steps of the run, and their step 0.

    Args:
        config: recipe of the stage, with its own number of steps.
        first: step of the run before the stage.
        total: steps of the run.
    """
    if config.schedule_over == "run":
        return dataclasses.replace(config, steps=total), 0
    return config, first


def ends_training(config: TrainingConfig, metric: Metric, curve: Sequence[Point]) -> bool:
    """Return whether the last of some evaluations ends the training: `stop_at` or `patience`.

    Of equal scores the one with the lower loss is better, as in the selection of the checkpoint.
    Without a validation split there is no score, and the last step ends the training.
    """
    if curve[-1].validation_loss is None:
        return False
    values = [metric.signed(point.validation_metrics.get(metric.name, math.nan)) for point in curve]
    if config.stop_at is not None and values[-1] >= metric.signed(config.stop_at):
        return True
    if config.patience is None:
        return False
    losses = [-math.inf if x.validation_loss is None else -x.validation_loss for x in curve]
    scores = list(zip(values, losses, strict=True))
    return len(scores) - 1 - scores.index(max(scores)) >= config.patience


def _factor(config: TrainingConfig, step: int) -> float:
    if config.schedule == "one_cycle":
        return _one_cycle_factor(config, step)
    # Counted from 1, so that the first step has a learning rate above zero.
    warmup = min(1.0, (step + 1) / max(config.warmup_steps, 1))
    if config.schedule == "rsqrt":
        return warmup / math.sqrt(max(step + 1, config.warmup_steps))
    if config.schedule == "linear":
        return warmup * (1 - _progress_after_warmup(config, step))
    if config.schedule == "cubic":
        return warmup * (1 - _progress_after_warmup(config, step)) ** 3
    if config.schedule == "cosine":
        return warmup * (1 + math.cos(math.pi * _progress_after_warmup(config, step))) / 2
    return warmup


def _progress_after_warmup(config: TrainingConfig, step: int) -> float:
    """Return the fraction of the steps after warmup that are done, 0 to 1."""
    rest = config.steps - config.warmup_steps
    return min(max(step - config.warmup_steps, 0) / rest, 1.0) if rest > 0 else 0.0


def _one_cycle_factor(config: TrainingConfig, step: int) -> float:
    peak_step = config.warmup_steps - 1
    if step < peak_step:
        return FIRST_FACTOR + (1 - FIRST_FACTOR) * step / peak_step
    rest = config.steps - 1 - peak_step
    progress = min((step - peak_step) / rest, 1.0) if rest > 0 else 0.0
    return 1 + (LAST_FACTOR - 1) * progress
