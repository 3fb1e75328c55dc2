"""Early alarms: what whoever watches a run should be told before it has ended.

Pure functions of the learning curve and of seconds; an alarm is told once and never stops a run.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from longspan.results import Alarm, Point, Score
from longspan.training.config import TrainConfig

# At chance. Under the small-model recipe ListOps leaves the majority class after 10 to 15 % of the
# steps where it is learnt well; twice as late is still in time.
CHANCE_SHARE = 1 / 3  # of the steps, before which nothing is said
CHANCE_LOOKS = 3  # evaluations in a row: one of forty exceeds the interval by luck
NORMAL_95 = 1.96  # standard deviations to either side that hold 95 % of a normal distribution

# Diverging. The mean over 1,000 examples has a standard error of about 0.03 nats where ten classes
# are guessed, so half a nat is no noise; it must last for two such means.
WINDOW_EXAMPLES = 1_000
RISE_NATS, RISE_SHARE = 0.5, 0.5  # above the lowest mean, whichever is more
RISE_LOOKS = 2

# Waiting. The 41 runs recorded so far waited for less than 1 % of their time, so a tenth is a fault
# of the machine; below some seconds it matters to nobody.
WAITING_SHARE = 0.1
WAITING_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Warmed:
    """The seconds of training at the first evaluation: what starting up cost is in them."""

    seconds: float
    waiting: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sight:
    """What is known of a run right after an evaluation."""

    config: TrainConfig
    curve: Sequence[Point]
    validation: Score  # the newest
    seconds: float  # of training
    waiting: float  # of the seconds, those spent waiting for batches
    warmed: Warmed


def alarms(sight: Sight, told: Sequence[str]) -> Iterator[Alarm]:
    """What is to be told now.

    Args:
        sight: the run right after an evaluation.
        told: kinds of alarms that were given before; none of them is given again.
    """
    step = sight.curve[-1].step
    for kind, look in LOOKS.items():
        if kind not in told and (message := look(sight)) is not None:
            yield Alarm(kind=kind, step=step, message=message)


def at_chance(sight: Sight) -> str | None:
    """Why the model seems to have learnt nothing, or None.

    Its last evaluations were all within the 95 % interval of always answering the most frequent
    class (normal approximation of the binomial), or below it.
    """
    config, recent = sight.config, sight.curve[-CHANCE_LOOKS:]
    majority, examples = sight.validation.majority, sight.validation.examples
    luck = majority + NORMAL_95 * math.sqrt(majority * (1 - majority) / examples)
    early = recent[-1].step < CHANCE_SHARE * config.steps or len(recent) < CHANCE_LOOKS
    if early or any((point.validation_accuracy or 0.0) > luck for point in recent):
        return None
    return (
        f"validation accuracy is {_percent(recent[-1].validation_accuracy or 0.0)} after "
        f"{recent[-1].step:,} of {config.steps:,} steps, no better than always answering the most "
        f"frequent class ({_percent(majority)}, by luck up to {_percent(luck)}); some runs leave "
        f"chance late, others need another learning rate (now {config.learning_rate:g}), a longer "
        f"warmup (now {config.warmup:,}) or another seed"
    )


def diverging(sight: Sight) -> str | None:
    """Why the training seems to be getting worse, or None: its loss has risen far, for long."""
    means = _windows(sight.curve, sight.config.batch)
    before, recent = means[:-RISE_LOOKS], means[-RISE_LOOKS:]
    if not before:
        return None
    step, best = min(before, key=lambda mean: mean[1])
    if any(loss <= best + max(RISE_NATS, RISE_SHARE * best) for _, loss in recent):
        return None
    config = sight.config
    clip = "clip gradients (train.clip)" if config.clip is None else f"clip below {config.clip:g}"
    return (
        f"the training loss has risen to {recent[-1][1]:.2f} from {best:.2f} at step {step:,}; "
        f"lower the learning rate (now {config.learning_rate:g}), lengthen the warmup "
        f"(now {config.warmup:,}) or {clip}"
    )


def _windows(curve: Sequence[Point], batch: int) -> list[tuple[int, float]]:
    """Last step and mean training loss of stretches of enough examples; no rest at the end."""
    means: list[tuple[int, float]] = []
    total, steps, last = 0.0, 0, 0
    for point in curve:
        if point.train_loss is not None:
            total += point.train_loss * (point.step - last)
            steps += point.step - last
        last = point.step
        if steps * batch >= WINDOW_EXAMPLES:
            means.append((last, total / steps))
            total, steps = 0.0, 0
    return means


def waiting_for_data(sight: Sight) -> str | None:
    """Why the machine seems to be short of data, or None.

    The seconds are those of the process that trains. An accelerator may still be at work while
    that process waits, so there the share is the most that can be gained.
    """
    waited = sight.waiting - sight.warmed.waiting
    trained = sight.seconds - sight.warmed.seconds
    if waited < WAITING_SECONDS or waited <= WAITING_SHARE * trained:
        return None
    return (
        f"{_percent(waited / trained)} of the training time since step {sight.curve[0].step:,} was "
        "spent waiting for data; put --cache on a local disk, or leave the run more processor cores"
    )


LOOKS: dict[Literal["chance", "diverging", "waiting"], Callable[[Sight], str | None]] = {
    "chance": at_chance,
    "diverging": diverging,
    "waiting": waiting_for_data,
}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
