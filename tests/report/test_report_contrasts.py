"""Paired tests and intervals against exact enumeration, hand-computed values and simulation."""

import itertools
import math
import statistics

import numpy as np
import pytest

from longspan.report.rows import Pairs
from longspan.report.significance import (
    Contrasts,
    Sample,
    contrasts,
    erfc,
    holm,
    mcnemar,
    ranks,
    together,
    two_sided,
)
from longspan.report.statistics import interval, student

INVERSE = statistics.NormalDist().inv_cdf


def sample(right, seeds=None, asked=None):
    right = np.atleast_2d(np.asarray(right, np.uint16))
    asked = np.ones(right.shape[1], np.uint16) if asked is None else np.asarray(asked, np.uint16)
    return Sample(seeds=tuple(seeds or range(len(right))), right=right, asked=asked)


def simulated(rng, seeds, examples, seed_effect, shared, difficulty, accuracy=0.4):
    """Answers with a difficulty that all runs share, and an effect of the seed."""
    own = rng.normal(size=(seeds, examples)) * math.sqrt(1 - shared)
    bar = INVERSE(accuracy) + seed_effect * rng.normal(size=(seeds, 1))
    return sample(difficulty * math.sqrt(shared) + own < bar)


def pair(one, other):
    found = contrasts([one, other])
    return found.difference[0, 1], found.p[0, 1]


def test_mcnemar_by_hand():
    # Of 12 examples 10 to 2: 2 (1 + 12 + 66) / 4096 - 66 / 4096; 5 to 5; 1 to 0: 2/2 - 1/2.
    found = mcnemar(np.array([10, 5, 1, 0]), np.array([2, 5, 0, 0]))
    assert found == pytest.approx([92 / 4096, 1.0, 0.5, 1.0], abs=1e-12)


@pytest.mark.parametrize(("better", "worse"), [(3, 1), (7, 2), (4, 4), (0, 6)])
def test_mcnemar_is_the_enumeration_of_all_signs(better, worse):
    number, observed = better + worse, abs(better - worse)
    sums = [abs(sum(signs)) for signs in itertools.product((-1, 1), repeat=number)]
    beyond = sum(x > observed for x in sums) + 0.5 * sum(x == observed for x in sums)
    expected = 1.0 if observed == 0 else beyond / 2**number
    assert mcnemar(np.array([better]), np.array([worse]))[0] == pytest.approx(expected, abs=1e-12)


def test_one_seed_is_compared_by_the_examples_that_differ():
    one = sample([1] * 10 + [0] * 2 + [1] * 30 + [0] * 8)
    other = sample([0] * 10 + [1] * 2 + [1] * 30 + [0] * 8)
    assert pair(one, other) == pytest.approx((8 / 50, 92 / 4096))
    assert pair(other, one) == pytest.approx((-8 / 50, 92 / 4096))


def test_erfc_is_the_one_of_the_standard_library():
    places = np.linspace(0, 8, 200)
    assert erfc(places) == pytest.approx([math.erfc(x) for x in places], rel=1e-6)


@pytest.mark.parametrize("freedom", [1, 2, 3, 9])
def test_without_examples_the_test_is_students(freedom):
    """The quantile is computed another way, in closed form."""
    for inside in (0.5, 0.95, 0.999):
        t = np.array([student(freedom, inside)])
        p = two_sided(t, np.ones(1), np.full(1, float(freedom)), np.zeros(1))
        assert p[0] == pytest.approx(1 - inside, rel=1e-5)


def test_without_seeds_the_test_is_the_normal_one():
    p = two_sided(np.array([1.959964]), np.zeros(1), np.zeros(1), np.ones(1))
    assert p[0] == pytest.approx(0.05, abs=1e-6)


def test_both_together_are_the_sum_of_draws():
    rng = np.random.default_rng(0)
    t = rng.standard_t(2, size=400_000) * 0.5 + rng.normal(size=400_000)
    for size in (0.5, 2.0, 4.0):
        p = two_sided(np.array([size]), np.array([0.5]), np.array([2.0]), np.ones(1))
        assert p[0] == pytest.approx((np.abs(t) >= size).mean(), abs=0.003)


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_all_pairs_at_once_are_the_pairs_one_by_one_and_symmetric(seeds):
    rng = np.random.default_rng(seeds)
    difficulty = rng.normal(size=300)
    several = [simulated(rng, seeds, 300, 0.1, 0.5, difficulty, 0.3 + 0.1 * i) for i in range(4)]
    found = contrasts(several)
    assert found.p == pytest.approx(found.p.T, rel=1e-6)
    assert found.difference == pytest.approx(-found.difference.T)
    for i, j in itertools.combinations(range(4), 2):
        assert pair(several[i], several[j]) == pytest.approx(
            (found.difference[i, j], found.p[i, j]), rel=1e-6
        )


def test_the_error_of_the_examples_is_that_of_their_means_in_a_two_way_table():
    rng = np.random.default_rng(3)
    one, other = rng.integers(0, 6, (2, 3, 40)), np.full(40, 5)
    found = contrasts([sample(one[0], asked=other), sample(one[1], asked=other)])
    d = (one[0] - one[1]) / 5
    rest = d - d.mean(0) - d.mean(1, keepdims=True) + d.mean()
    noise = (rest**2).sum() / ((3 - 1) * 40)
    variance = (d.mean(0).var() - noise / 3) / 40
    assert found.examples[0, 1] ** 2 == pytest.approx(max(variance, 0), abs=1e-12)
    assert found.seeds[0, 1] == pytest.approx(d.mean(1).std(ddof=1) / math.sqrt(3))


def test_runs_are_paired_by_the_seeds_that_both_have():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, (2, 3, 50))
    expected = pair(sample(a[1:], seeds=(1, 2)), sample(b[1:], seeds=(1, 2)))
    found = pair(sample(a, seeds=(0, 1, 2)), sample(b[[1, 2, 0]], seeds=(1, 2, 7)))
    assert found == pytest.approx(expected)
    strange = contrasts([sample(a), sample(b, seeds=(7, 8, 9)), None])
    assert np.isnan(strange.p[0, 1:]).all()
    shorter = contrasts([sample(a), sample(b[:, :40])])
    assert np.isnan(shorter.p[0, 1])


def test_the_mean_over_tasks_of_one_task_is_that_task():
    rng = np.random.default_rng(5)
    part = contrasts([sample(rng.integers(0, 2, (3, 200))) for _ in range(3)])
    alone, twice = together([part]), together([part, part])
    assert alone.p == pytest.approx(part.p, rel=1e-6)
    assert twice.difference == pytest.approx(part.difference)
    # twice the data: errors shrink by the root of two, and freedom doubles
    assert twice.seeds == pytest.approx(part.seeds / math.sqrt(2))
    assert twice.freedom[0, 1] == pytest.approx(4)


def test_holm_by_hand():
    assert holm([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def compared(difference, p):
    nothing = np.zeros(np.shape(p))
    return Contrasts(
        difference=np.array(difference), seeds=nothing, freedom=nothing, examples=nothing, p=p
    )


def test_ranks_are_shared_unless_a_better_row_is_significantly_better():
    p = np.array([[1, 0.2, 0.01], [0.2, 1, 0.3], [0.01, 0.3, 1]])
    values = np.array([0.5, 0.45, 0.4])
    pairs = compared(values[:, None] - values, p)
    assert ranks([0.5, 0.45, 0.4], pairs, np.ones((3, 3), bool)) == [1, 1, 2]


def test_where_no_pair_was_tested_rows_whose_intervals_overlap_share_a_rank():
    pairs = compared(np.full((4, 4), np.nan), np.full((4, 4), np.nan))
    apart = np.zeros((4, 4), bool)
    assert ranks([0.3, 0.5, None, 0.1], pairs, apart) == [1, 1, None, 1]
    apart[3, 1] = apart[1, 3] = True
    assert ranks([0.3, 0.5, None, 0.1], pairs, apart) == [1, 1, None, 2]


def test_a_row_is_not_ranked_below_one_that_it_beats_on_the_seeds_of_both():
    """The mean of one is over more seeds, and higher; where both ran it is lower, for certain."""
    several = sample(np.arange(1000) < np.array([[300], [600], [600]]))
    alone = sample(np.arange(1000) < 400)
    pairs = contrasts([several, alone])
    assert pairs.p[0, 1] < 0.001
    assert ranks([0.5, 0.4], pairs, np.zeros((2, 2), bool)) == [1, 1]


def test_pairs_are_known_if_two_rows_were_compared():
    """Rows without answers are not compared with themselves either."""
    p = np.full((5, 5), np.nan)
    p[0, 0] = 1.0
    assert not Pairs(labels=tuple("abcde"), difference=p, p=p).known
    p[:2, :2] = [[1, 0.3], [0.3, 1]]
    assert Pairs(labels=tuple("abcde"), difference=p, p=p).known


MORE = [pytest.param(*x, marks=pytest.mark.slow) for x in ((2, 0.0), (3, 0.0), (5, 0.05))]


@pytest.mark.parametrize(("seeds", "effect"), [(3, 0.15), *MORE])
def test_intervals_cover_and_tests_err_as_often_as_they_say(seeds, effect):
    rng = np.random.default_rng(11)
    covered = wrong = 0
    tables = 500
    for _ in range(tables):
        difficulty = rng.normal(size=400)
        # The score of the mechanism, over all seeds and examples, is 0.4.
        true = statistics.NormalDist().cdf(INVERSE(0.4) / math.sqrt(1 + effect**2))
        one, other = (simulated(rng, seeds, 400, effect, 0.5, difficulty) for _ in range(2))
        found = interval(list(one.accuracies), 400, one)
        covered += found.low <= true <= found.high
        wrong += pair(one, other)[1] < 0.05
    # Four standard deviations of a count of 500 are 3.9 %.
    assert covered / tables >= 0.91
    assert wrong / tables <= 0.09


@pytest.mark.parametrize(("shared", "effect"), [(0.0, 0.0), (0.5, 0.05)])
def test_two_seeds_that_tie_by_chance_are_not_certain(shared, effect):
    """The tails: where seeds tie, all of the noise is in the examples. Else 1 % have p < 0.001."""
    rng, tables, rows = np.random.default_rng(1), 80, 20
    pairs, arrows = [], 0
    for _ in range(tables):
        difficulty = rng.normal(size=300)
        runs = [simulated(rng, 2, 300, effect, shared, difficulty) for _ in range(rows)]
        p = contrasts(runs).p
        pairs.append(p[np.triu_indices(rows, 1)])
        arrows += min(holm(list(p[0, 1:]))) < 0.05
    wrong = np.concatenate(pairs)
    assert (wrong < 0.05).mean() <= 0.06
    assert (wrong < 0.001).mean() <= 0.001
    # Family-wise: four standard deviations of a count of 80 are 9.7 %.
    assert arrows / tables <= 0.147


def test_a_real_difference_is_found():
    rng = np.random.default_rng(0)
    difficulty = rng.normal(size=2000)
    low, high = (simulated(rng, 3, 2000, 0.01, 0.5, difficulty, x) for x in (0.35, 0.42))
    assert pair(high, low)[1] < 0.05


def test_intervals_over_seeds_and_examples_are_wider_than_over_either():
    rng = np.random.default_rng(2)
    answers = simulated(rng, 3, 300, 0.05, 0.95, rng.normal(size=300))
    accuracies = list(answers.accuracies)
    both = interval(accuracies, 300, answers)
    seeds_alone = interval(accuracies, 300)
    assert (both.over, seeds_alone.over) == ("seeds and examples", "seeds")
    assert both.high - both.low > seeds_alone.high - seeds_alone.low
    assert both == interval(accuracies, 300, answers)


def test_seeds_that_agree_leave_the_sampling_of_examples():
    rng = np.random.default_rng(0)
    right = np.tile(rng.random(400) < 0.3, (3, 1))
    found = interval([right[0].mean()] * 3, 400, sample(right))
    half = 1.96 * math.sqrt(right[0].mean() * (1 - right[0].mean()) / 400)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.06)


def test_seeds_that_tie_have_the_interval_of_one_run():
    """Their spread is unknown, not nothing; with or without the answers, perfect or not."""
    perfect = sample(np.ones((3, 500), int))
    assert interval([1.0] * 3, 500, perfect) == interval([1.0], 500)
    ties = sample(np.stack([np.arange(100) < 50, np.arange(100) >= 50]))
    assert interval([0.5, 0.5], 100, ties) == interval([0.5, 0.5], 100) == interval([0.5], 100)


def test_answers_to_one_example_count_together():
    """Ten answers an example that are right together say as much as one."""
    right = np.repeat([0, 10], [60, 40])
    together_ = interval([0.4], 1000, sample(right, asked=[10] * 100))
    assert together_ == interval([0.4], 100)
