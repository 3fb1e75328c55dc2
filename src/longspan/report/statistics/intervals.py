"""95 % intervals of scores, and means that are None where a part is missing."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longspan.errors import OptionError
from longspan.metrics import Metric
from longspan.report.numbers import Number
from longspan.report.statistics.contrasts import two_sided
from longspan.report.statistics.noise import DRAWS, Noise, Sample

NORMAL = statistics.NormalDist().inv_cdf(0.975)  # two-sided 95 % quantile


@dataclass(frozen=True, kw_only=True)
class Interval:
    """95 % interval, and the sources of its noise.

    Attributes:
        low: lower end.
        high: upper end.
        over: "seeds" of the runs, or "borrowed seeds" of other rows; "examples" of the split, or
            other units such as "documents"; or both: "seeds and examples".
    """

    low: float
    high: float
    over: str


def interval(
    noise: Noise, metric: Metric, num_examples: int, sample: Sample | None = None
) -> Interval | None:
    """Return the 95 % interval of a mean score over seeds.

    - With a seed variance, of the row or borrowed from its table: Student's t over the seeds, and
      the noise of the examples where it is known.
    - Without one, or with seeds that tie: the noise of the examples of one run. It says nothing
      about other seeds. Proportions of right answers have Wilson's interval, other metrics that of
      the bootstrap.

    Args:
        noise: the score and its noise.
        metric: metric of the scores.
        num_examples: number of test examples.
        sample: per-example statistics of the same seeds.

    Returns:
        None for one seed of a metric other than accuracy without per-example statistics.

    Raises:
        OptionError: there is no example behind a single score.
    """
    if not noise.seed_error:
        ends = _over_examples(noise.score, metric, num_examples, sample)
        return None if ends is None else _clipped(*ends, metric, f"{noise.unit}s")
    half, over = _half_width(noise), "borrowed seeds" if noise.is_borrowed else "seeds"
    if noise.example_error is not None:
        over += f" and {noise.unit}s"
    return _clipped(noise.score - half, noise.score + half, metric, over)


def _clipped(low: float, high: float, metric: Metric, over: str) -> Interval:
    """Return an interval within the values that the metric can have."""
    ends = np.clip((low, high), metric.lowest, metric.highest).tolist()
    return Interval(low=ends[0], high=ends[1], over=over)


def _half_width(noise: Noise) -> float:
    """Return the size that a sum of seed and example noise exceeds with probability 0.05."""
    seed_error, example_error = noise.seed_error or 0.0, noise.example_error or 0.0
    low = 0.0
    high = student(noise.freedom) * seed_error + NORMAL * example_error
    # Each pass narrows the range to one of 64 steps; three passes reach eight digits.
    for _ in range(3):
        sizes = np.linspace(low, high, 65)
        beyond = two_sided(
            sizes, np.array(seed_error), np.array(float(noise.freedom)), np.array(example_error)
        )
        last = max(int((beyond > 0.05).sum()) - 1, 0)
        low, high = float(sizes[last]), float(sizes[min(last + 1, 64)])
    return (low + high) / 2


def _over_examples(
    center: float, metric: Metric, num_examples: int, sample: Sample | None
) -> tuple[float, float] | None:
    if metric.comparison == "mcnemar":
        independent = _independent_answers(center, sample) if sample else num_examples
        return wilson(center, independent)
    if sample is None:
        return None
    low, high = np.quantile(sample.deviations[0], [0.025, 0.975]) * math.sqrt(DRAWS)
    return center + low, center + high


def _independent_answers(accuracy: float, sample: Sample) -> float:
    """Return the number of independent answers with the variance of one run.

    Answers to one example are correlated. With one answer an example it is the number of examples.
    """
    variance = float((sample.deviations[0] ** 2).sum())
    if variance == 0:
        return float(sample.num_examples)
    return min(float(sample.statistics[0, :, 1].sum()), accuracy * (1 - accuracy) / variance)


def wilson(accuracy: Number, answers: Number) -> tuple[float, float]:
    """Return the score interval of a proportion (Wilson 1927, JASA 22, p. 209).

    scipy's takes whole numbers of answers only.
    """
    if answers < 1:
        raise OptionError(f"an interval over examples needs at least one example, got {answers}")
    shrink = 1 + NORMAL**2 / answers
    center = (accuracy + NORMAL**2 / (2 * answers)) / shrink
    spread = accuracy * (1 - accuracy) / answers + (NORMAL / (2 * answers)) ** 2
    half = NORMAL * math.sqrt(spread) / shrink
    # Rounding must not leave an accuracy of 0 or 1 outside.
    return min(accuracy, center - half), max(accuracy, center + half)


def student(freedom: int, inside: float = 0.95) -> float:
    """Return the two-sided quantile of Student's t; `inside` is the probability within it."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + inside) / 2))


def mean(values: Sequence[Number | None]) -> float | None:
    """Return the mean, or None if there is no value or one is missing."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present and len(present) == len(values) else None
