"""Per-example statistics of the seeds of one configuration, and their sampling noise."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from longspan.errors import DataError
from longspan.metrics import Metric
from longspan.results import Result
from longspan.results.scores import EXAMPLE

DRAWS = 2000  # resamples of a bootstrap


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Statistics of a metric on the same examples under several seeds.

    Attributes:
        metric: metric that the statistics belong to.
        seeds: seeds of the runs.
        statistics: per-example statistics, (seeds, examples, columns of the metric).
        unit: examples, or what their statistics are summed over, such as documents.
    """

    metric: Metric
    seeds: tuple[int, ...]
    statistics: np.ndarray
    unit: str = EXAMPLE

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        return self.statistics.shape[1]

    @functools.cached_property
    def values(self) -> np.ndarray:
        """Value of the metric by seed, (seeds,)."""
        return self.metric.finalize(self.statistics.sum(axis=1))

    @functools.cached_property
    def deviations(self) -> np.ndarray:
        """Sampling noise of the values, (seeds, terms).

        The dot product of two rows is the covariance of two values under resampling of the
        examples. A term is an example of a linearized ratio, or a draw of the bootstrap. Samples
        of the same examples share their terms, so that differences of rows are paired.
        """
        if self.metric.comparison == "bootstrap":
            draws = self._resample()
            return (draws - draws.mean(axis=1, keepdims=True)) / np.sqrt(DRAWS)
        correct, targets = np.moveaxis(self.statistics, -1, 0)
        return (correct - self.values[:, None] * targets) / targets.sum(axis=1, keepdims=True)

    def _resample(self) -> np.ndarray:
        """Return the values of the metric on resampled examples, (seeds, draws)."""
        weights = _bootstrap_weights(self.num_examples)
        parts = []
        # Blocks of draws bound the memory of the weights as floating point numbers.
        for block in np.array_split(weights, max(1, weights.size // 2**23)):
            sums = np.einsum(
                "bn,snk->sbk", block.astype(np.float64), self.statistics, optimize=True
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                parts.append(self.metric.finalize(sums))
        draws = np.concatenate(parts, axis=1)
        return np.where(np.isfinite(draws), draws, self.values[:, None])

    @property
    def has_single_targets(self) -> bool:
        """True if each example is one right or wrong answer."""
        single = self.metric.comparison == "mcnemar"
        return single and bool((self.statistics[..., 1] == 1).all())

    def select_seeds(self, seeds: Sequence[int]) -> "Sample":
        """Return the sample of some of the seeds."""
        if tuple(seeds) == self.seeds:
            return self
        rows = [self.seeds.index(seed) for seed in seeds]
        return replace(self, seeds=tuple(seeds), statistics=self.statistics[rows])


@functools.lru_cache(maxsize=1)
def _bootstrap_weights(num_examples: int) -> np.ndarray:
    """Return how often each draw holds each example, (draws, examples); always the same."""
    random = np.random.default_rng(0)
    counts = [
        np.bincount(random.integers(num_examples, size=num_examples), minlength=num_examples)
        for _ in range(DRAWS)
    ]
    return np.stack(counts).astype(np.uint8)


def read_sample(runs: Sequence[Result]) -> Sample | None:
    """Unpack the example scores of runs that differ in their seed.

    Returns:
        None unless every run recorded scores of the same number of examples, or of other units.

    Raises:
        DataError: the example scores of a record are damaged.
    """
    if not runs or any(run.example_scores is None for run in runs):
        return None
    parts = [_unpack(run) for run in runs]
    units = {run.example_scores.unit for run in runs if run.example_scores}
    if len({part.shape for part in parts}) > 1 or len(units) > 1:
        return None
    seeds = tuple(run.seed for run in runs)
    # Columns lie together in memory, since they are read one by one.
    statistics = np.stack([part.T for part in parts]).swapaxes(1, 2)
    unit = next(iter(units))
    return Sample(metric=runs[0].main, seeds=seeds, statistics=statistics, unit=unit)


def _unpack(run: Result) -> np.ndarray:
    scores = run.example_scores
    assert scores is not None
    name = f"{run.protocol}/{run.task}/{run.filename}"
    if scores.metric != run.metric or scores.columns != len(run.main.columns):
        raise DataError(
            f"{name}: example scores are of {scores.metric} with {scores.columns} columns, "
            f"expected {run.metric} with {len(run.main.columns)}"
        )
    try:
        return scores.unpack()
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
