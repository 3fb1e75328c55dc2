"""Redrawn scores against paired standard errors and hand-computed variances."""

import math
from dataclasses import replace

import numpy as np
import pytest
from report_records import record, record_of_answers, record_of_statistics

from longspan.report.leaderboard.build import scores_of
from longspan.report.statistics.contrasts import compare_rows
from longspan.report.statistics.noise import SeedVariance, measure_noise
from longspan.report.statistics.samples import DRAWS, read_sample
from longspan.report.statistics.score_draws import draw_scores

CLOSE = 4 / math.sqrt(2 * DRAWS)  # relative error of a standard deviation of so many draws


def measure(runs, pooled=None):
    examples, sample = runs[0].scores["test"].num_examples, read_sample(runs)
    return measure_noise(scores_of(runs), runs[0].main, examples, sample, pooled)


def draw(*rows, seed=0):
    return draw_scores([measure(runs) for runs in rows], np.random.default_rng(seed))


def test_examples_are_those_of_all_rows():
    """Compare with paired errors: rows that are wrong on the same examples keep their order."""
    rng = np.random.default_rng(1)
    hard = rng.random(400)
    rows = [[record_of_answers(f"m{i}", 0, hard < 0.4 + 0.03 * i)] for i in range(2)]
    rows.append([record_of_answers("apart", 0, rng.random(400) < 0.5)])
    found = draw(*rows)
    assert found.over == "examples"
    assert found.values.shape == (DRAWS, 3)
    expected = compare_rows([measure(runs) for runs in rows]).example_error
    for i, j in ((0, 1), (0, 2), (1, 2)):
        spread = (found.values[:, i] - found.values[:, j]).std()
        assert spread == pytest.approx(expected[i, j], rel=CLOSE)
    assert found.values.mean(axis=0) == pytest.approx([runs[0].score() for runs in rows], abs=0.005)


def test_seeds_of_two_rows_are_independent_and_have_students_t():
    rows = [[record(name, seed=s, score=0.3 + 0.01 * s) for s in range(9)] for name in "ab"]
    found = draw(*rows)
    assert found.over == "seeds"
    error = np.std([0.01 * s for s in range(9)], ddof=1) / 3
    # Student's t with 8 degrees of freedom has the variance 8 / 6.
    assert found.values.std(axis=0) == pytest.approx([error * math.sqrt(8 / 6)] * 2, rel=2 * CLOSE)
    assert abs(np.corrcoef(found.values.T)[0, 1]) < 0.1


def test_noise_of_seeds_and_examples_adds_up():
    rng = np.random.default_rng(0)
    answers = rng.random((9, 300)) < rng.random(300)
    runs = [record_of_answers("a", s, row) for s, row in enumerate(answers)]
    found = draw(runs)
    assert found.over == "seeds and examples"
    examples = compare_rows([measure(runs), measure(certain(300, 9))]).example_error[0, 1]
    seeds = np.std(answers.mean(axis=1), ddof=1) / 3
    expected = math.hypot(examples, seeds * math.sqrt(8 / 6))
    assert found.values.std() == pytest.approx(expected, rel=2 * CLOSE)


def test_single_seed_is_redrawn_with_the_variance_that_it_borrows():
    alone = measure([record("a")], SeedVariance(value=0.01**2, freedom=8))
    found = draw_scores([alone], np.random.default_rng(0))
    assert found.over == "seeds and examples"
    error = math.hypot(0.01 * math.sqrt(8 / 6), alone.example_error)
    assert found.values.std() == pytest.approx(error, rel=2 * CLOSE)


def test_noise_of_seeds_is_not_counted_twice():
    """Seeds that answer each example independently differ as much as examples would."""
    answers = np.random.default_rng(0).random((9, 300)) < 0.4
    found = draw([record_of_answers("a", s, row) for s, row in enumerate(answers)])
    seeds = np.std(answers.mean(axis=1), ddof=1) / 3
    assert found.values.std() == pytest.approx(seeds * math.sqrt(8 / 6), rel=0.15)


def certain(examples, seeds):
    return [record_of_answers("b", s, np.ones(examples)) for s in range(seeds)]


def test_accuracy_of_a_single_seed_is_binomial_without_example_scores():
    found = draw([record("a", score=0.36)])
    assert found.over == "examples"
    assert found.values.std() == pytest.approx(math.sqrt(0.36 * 0.64 / 2000), rel=CLOSE)


def test_bootstrap_metrics_are_redrawn():
    nats = np.random.default_rng(0).gamma(2.0, size=200)
    both = np.stack([nats, np.ones(200)], axis=1)
    found = draw([record_of_statistics("a", 0, both, "novels", "perplexity")])
    # By the delta method: perplexity times the standard error of the mean.
    expected = math.exp(nats.mean()) * nats.std() / math.sqrt(200)
    assert found.values.std() == pytest.approx(expected, rel=0.15)


def test_noise_of_documents_is_named():
    nats = np.stack([np.random.default_rng(0).gamma(2.0, size=40), np.ones(40)], axis=1)
    runs = [record_of_statistics("a", s, nats + s, "novels", "perplexity") for s in (0, 1)]
    runs = [replace(x, example_scores=replace(x.example_scores, unit="document")) for x in runs]
    assert draw(runs[:1]).over == "documents"
    assert draw(runs).over == "seeds and documents"


def test_unknown_uncertainty_is_not_invented():
    perplexity = record("b", "novels", score=4.0, metric="perplexity")
    assert draw([perplexity]) is None
    known = record_of_statistics("a", 0, np.ones((5, 2)), "novels", "perplexity")
    assert draw([known], [perplexity]) is None
    # Noise of the seeds of one row and of the examples of another have nothing in common.
    assert draw([record("a", seed=s, score=0.3 + 0.1 * s) for s in (0, 1)], [record("b")]) is None
    assert draw() is None
