"""Learning rates of the protocols, as pure functions of the step."""

import math

from longspan.config import TrainingConfig

FIRST, LAST = 1 / 25, 1e-4 / 25  # ends of the one-cycle course, relative to its peak


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The learning rate of optimiser step `step`, counted from 0.

    - "linear": one cycle (Smith 2017) as the small-model LRA recipe runs it: from peak/25 up to
      the peak at the end of warmup, then down to peak/250,000 at the last step, both linearly.
    - "cosine": linear from 0, then half a cosine to 0.
    - "rsqrt": the LRA code's rule, factor * min(1, t/warmup) / sqrt(max(t, warmup)).
    - "constant": linear from 0, then the peak.
    """
    return config.learning_rate * _factor(config, step)


def _factor(config: TrainingConfig, step: int) -> float:
    if config.schedule == "linear":
        return _one_cycle(config, step)
    # The first step would otherwise be wasted on a rate of zero.
    reached = min(1.0, (step + 1) / max(config.warmup_steps, 1))
    if config.schedule == "rsqrt":
        return reached / math.sqrt(max(step + 1, config.warmup_steps))
    if config.schedule == "cosine":
        return reached * (1 + math.cos(math.pi * _progress(config, step))) / 2
    return reached


def _progress(config: TrainingConfig, step: int) -> float:
    """How much of the course after warmup is over, 0 to 1."""
    rest = config.steps - config.warmup_steps
    return min(max(step - config.warmup_steps, 0) / rest, 1.0) if rest > 0 else 0.0


def _one_cycle(config: TrainingConfig, step: int) -> float:
    top = config.warmup_steps - 1  # the step that has the peak
    if step < top:
        return FIRST + (1 - FIRST) * step / top
    rest = config.steps - 1 - top
    down = min((step - top) / rest, 1.0) if rest > 0 else 0.0
    return 1 + (LAST - 1) * down
