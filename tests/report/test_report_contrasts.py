"""Paired tests and intervals, against enumeration, hand-computed values and simulation."""

import itertools
import math
import statistics

import numpy as np
import pytest
from scipy.stats import binomtest

from longspan.metrics import get_metric
from longspan.report.leaderboard.ranking import find_wins
from longspan.report.statistics.contrasts import (
    Contrasts,
    combine,
    compare_samples,
    holm,
    mcnemar,
    two_sided,
)
from longspan.report.statistics.intervals import Interval, interval, student
from longspan.report.statistics.samples import DRAWS, Sample

INVERSE = statistics.NormalDist().inv_cdf
ACCURACY = get_metric("accuracy")


def make_sample(right, seeds=None, targets=None, metric=ACCURACY):
    right = np.atleast_2d(np.asarray(right, float))
    targets = np.ones(right.shape[1]) if targets is None else np.asarray(targets, float)
    both = np.stack([right, np.broadcast_to(targets, right.shape)], axis=-1)
    return Sample(metric=metric, seeds=tuple(seeds or range(len(right))), statistics=both)


def simulate_answers(rng, seeds, examples, seed_effect, shared, difficulty, accuracy=0.4):
    """Simulate answers with a difficulty shared by all runs and a seed effect."""
    own = rng.normal(size=(seeds, examples)) * math.sqrt(1 - shared)
    bar = INVERSE(accuracy) + seed_effect * rng.normal(size=(seeds, 1))
    return make_sample(difficulty * math.sqrt(shared) + own < bar)


def compare_pair(one, other):
    found = compare_samples([one, other])
    return found.difference[0, 1], found.p[0, 1]


def test_mcnemar_by_hand():
    # Of 12 examples 10 to 2: 2 (1 + 12 + 66) / 4096 - 66 / 4096; 5 to 5; 1 to 0: 2/2 - 1/2.
    found = mcnemar(np.array([10, 5, 1, 0]), np.array([2, 5, 0, 0]))
    assert found == pytest.approx([92 / 4096, 1.0, 0.5, 1.0], abs=1e-12)


@pytest.mark.parametrize(("better", "worse"), [(3, 1), (7, 2), (0, 6), (300, 250)])
def test_mcnemar_is_mid_p_variant_of_exact_test(better, worse):
    number = better + worse
    exact = binomtest(better, number).pvalue
    observed = math.comb(number, better) / 2**number
    assert mcnemar(np.array([better]), np.array([worse]))[0] == pytest.approx(exact - observed)


@pytest.mark.parametrize(("better", "worse"), [(3, 1), (7, 2), (4, 4), (0, 6)])
def test_mcnemar_equals_enumeration_of_all_signs(better, worse):
    number, observed = better + worse, abs(better - worse)
    sums = [abs(sum(signs)) for signs in itertools.product((-1, 1), repeat=number)]
    beyond = sum(x > observed for x in sums) + 0.5 * sum(x == observed for x in sums)
    expected = 1.0 if observed == 0 else beyond / 2**number
    assert mcnemar(np.array([better]), np.array([worse]))[0] == pytest.approx(expected, abs=1e-12)


def test_single_seed_is_compared_by_differing_examples():
    one = make_sample([1] * 10 + [0] * 2 + [1] * 30 + [0] * 8)
    other = make_sample([0] * 10 + [1] * 2 + [1] * 30 + [0] * 8)
    assert compare_pair(one, other) == pytest.approx((8 / 50, 92 / 4096))
    assert compare_pair(other, one) == pytest.approx((-8 / 50, 92 / 4096))


@pytest.mark.parametrize("freedom", [1, 2, 3, 9])
def test_without_example_error_test_is_students_t(freedom):
    for inside in (0.5, 0.95, 0.999):
        t = np.array([student(freedom, inside)])
        p = two_sided(t, np.ones(1), np.full(1, float(freedom)), np.zeros(1))
        assert p[0] == pytest.approx(1 - inside, rel=1e-5)


def test_without_seed_error_test_is_normal():
    p = two_sided(np.array([1.959964]), np.zeros(1), np.zeros(1), np.ones(1))
    assert p[0] == pytest.approx(0.05, abs=1e-6)


def test_combined_errors_equal_simulation():
    rng = np.random.default_rng(0)
    t = rng.standard_t(2, size=400_000) * 0.5 + rng.normal(size=400_000)
    for size in (0.5, 2.0, 4.0):
        p = two_sided(np.array([size]), np.array([0.5]), np.array([2.0]), np.ones(1))
        assert p[0] == pytest.approx((np.abs(t) >= size).mean(), abs=0.003)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_joint_comparison_equals_pairwise_comparisons(seeds):
    rng = np.random.default_rng(seeds)
    difficulty = rng.normal(size=300)
    several = [
        simulate_answers(rng, seeds, 300, 0.1, 0.5, difficulty, 0.3 + 0.1 * i) for i in range(4)
    ]
    found = compare_samples(several)
    assert found.p == pytest.approx(found.p.T, rel=1e-6)
    assert found.difference == pytest.approx(-found.difference.T)
    for i, j in itertools.combinations(range(4), 2):
        assert compare_pair(several[i], several[j]) == pytest.approx(
            (found.difference[i, j], found.p[i, j]), rel=1e-6
        )


def test_example_error_is_that_of_two_way_table():
    rng = np.random.default_rng(3)
    one, other = rng.integers(0, 6, (2, 3, 40)), np.full(40, 5)
    found = compare_samples(
        [make_sample(one[0], targets=other), make_sample(one[1], targets=other)]
    )
    d = (one[0] - one[1]) / 5
    rest = d - d.mean(0) - d.mean(1, keepdims=True) + d.mean()
    noise = (rest**2).sum() / ((3 - 1) * 40)
    variance = (d.mean(0).var() - noise / 3) / 40
    assert found.example_error[0, 1] ** 2 == pytest.approx(max(variance, 0), abs=1e-12)
    assert found.seed_error[0, 1] == pytest.approx(d.mean(1).std(ddof=1) / math.sqrt(3))


def test_runs_are_paired_by_common_seeds():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, (2, 3, 50))
    expected = compare_pair(make_sample(a[1:], seeds=(1, 2)), make_sample(b[1:], seeds=(1, 2)))
    found = compare_pair(
        make_sample(a, seeds=(0, 1, 2)), make_sample(b[[1, 2, 0]], seeds=(1, 2, 7))
    )
    assert found == pytest.approx(expected)
    unpaired = compare_samples([make_sample(a), make_sample(b, seeds=(7, 8, 9)), None])
    assert np.isnan(unpaired.p[0, 1:]).all()
    shorter = compare_samples([make_sample(a), make_sample(b[:, :40])])
    assert np.isnan(shorter.p[0, 1])


def test_combination_of_single_task_is_that_task():
    rng = np.random.default_rng(5)
    part = compare_samples([make_sample(rng.integers(0, 2, (3, 200))) for _ in range(3)])
    alone, twice = combine([part]), combine([part, part])
    assert alone.p == pytest.approx(part.p, rel=1e-6)
    assert twice.difference == pytest.approx(part.difference)
    # Twice the data: errors shrink by the square root of two, and the degrees of freedom double.
    assert twice.seed_error == pytest.approx(part.seed_error / math.sqrt(2))
    assert twice.freedom[0, 1] == pytest.approx(4)


def test_holm_by_hand():
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def contrasts_of(difference, p):
    zeros = np.zeros(np.shape(p))
    return Contrasts(
        difference=np.array(difference),
        seed_error=zeros,
        freedom=zeros,
        example_error=zeros,
        p=np.array(p),
    )


def ranks(values, contrasts, intervals=None, metric=ACCURACY):
    wins = find_wins(values, intervals or [None] * len(values), contrasts, metric)
    return [None if x is None else 1 + int(n) for x, n in zip(values, wins.sum(0), strict=True)]


P_VALUES = [[1, 0.2, 0.01], [0.2, 1, 0.3], [0.01, 0.3, 1]]


def test_rank_counts_rows_that_are_significantly_better():
    values = np.array([0.5, 0.45, 0.4])
    found = contrasts_of(values[:, None] - values, P_VALUES)
    assert ranks([0.5, 0.45, 0.4], found) == [1, 1, 2]


def test_lower_is_better_reverses_ranks():
    values = np.array([0.5, 0.45, 0.4])
    found = contrasts_of(values[:, None] - values, P_VALUES)
    assert ranks([0.5, 0.45, 0.4], found, metric=get_metric("bits_per_byte")) == [2, 1, 1]


def seed_interval(low, high):
    return Interval(low=low, high=high, over="seeds")


@pytest.mark.parametrize(
    ("name", "expected"), [("accuracy", [1, 1, None, 3]), ("perplexity", [2, 2, None, 1])]
)
def test_untested_rows_with_overlapping_intervals_share_rank(name, expected):
    found = contrasts_of(np.full((4, 4), np.nan), np.full((4, 4), np.nan))
    spans = [seed_interval(0.25, 0.45), seed_interval(0.4, 0.6), None, seed_interval(0.1, 0.2)]
    assert ranks([0.4, 0.5, None, 0.15], found, spans, get_metric(name)) == expected


def test_row_is_not_ranked_below_row_it_beats_on_common_seeds():
    """Compare a row that is better over more seeds and significantly worse on the common seed."""
    several = make_sample(np.arange(1000) < np.array([[300], [600], [600]]))
    alone = make_sample(np.arange(1000) < 400)
    found = compare_samples([several, alone])
    assert found.p[0, 1] < 0.001
    assert ranks([0.5, 0.4], found) == [1, 1]


def test_pairs_have_comparisons_if_two_rows_were_compared():
    """Ignore the diagonal: a row compared with itself is no comparison."""
    p = np.full((5, 5), np.nan)
    p[0, 0] = 1.0
    assert not contrasts_of(p, p).has_comparisons
    p[:2, :2] = [[1, 0.3], [0.3, 1]]
    assert contrasts_of(p, p).has_comparisons


SLOW_CASES = [pytest.param(*x, marks=pytest.mark.slow) for x in ((2, 0.0), (3, 0.0), (5, 0.05))]


@pytest.mark.parametrize(("seeds", "effect"), [(3, 0.15), *SLOW_CASES])
def test_intervals_and_tests_have_nominal_error_rates(seeds, effect):
    rng = np.random.default_rng(11)
    covered = wrong = 0
    num_simulations = 500
    for _ in range(num_simulations):
        difficulty = rng.normal(size=400)
        # The score of the mechanism, over all seeds and examples, is 0.4.
        true = statistics.NormalDist().cdf(INVERSE(0.4) / math.sqrt(1 + effect**2))
        one, other = (simulate_answers(rng, seeds, 400, effect, 0.5, difficulty) for _ in range(2))
        found = interval(list(one.values), ACCURACY, 400, one)
        covered += found.low <= true <= found.high
        wrong += compare_pair(one, other)[1] < 0.05
    # Four standard deviations of a count of 500 are 3.9 %.
    assert covered / num_simulations >= 0.91
    assert wrong / num_simulations <= 0.09


@pytest.mark.parametrize(("shared", "effect"), [(0.0, 0.0), (0.5, 0.05)])
def test_error_rate_holds_for_tied_seeds(shared, effect):
    """Check the tails: with tied seeds, all noise is in the examples."""
    rng, num_simulations, rows = np.random.default_rng(1), 80, 20
    pairs, arrows = [], 0
    for _ in range(num_simulations):
        difficulty = rng.normal(size=300)
        runs = [simulate_answers(rng, 2, 300, effect, shared, difficulty) for _ in range(rows)]
        p = compare_samples(runs).p
        pairs.append(p[np.triu_indices(rows, 1)])
        arrows += min(holm(list(p[0, 1:]))) < 0.05
    wrong = np.concatenate(pairs)
    assert (wrong < 0.05).mean() <= 0.06
    assert (wrong < 0.001).mean() <= 0.001
    # Family-wise: four standard deviations of a count of 80 are 9.7 %.
    assert arrows / num_simulations <= 0.147


def test_real_difference_is_significant():
    rng = np.random.default_rng(0)
    difficulty = rng.normal(size=2000)
    low, high = (simulate_answers(rng, 3, 2000, 0.01, 0.5, difficulty, x) for x in (0.35, 0.42))
    assert compare_pair(high, low)[1] < 0.05


def test_interval_over_seeds_and_examples_is_wider():
    rng = np.random.default_rng(2)
    both = simulate_answers(rng, 3, 300, 0.05, 0.95, rng.normal(size=300))
    values = list(both.values)
    whole, seeds_alone = interval(values, ACCURACY, 300, both), interval(values, ACCURACY, 300)
    assert (whole.over, seeds_alone.over) == ("seeds and examples", "seeds")
    assert whole.high - whole.low > seeds_alone.high - seeds_alone.low


def test_interval_ends_have_p_value_of_5_percent():
    rng = np.random.default_rng(4)
    own = simulate_answers(rng, 3, 500, 0.1, 0.5, rng.normal(size=500))
    found = interval(list(own.values), ACCURACY, 500, own)
    center = own.values.mean()
    # A sample without noise represents a fixed value.
    fixed = Sample(metric=ACCURACY, seeds=own.seeds, statistics=np.zeros_like(own.statistics))
    fixed.__dict__.update(values=np.full(3, found.low), deviations=0 * own.deviations)
    difference, p = compare_pair(own, fixed)
    assert difference == pytest.approx(center - found.low)
    assert p == pytest.approx(0.05, abs=1e-6)


def test_identical_seeds_leave_example_error():
    rng = np.random.default_rng(0)
    right = np.tile(rng.random(400) < 0.3, (3, 1))
    found = interval([right[0].mean()] * 3, ACCURACY, 400, make_sample(right))
    half = 1.96 * math.sqrt(right[0].mean() * (1 - right[0].mean()) / 400)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.06)


def test_tied_seeds_have_interval_of_single_run():
    """Treat the spread of tied seeds as unknown, not zero."""
    perfect = make_sample(np.ones((3, 500)))
    assert interval([1.0] * 3, ACCURACY, 500, perfect) == interval([1.0], ACCURACY, 500)
    ties = make_sample(np.stack([np.arange(100) < 50, np.arange(100) >= 50]))
    with_scores = interval([0.5, 0.5], ACCURACY, 100, ties)
    without = interval([0.5, 0.5], ACCURACY, 100)
    assert with_scores == without == interval([0.5], ACCURACY, 100)


def test_correlated_answers_of_one_example_count_once():
    """Expect the interval of one answer per example for ten identical answers."""
    right = np.repeat([0, 10], [60, 40])
    correlated = make_sample(right, targets=[10] * 100)
    found, single = interval([0.4], ACCURACY, 1000, correlated), interval([0.4], ACCURACY, 100)
    assert (found.low, found.high) == pytest.approx((single.low, single.high))


F1 = get_metric("f1")
BITS = get_metric("bits_per_byte")


def f1_sample(rng, n, hit_rate, seeds=1):
    """Sample statistics of a balanced binary task with a false-positive rate of 0.33."""
    wanted = rng.random((seeds, n)) < 0.5
    predicted = np.where(wanted, rng.random((seeds, n)) < hit_rate, rng.random((seeds, n)) < 0.33)
    parts = (wanted & predicted, ~wanted & predicted, wanted & ~predicted)
    return Sample(
        metric=F1, seeds=tuple(range(seeds)), statistics=np.stack(parts, axis=-1).astype(float)
    )


def test_bootstrap_of_f1_equals_resampled_sums():
    one = f1_sample(np.random.default_rng(0), 60, 0.7)
    draws = np.random.default_rng(7).integers(60, size=(4000, 60))
    values = F1.finalize(one.statistics[0][draws].sum(axis=1))
    error = np.sqrt((one.deviations**2).sum())
    assert error == pytest.approx(values.std(), rel=0.05)
    found = interval([float(one.values[0])], F1, 60, one)
    assert (found.low, found.high) == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.015)
    assert found.over == "examples"


def test_bootstrap_is_deterministic():
    first, second = (f1_sample(np.random.default_rng(0), 60, 0.7) for _ in range(2))
    assert (first.deviations == second.deviations).all()


def test_paired_bootstrap_finds_differences_and_accepts_equality():
    rng = np.random.default_rng(1)
    low, high = f1_sample(rng, 800, 0.5), f1_sample(rng, 800, 0.8)
    difference, p = compare_pair(high, low)
    assert difference > 0.1
    assert p == 1 / (DRAWS + 1)
    assert compare_pair(low, high) == pytest.approx((-difference, p))
    assert compare_pair(low, low) == (0.0, 1.0)


def test_paired_bootstrap_has_nominal_error_rate():
    rng = np.random.default_rng(2)
    p = [compare_pair(f1_sample(rng, 200, 0.6), f1_sample(rng, 200, 0.6))[1] for _ in range(60)]
    # Four standard deviations of a count of 60 are 11 %.
    assert np.mean(np.array(p) < 0.05) <= 0.16


def test_pairing_removes_document_difficulty():
    """Compare models that differ by 1 % on documents that differ by far more."""
    rng = np.random.default_rng(3)
    nats = rng.gamma(2.0, 500.0, size=200)
    sizes = np.full(200, 1000.0)
    better, worse = (
        make_sample(nats, targets=sizes, metric=BITS),
        make_sample(1.01 * nats, targets=sizes, metric=BITS),
    )
    difference, p = compare_pair(better, worse)
    assert difference < 0
    assert p < 0.001
    alone = interval([float(better.values[0])], BITS, 200, better)
    assert alone.high - alone.low > 10 * abs(difference)


def test_bootstrap_of_ratio_agrees_with_linearization():
    rng = np.random.default_rng(5)
    sizes = rng.integers(500, 1500, 400)
    nats = rng.gamma(2.0, 500.0, size=400) * rng.normal(1.0, 0.02, size=(3, 400))
    other = nats * rng.normal(1.05, 0.1, size=400)
    found = compare_samples([make_sample(x, targets=sizes, metric=BITS) for x in (nats, other)])
    linear = compare_samples([make_sample(x, targets=sizes) for x in (nats, other)])
    scale = math.log(2)
    assert scale * found.difference == pytest.approx(linear.difference)
    assert scale * found.example_error[0, 1] == pytest.approx(linear.example_error[0, 1], rel=0.1)
    assert scale * found.seed_error == pytest.approx(linear.seed_error)


def test_single_seed_without_example_scores_has_no_interval():
    assert interval([1.1], BITS, 100) is None
    assert interval([1.1, 1.2], BITS, 100).over == "seeds"


def test_intervals_stay_within_range_of_metric():
    assert interval([0.9, 0.99], F1, 100).high == 1.0
    assert interval([0.9, 2.0], BITS, 100).high > 2.0
    assert interval([0.1, 2.0], BITS, 100).low == 0.0
