"""Alarms: warnings raised during training, from the learning curve and the clock.

Alarms are pure functions of the state of a run. Each kind is raised once and never stops a run.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from longspan.config import TrainingConfig
from longspan.metrics import Metric
from longspan.results import Alarm, Point, Score
from longspan.training.progress import Progress

# At chance. Under the small-model recipe ListOps leaves the majority class after 10 to 15 % of the
# steps where it is learned well; twice as late is still in time.
_CHANCE_SHARE = 1 / 3  # share of the steps before which no alarm is raised
_CHANCE_EVALUATIONS = 3  # consecutive ones: one of forty exceeds the interval by chance
_NORMAL_95 = 1.96  # standard deviations to either side that hold 95 % of a normal distribution

# Diverging. The mean over 1,000 examples has a standard error of about 0.03 nats for a uniform
# guess among ten classes, so half a nat is no noise; it must last for two such means.
_WINDOW_EXAMPLES = 1_000
RISE_NATS, RISE_SHARE = 0.5, 0.5  # above the lowest mean, whichever is more
_RISE_WINDOWS = 2

# Waiting. The first 41 recorded runs waited for less than 1 % of their time, so a tenth is a fault
# of the machine; a few seconds do not matter.
_WAITING_SHARE = 0.1
_WAITING_SECONDS = 10.0


def raise_alarms(
    config: TrainingConfig,
    metric: Metric,
    curve: Sequence[Point],
    validation: Score,
    progress: Progress,
    first_step: int = 0,
) -> Iterator[Alarm]:
    """Yield new alarms right after an evaluation; those of a kind raised before are not new.

    Args:
        config: training recipe.
        metric: main metric.
        curve: learning curve of the stage so far.
        validation: newest validation scores.
        progress: progress of the run.
        first_step: step of the run before the stage.
    """
    messages: dict[Literal["chance", "diverging", "waiting"], str | None] = {
        "chance": at_chance(config, metric, curve, validation, first_step),
        "diverging": diverging(config, metric, curve, first_step),
        "waiting": waiting_for_data(progress, curve[0].step),
    }
    raised = {alarm["kind"] for alarm in progress.alarms}
    for kind, message in messages.items():
        if message is not None and kind not in raised:
            yield Alarm(kind=kind, step=curve[-1].step, message=message)


def at_chance(
    config: TrainingConfig,
    metric: Metric,
    curve: Sequence[Point],
    validation: Score,
    first_step: int = 0,
) -> str | None:
    """Return the message for a model that has learned nothing, or None.

    The last evaluations were all within the 95 % interval of always predicting the most frequent
    class (normal approximation of the binomial), or below it. Only accuracy has this baseline.
    """
    majority = validation.majority_baseline
    recent = curve[-_CHANCE_EVALUATIONS:]
    share = (recent[-1].step - first_step) / (config.steps - first_step)
    if majority is None or share < _CHANCE_SHARE or len(recent) < _CHANCE_EVALUATIONS:
        return None
    spread = _NORMAL_95 * math.sqrt(majority * (1 - majority) / validation.num_targets)
    scores = [point.validation_metrics.get(metric.name, 0.0) for point in recent]
    if any(score > majority + spread for score in scores):
        return None
    return (
        f"validation {metric.title.lower()} is {metric.format(scores[-1])} after "
        f"{recent[-1].step:,} of {config.steps:,} steps, no better than always predicting the most "
        f"frequent class ({metric.format(majority)}, with noise up to "
        f"{metric.format(majority + spread)}); some runs leave chance late, others need another "
        f"learning rate (now {config.learning_rate:g}), a longer warmup (now "
        f"{config.warmup_steps:,} steps) or another seed"
    )


def diverging(
    config: TrainingConfig, metric: Metric, curve: Sequence[Point], first_step: int = 0
) -> str | None:
    """Return the message for a training loss that has risen far and long, or None."""
    means = _window_means(curve, config.batch_size, first_step)
    before, recent = means[:-_RISE_WINDOWS], means[-_RISE_WINDOWS:]
    if not before:
        return None
    step, best = min(before, key=lambda mean: mean[1])
    if any(loss <= best + max(RISE_NATS, RISE_SHARE * best) for _, loss in recent):
        return None
    unit = f" {metric.loss_unit}" if metric.loss_unit else ""
    clip = (
        "clip gradients (training.max_grad_norm)"
        if config.max_grad_norm is None
        else f"clip gradients below {config.max_grad_norm:g}"
    )
    return (
        f"the training loss has risen to {recent[-1][1]:.2f}{unit} from {best:.2f}{unit} at step "
        f"{step:,}; "
        f"lower the learning rate (now {config.learning_rate:g}), lengthen the warmup "
        f"(now {config.warmup_steps:,} steps) or {clip}"
    )


def _window_means(
    curve: Sequence[Point], batch_size: int, first_step: int
) -> list[tuple[int, float]]:
    """Return last step and mean training loss of consecutive windows of enough examples."""
    means: list[tuple[int, float]] = []
    total, steps, last = 0.0, 0, first_step
    for point in curve:
        if point.train_loss is not None:
            total += point.train_loss * (point.step - last)
            steps += point.step - last
        last = point.step
        if steps * batch_size >= _WINDOW_EXAMPLES:
            means.append((last, total / steps))
            total, steps = 0.0, 0
    return means


def waiting_for_data(progress: Progress, first_step: int) -> str | None:
    """Return the message for a run that is slowed down by its data since a step, or None.

    The clock is that of the training process. An accelerator may still compute while that process
    waits, so the share is an upper bound of the possible gain.
    """
    waited = progress.data_wait_seconds - progress.warm_data_wait_seconds
    trained = progress.seconds - progress.warm_seconds
    if waited < _WAITING_SECONDS or waited <= _WAITING_SHARE * trained:
        return None
    return (
        f"{100 * waited / trained:.1f} % of the training time since step "
        f"{first_step:,} was spent waiting for data; put --cache on a local disk, or give "
        "the run more processor cores"
    )
