"""Rank correlations against hand-computed values, enumeration and scipy."""

import itertools

import numpy as np
import pytest

from longspan.report.statistics.rank_correlation import (
    ORDERS,
    correlate,
    kendall,
    permutation_p,
    spearman,
)


def as_arrays(*values):
    return [np.array(x, float) for x in values]


def random_scores(count, seed, step=None):
    """Return two columns of scores, rounded to a step so that some of them tie."""
    x, noise = np.random.default_rng(seed).normal(size=(2, count))
    both = np.stack([x, x + noise])
    return both if step is None else np.round(both / step) * step


@pytest.mark.parametrize(
    ("x", "y", "rho", "tau"),
    [
        # Squared differences of ranks 1 + 1 + 1 + 1: 1 - 6 * 4 / 120. 2 of 10 pairs are discordant.
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8, 0.6),
        ([1, 2, 3, 4, 5], [5, 4, 3, 2, 1], -1.0, -1.0),
        # Centered mean ranks (-3, 0, 0, 3) / 2 and (-3, -1, 2, 2) / 2: 15 / 18. Of 6 pairs each
        # side ties one, and the 4 others are concordant: 4 / 5.
        ([1, 2, 2, 3], [1, 2, 3, 3], 15 / 18, 4 / 5),
        ([0.1, 0.1, 0.1], [1, 2, 3], np.nan, np.nan),
    ],
)
def test_coefficients_by_hand(x, y, rho, tau):
    one, other = as_arrays(x, y)
    assert spearman(one, other) == pytest.approx(rho, nan_ok=True)
    assert kendall(one, other) == pytest.approx(tau, nan_ok=True)


@pytest.mark.parametrize("step", [None, 0.5])
def test_coefficients_equal_those_of_scipy(step):
    stats = pytest.importorskip("scipy.stats")
    pairs = [random_scores(count, seed, step) for count in (5, 13, 40) for seed in range(3)]
    for x, y in pairs:
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
        assert kendall(x, y) == pytest.approx(stats.kendalltau(x, y).statistic)


def test_coefficients_are_of_each_draw():
    x, y = (np.random.default_rng(seed).normal(size=(4, 6)) for seed in (0, 1))
    for coefficient in (spearman, kendall):
        each = [coefficient(one, other) for one, other in zip(x, y, strict=True)]
        assert coefficient(x, y) == pytest.approx(np.array(each))


def test_p_of_few_rows_is_exact():
    # Of 120 orders one is perfect and one reversed; 4 more swap two neighbors, as do 4 reversed.
    assert permutation_p(*as_arrays(range(5), range(5))) == (2 / 120, 2 / 120)
    assert permutation_p(*as_arrays(range(5), [1, 0, 2, 3, 4])) == (10 / 120, 10 / 120)
    # Of 4 rows no order is significant.
    assert permutation_p(*as_arrays(range(4), range(4))) == (2 / 24, 2 / 24)


@pytest.mark.parametrize("step", [None, 0.7])
def test_p_equals_enumeration(step):
    x, y = random_scores(6, 3, step)
    orders = [np.array(order) for order in itertools.permutations(range(6))]
    found = permutation_p(x, y)
    for coefficient, p in zip((spearman, kendall), found, strict=True):
        bound = abs(coefficient(x, y)) - 1e-9
        assert p == np.mean([abs(coefficient(x, y[order])) >= bound for order in orders])


def test_exact_p_of_tau_equals_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for count in (5, 8):
        x, y = random_scores(count, count)
        assert permutation_p(x, y)[1] == pytest.approx(
            stats.kendalltau(x, y, method="exact").pvalue
        )


def test_p_of_many_rows_is_that_of_random_orders():
    stats = pytest.importorskip("scipy.stats")
    x, y = random_scores(13, 1)
    exact = stats.kendalltau(x, y, method="exact").pvalue
    assert permutation_p(x, y)[1] == pytest.approx(exact, abs=4 * (exact / ORDERS) ** 0.5)
    # The observed order counts as one of the random ones, so no p is zero.
    perfect = permutation_p(*as_arrays(range(30), range(30)))
    assert perfect == (1 / (ORDERS + 1), 1 / (ORDERS + 1))


def test_interval_over_rows_is_that_of_the_bootstrap():
    x, y = random_scores(12, 0)
    found = correlate(x, y)
    rng = np.random.default_rng(7)
    drawn = []
    for _ in range(1500):
        rows = rng.integers(12, size=12)
        drawn.append(kendall(x[rows], y[rows]))
    assert found.tau.over_rows == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.06)
    assert found.tau.over_rows[0] < found.tau.value < found.tau.over_rows[1]
    assert found.rho.over_scores is None


def test_interval_over_scores_is_that_of_the_redrawn_ones():
    x, y = random_scores(6, 0)
    certain = (np.tile(x, (50, 1)), np.tile(y, (50, 1)))
    found = correlate(x, y, certain)
    assert found.rho.over_scores == pytest.approx((found.rho.value, found.rho.value))
    noise = np.random.default_rng(0).normal(size=(2, 500, 6)) * 100
    found = correlate(x, y, (x + noise[0], y + noise[1]))
    assert found.tau.over_scores[0] < -0.5
    assert found.tau.over_scores[1] > 0.5


def test_scores_that_differ_by_rounding_tie():
    exact, rounded = [3, 3, 1, 2, 4, 5], [0.3, 0.1 + 0.2, 0.1, 0.2, 0.4, 0.5]
    assert correlate(rounded, exact).rho.value == 1.0


def test_too_few_rows_and_equal_scores_have_no_correlation():
    assert correlate([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]) is None
    assert correlate([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]) is not None
    assert correlate([1, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, 1]) is None
