"""Paired tests and intervals, against enumeration, hand-computed values and simulation."""

import dataclasses
import itertools
import math
import statistics

import numpy as np
import pytest
from report_records import interval_of

from longspan.metrics import METRICS, get_metric
from longspan.report.leaderboard.ranking import place_rows
from longspan.report.statistics.contrasts import (
    Contrasts,
    adjust_pairs,
    combine,
    compare_rows,
    find_wins,
    holm,
    two_sided,
)
from longspan.report.statistics.intervals import student
from longspan.report.statistics.noise import Sample, SeedVariance, measure_noise, pool_seeds

INVERSE = statistics.NormalDist().inv_cdf
ACCURACY, PERPLEXITY = get_metric("accuracy"), get_metric("perplexity")


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


def measure(sample, pooled, data="test"):
    return measure_noise(
        list(sample.values), sample.metric, sample.num_examples, sample, pooled, data
    )


def compare_samples(samples):
    """Compare the rows of one table."""
    pooled = pool_seeds([sample.values.tolist() for sample in samples])
    return compare_rows([measure(sample, pooled) for sample in samples])


def compare_pair(one, other):
    found = compare_samples([one, other])
    return found.difference[0, 1], found.p[0, 1]


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
    difficulty, pooled = rng.normal(size=300), SeedVariance(value=1e-4, freedom=5)
    several = [
        measure(simulate_answers(rng, seeds, 300, 0.1, 0.5, difficulty, 0.3 + 0.1 * i), pooled)
        for i in range(4)
    ]
    found = compare_rows(several)
    assert found.p == pytest.approx(found.p.T, rel=1e-6)
    assert found.difference == pytest.approx(-found.difference.T)
    for i, j in itertools.combinations(range(4), 2):
        pair = compare_rows([several[i], several[j]])
        assert (pair.difference[0, 1], pair.p[0, 1]) == pytest.approx(
            (found.difference[i, j], found.p[i, j]), rel=1e-6
        )


def test_example_error_is_that_of_two_way_tables():
    rng = np.random.default_rng(3)
    one, other = rng.integers(0, 6, (2, 3, 40)), np.full(40, 5)
    found = compare_samples(
        [make_sample(one[0], targets=other), make_sample(one[1], targets=other)]
    )
    noise = 0.0
    for d in one / 5:
        rest = d - d.mean(0) - d.mean(1, keepdims=True) + d.mean()
        noise += (rest**2).sum() / ((3 - 1) * 40)
    variance = ((one[0] - one[1]).mean(0) / 5).var() / 40 - noise / 3 / 40
    assert found.example_error[0, 1] ** 2 == pytest.approx(max(variance, 0), abs=1e-12)
    pooled = np.mean([(x / 5).mean(1).var(ddof=1) for x in one])
    own = [max(pooled, (x / 5).mean(1).var(ddof=1)) for x in one]
    assert found.seed_error[0, 1] == pytest.approx(math.sqrt(sum(own) / 3))
    assert found.freedom[0, 1] == pytest.approx(4)


def test_single_seed_borrows_the_variance_of_the_table():
    """Check by hand: variances 1 and 4 of two and three seeds pool to (1 + 2 * 4) / 3 = 3."""
    pooled = pool_seeds([[1.0, 1.0 + math.sqrt(2)], [0.0, 2.0, 4.0], [9.0]])
    assert (pooled.value, pooled.freedom) == (pytest.approx(3.0), 3)
    alone, wide, narrow = (
        measure_noise(values, PERPLEXITY, 10, None, pooled)
        for values in ([9.0], [0.0, 2.0, 4.0], [5.0, 5.0])
    )
    errors = (alone.seed_error, wide.seed_error, narrow.seed_error)
    assert errors == pytest.approx((math.sqrt(3), math.sqrt(4 / 3), math.sqrt(3 / 2)))
    assert (alone.is_borrowed, wide.is_borrowed) == (True, False)
    assert (alone.freedom, wide.freedom, narrow.freedom) == (3, 2, 3)
    # Welch and Satterthwaite: 4.83, but the table has 3 degrees of freedom in all.
    assert compare_rows([alone, wide]).freedom[0, 1] == 3
    assert compare_rows([alone, narrow]).freedom[0, 1] == pytest.approx(3)


def test_own_variances_have_the_freedom_of_their_rows():
    """Check by hand: (1 + 4 / 3)^2 / (1^2 / 1 + (4 / 3)^2 / 2) of two and three seeds."""
    few = measure_noise([0.0, 2.0], PERPLEXITY, 10, None, SeedVariance(value=0.1, freedom=20))
    more = measure_noise([0.0, 2.0, 4.0], PERPLEXITY, 10, None, SeedVariance(value=1, freedom=20))
    alone = measure_noise([1.0], PERPLEXITY, 10, None, SeedVariance(value=0.1, freedom=20))
    found = compare_rows([few, more, alone])
    assert (few.freedom, more.freedom, alone.freedom) == (1, 2, 20)
    assert found.freedom[0, 1] == pytest.approx((7 / 3) ** 2 / (1 + 8 / 9))
    assert found.freedom[0, 2] == pytest.approx(1.1**2 / (1 + 0.01 / 20))


@pytest.mark.parametrize(("seeds", "least"), [(2, 0.90), (3, 0.93)])
def test_interval_of_an_unstable_row_covers_its_mean(seeds, least):
    """Simulate 11 stable rows of three seeds, and one that spreads ten times as much.

    Of 200,000 tables the interval covers 92.7 % with two seeds: in one of twelve, their variance is
    below the pooled one. With three seeds it covers 94.9 %.
    """
    rng, num_simulations, covered = np.random.default_rng(0), 1000, 0
    for _ in range(num_simulations):
        stable = rng.normal(10.0, 0.005, size=(11, 3)).tolist()
        unstable = rng.normal(10.0, 0.05, size=seeds).tolist()
        found = interval_of(unstable, PERPLEXITY, 1, None, pool_seeds([*stable, unstable]))
        covered += found.low <= 10.0 <= found.high
    assert covered / num_simulations >= least


@pytest.mark.parametrize("others", [[], [[0.5]], [[0.5, 0.5], [0.7, 0.7, 0.7]]])
def test_single_seed_without_variance_to_borrow_is_not_compared(others):
    rows = [[0.9], [0.1], *others]
    pooled = pool_seeds(rows)
    found = compare_rows([measure_noise(x, ACCURACY, 10**6, None, pooled) for x in rows])
    assert np.isnan(found.p[:2]).all()
    assert not find_wins(found, ACCURACY)[:2].any()
    placed = place_rows(found, ACCURACY, 1)
    assert [(x.ranks, x.arrow, x.is_best, x.p) for x in placed[:2]] == [(None, "", False, None)] * 2
    assert placed[0].difference == pytest.approx(0.8)


def test_rows_on_other_examples_are_compared_without_pairs():
    rng, pooled = np.random.default_rng(0), SeedVariance(value=1e-9, freedom=99)
    right = rng.random(400) < 0.5
    harder = right & (np.arange(400) % 20 > 0)
    one, other = (measure(make_sample(x), pooled) for x in (right, harder))
    elsewhere = measure(make_sample(harder), pooled, "other")
    paired, apart = compare_rows([one, other]), compare_rows([one, elsewhere])
    assert paired.example_error[0, 1] < 0.5 * apart.example_error[0, 1]
    alone = math.hypot(one.example_error, elsewhere.example_error)
    assert apart.example_error[0, 1] == pytest.approx(alone)


def test_combination_of_single_task_is_that_task():
    rng = np.random.default_rng(5)
    part = compare_samples([make_sample(rng.integers(0, 2, (3, 200))) for _ in range(3)])
    alone, twice = combine([part]), combine([part, part])
    assert alone.p == pytest.approx(part.p, rel=1e-6)
    assert twice.difference == pytest.approx(part.difference)
    # Twice the data: errors shrink by the square root of two, and the degrees of freedom double.
    assert twice.seed_error == pytest.approx(part.seed_error / math.sqrt(2))
    assert part.freedom[0, 1] == 6
    assert twice.freedom[0, 1] == pytest.approx(12)


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


P_VALUES = [[1, 0.2, 0.01], [0.2, 1, 0.3], [0.01, 0.3, 1]]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("accuracy", [(1, 2), (1, 3), (2, 3)]), ("bits_per_byte", [(2, 3), (1, 3), (1, 2)])],
)
def test_ranks_are_ranges_that_corrected_tests_leave_open(metric, expected):
    values = np.array([0.5, 0.45, 0.4])
    found = contrasts_of(values[:, None] - values, P_VALUES)
    assert adjust_pairs(found.p)[0, 2] == pytest.approx(0.03)
    assert [x.ranks for x in place_rows(found, get_metric(metric), None)] == expected


def test_difference_that_is_significant_for_the_pair_alone_decides_nothing():
    found = contrasts_of(np.array([[0, 0.1, 0.2], [-0.1, 0, 0.1], [-0.2, -0.1, 0]]), P_VALUES)
    found.p[[0, 2], [2, 0]] = 0.04  # 0.12 among three pairs
    assert [x.ranks for x in place_rows(found, ACCURACY, 2)] == [(1, 3)] * 3
    assert [x.arrow for x in place_rows(found, ACCURACY, 2)] == [""] * 3


def test_rows_without_a_score_have_no_place_and_count_for_no_rank():
    values = np.array([0.5, np.nan, 0.4])
    p = np.array([[1, np.nan, 0.01], [np.nan] * 3, [0.01, np.nan, 1]])
    best, none, second = place_rows(contrasts_of(values[:, None] - values, p), ACCURACY, 2)
    assert (best.ranks, none, second.ranks) == ((1, 1), None, (2, 2))
    assert (best.is_best, second.is_second, best.arrow) == (True, True, "↑")


def place_table(values, metric=ACCURACY):
    """Return the places of a table from the scores of its seeds, without noise of examples."""
    pooled = pool_seeds(values)
    noises = [measure_noise(x, metric, 10**9, None, pooled) for x in values]
    return place_rows(compare_rows(noises), metric, None)


def test_mechanism_that_fails_one_of_three_seeds_does_not_lead():
    steady = [[0.70, 0.71, 0.70], [0.60, 0.61, 0.60], [0.50, 0.51, 0.50]]
    assert [x.ranks for x in place_table(steady)] == [(1, 1), (2, 2), (3, 3)]
    *_, failing = place_table([*steady, [0.80, 0.79, 0.10]])
    assert failing.ranks == (1, 4)
    assert not failing.is_best


@pytest.mark.parametrize("row", range(4))
def test_noise_never_improves_the_rank_that_a_row_can_claim(row):
    """Spread the seeds of a row about the same mean: it beats no more rows, and gains no mark."""
    table, before = [[x, x + 0.004, x + 0.008] for x in (0.7, 0.6, 0.5, 0.4)], None
    for spread in (0.0, 0.01, 0.03, 0.1, 0.3):
        values = [list(x) for x in table]
        values[row][0] -= spread
        values[row][2] += spread
        placed = place_table(values)
        after = (placed[row].ranks[1], not placed[row].is_best)
        assert before is None or all(x >= y for x, y in zip(after, before, strict=True))
        before = after
    assert before == (4, True)


TRUTH = (10.0, 10.0, 10.0, 10.0, 11.0, 12.0, 14.0, 17.0)


@pytest.mark.parametrize(
    ("truth", "seeds", "width", "power"),
    [
        (TRUTH, (3,) * 8, 1.0, 0.9),
        (TRUTH, (3, 1, 2, 1, 1, 3, 1, 1), 1.0, 0.3),
        ((10.0,) * 8, (3, 1, 2, 1, 1, 3, 1, 1), 1.0, 0.0),
        ((10.0,) * 8, (3,) * 8, 5.0, 0.0),
    ],
)
def test_true_ranks_lie_in_all_ranges_with_probability_95_percent(truth, seeds, width, power):
    """Simulate tables; the seeds of the first row spread by `width`."""
    rng, num_simulations, covered, decided = np.random.default_rng(5), 200, 0, 0
    spreads = [width, *[1.0] * 7]
    lows = [1 + sum(y < x for y in truth) for x in truth]
    highs = [8 - sum(y > x for y in truth) for x in truth]
    for _ in range(num_simulations):
        values = [
            (x + spread * rng.normal(size=count)).tolist()
            for x, count, spread in zip(truth, seeds, spreads, strict=True)
        ]
        ranks = [place.ranks for place in place_table(values, PERPLEXITY)]
        covered += all(
            found[0] <= low and found[1] >= high
            for found, low, high in zip(ranks, lows, highs, strict=True)
        )
        decided += any(found != (1, 8) for found in ranks)
    # Four standard deviations of a count of 200 are 6.2 %.
    assert covered / num_simulations >= 0.95 - 0.062
    assert decided / num_simulations >= power


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
        found = interval_of(list(one.values), ACCURACY, 400, one)
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
    assert (wrong < 0.001).mean() <= 0.0015
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
    whole, seeds_alone = (
        interval_of(values, ACCURACY, 300, both),
        interval_of(values, ACCURACY, 300),
    )
    assert (whole.over, seeds_alone.over) == ("seeds and examples", "seeds")
    assert whole.high - whole.low > seeds_alone.high - seeds_alone.low


def test_interval_ends_have_p_value_of_5_percent():
    rng = np.random.default_rng(4)
    own = simulate_answers(rng, 3, 500, 0.1, 0.5, rng.normal(size=500))
    found = interval_of(list(own.values), ACCURACY, 500, own)
    center = own.values.mean()
    noise = measure(own, pool_seeds([own.values.tolist()]))
    fixed = dataclasses.replace(
        noise, score=found.low, seed_error=0.0, terms=0 * noise.terms, shared=0.0
    )
    pair = compare_rows([noise, fixed])
    assert pair.difference[0, 1] == pytest.approx(center - found.low)
    assert pair.p[0, 1] == pytest.approx(0.05, abs=1e-6)


def test_identical_seeds_leave_example_error():
    rng = np.random.default_rng(0)
    right = np.tile(rng.random(400) < 0.3, (3, 1))
    found = interval_of([right[0].mean()] * 3, ACCURACY, 400, make_sample(right))
    half = 1.96 * math.sqrt(right[0].mean() * (1 - right[0].mean()) / 400)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.06)


def test_tied_seeds_have_interval_of_single_run():
    """Treat the spread of tied seeds as unknown, not zero."""
    perfect = make_sample(np.ones((3, 500)))
    assert interval_of([1.0] * 3, ACCURACY, 500, perfect) == interval_of([1.0], ACCURACY, 500)
    ties = make_sample(np.stack([np.arange(100) < 50, np.arange(100) >= 50]))
    with_scores = interval_of([0.5, 0.5], ACCURACY, 100, ties)
    without = interval_of([0.5, 0.5], ACCURACY, 100)
    assert with_scores == without == interval_of([0.5], ACCURACY, 100)


def test_correlated_answers_of_one_example_count_once():
    """Expect the interval of one answer per example for ten identical answers."""
    right = np.repeat([0, 10], [60, 40])
    correlated = make_sample(right, targets=[10] * 100)
    found, single = (
        interval_of([0.4], ACCURACY, 1000, correlated),
        interval_of([0.4], ACCURACY, 100),
    )
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
    found = interval_of([float(one.values[0])], F1, 60, one)
    assert (found.low, found.high) == pytest.approx(np.quantile(values, [0.025, 0.975]), abs=0.015)
    assert found.over == "examples"


def test_bootstrap_finds_differences_and_accepts_equality():
    rng = np.random.default_rng(1)
    low, high = f1_sample(rng, 800, 0.5, 2), f1_sample(rng, 800, 0.8, 2)
    difference, p = compare_pair(high, low)
    assert difference > 0.1
    assert p < 0.05
    assert compare_pair(low, high) == pytest.approx((-difference, p))
    assert compare_pair(low, low) == (0.0, 1.0)


def test_bootstrap_has_nominal_error_rate():
    rng = np.random.default_rng(2)
    p = [compare_pair(*(f1_sample(rng, 200, 0.6, 2) for _ in "ab"))[1] for _ in range(60)]
    # Four standard deviations of a count of 60 are 11 %.
    assert np.mean(np.array(p) < 0.05) <= 0.16


def test_pairing_removes_document_difficulty():
    """Compare models that differ by 1 % on documents that differ by far more."""
    rng = np.random.default_rng(3)
    nats = rng.gamma(2.0, 500.0, size=200)
    sizes = np.full(200, 1000.0)
    better, worse = (
        make_sample(np.stack([nats, 1.0001 * nats]) * x, targets=sizes, metric=BITS)
        for x in (1.0, 1.01)
    )
    difference, p = compare_pair(better, worse)
    assert difference < 0
    assert p < 0.001
    alone = interval_of(
        [float(better.values[0])],
        BITS,
        200,
        dataclasses.replace(better, seeds=(0,), statistics=better.statistics[:1]),
    )
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
    assert interval_of([1.1], BITS, 100) is None
    assert interval_of([1.1, 1.2], BITS, 100).over == "seeds"


@pytest.mark.parametrize("size", [0.05, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_interval_contains_its_score_and_values_of_the_metric_alone(name, seeds, size):
    """Scores may be near both ends; R² may be negative, where errors exceed the deviations."""
    metric, rng = get_metric(name), np.random.default_rng(seeds)
    targets = rng.integers(1, 9, (seeds, 60, 1))
    shape = (seeds, 60, len(metric.columns) - 1)
    largest = size if metric.highest == math.inf or metric.lowest < 0 else min(size, 1)
    values = targets * rng.uniform(0, largest, shape)
    if metric.comparison == "mcnemar":
        values = values.round()
    both = np.concatenate((values, targets), axis=-1).astype(float)
    sample = Sample(metric=metric, seeds=tuple(range(seeds)), statistics=both)
    scores = sample.values.tolist()
    found = interval_of(scores, metric, 60, sample)
    assert metric.lowest <= found.low <= statistics.fmean(scores) <= found.high <= metric.highest


def test_intervals_stay_within_range_of_metric():
    for metric in (ACCURACY, F1):
        assert interval_of([0.9, 0.99], metric, 100).high == 1.0
        assert interval_of([0.01, 0.1], metric, 100).low == 0.0
    assert interval_of([0.9, 2.0], BITS, 100).high > 2.0
    assert interval_of([0.1, 2.0], BITS, 100).low == 0.0
