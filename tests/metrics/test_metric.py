"""Metrics: aggregation, direction, display, registration, statistics from logits."""

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import longspan.metrics
from longspan.errors import DataError, OptionError
from longspan.metrics import METRICS, Metric, get_metric, register
from longspan.metrics.base import ratio
from longspan.tasks.scoring import (
    IGNORE,
    LOGIT_STATISTICS,
    accuracy_statistics,
    f1_statistics,
    likelihood_statistics,
    reciprocal_rank_statistics,
)

SOURCE = Path(longspan.metrics.__file__).parent

every_metric = pytest.mark.parametrize("name", sorted(METRICS))


def statistics_of(name, examples=50, seed=0):
    """Return plausible per-example statistics: a value up to the number of targets."""
    columns = len(get_metric(name).columns)
    generator = np.random.default_rng(seed)
    targets = generator.integers(1, 9, (examples, 1))
    values = targets * generator.random((examples, columns - 1))
    return np.concatenate((values, targets), axis=1)


def metric(**changes):
    fields = {"name": "made_up", "title": "Made up", "columns": ("value", "examples")}
    return Metric(**{**fields, "finalize": ratio, **changes})


@every_metric
def test_aggregate_is_finalize_of_sums(name):
    found, statistics = get_metric(name), statistics_of(name)
    assert found.aggregate(statistics) == pytest.approx(float(found.finalize(statistics.sum(0))))


@every_metric
def test_resampling_by_example_equals_repeating_examples(name):
    """Compare weighted sums of a bootstrap with values of the resampled data sets."""
    found, statistics = get_metric(name), statistics_of(name)
    rows = np.random.default_rng(1).integers(0, 50, (7, 50))
    counts = np.stack([np.bincount(sample, minlength=50) for sample in rows])
    values = found.finalize(counts @ statistics)
    assert values.shape == (7,)
    expected = [found.aggregate(statistics[sample]) for sample in rows]
    np.testing.assert_allclose(values, expected)


@every_metric
def test_statistics_of_wrong_shape_are_rejected(name):
    columns = len(get_metric(name).columns)
    for shape in ((5, columns + 1), (5, columns - 1), (columns,), (2, 5, columns)):
        with pytest.raises(DataError, match=rf"{name} takes statistics of shape \(N, {columns}\)"):
            get_metric(name).aggregate(np.ones(shape))
    with pytest.raises(DataError, match=f"{name} needs at least one example"):
        get_metric(name).aggregate(np.ones((0, columns)))


def test_aggregate_without_targets_is_rejected():
    with pytest.raises(DataError, match="accuracy is undefined: none of the 3 examples has a tar"):
        get_metric("accuracy").aggregate(np.zeros((3, 2)))
    assert np.isnan(ratio(np.zeros((2, 2)))).all()
    # F1 without any positive, predicted or true, is 0.
    assert get_metric("f1").aggregate(np.zeros((3, 3))) == 0


@every_metric
def test_direction_and_unit(name):
    found = get_metric(name)
    lower_is_better = {"bits_per_byte", "bits_per_character", "perplexity", "rmse"}
    lower_is_better.add("word_perplexity")
    assert found.higher_is_better == (name not in lower_is_better)
    better, worse = (2.0, 1.0) if found.higher_is_better else (1.0, 2.0)
    assert found.is_better(better, worse)
    assert not found.is_better(worse, better)
    assert not found.is_better(better, better)
    assert found.signed(better) > found.signed(worse)
    assert found.name == name
    assert found.title[0].isupper() or found.title.startswith("nDCG")
    assert (found.unit == "%") == (found.scale == 100)
    assert (found.comparison == "mcnemar") == (name == "accuracy")


@pytest.mark.parametrize(
    ("name", "value", "text", "bare"),
    [
        ("accuracy", 0.3714, "37.1 %", "37.1"),
        ("accuracy", 1.0, "100.0 %", "100.0"),
        ("f1", 0.0, "0.0 %", "0.0"),
        ("mrr", 0.3333, "33.3 %", "33.3"),
        ("rougeL", 0.41259, "41.3 %", "41.3"),
        ("bits_per_byte", 1.23456, "1.235 bits/byte", "1.235"),
        ("perplexity", 18.318, "18.32", "18.32"),
    ],
)
def test_format(name, value, text, bare):
    assert get_metric(name).format(value) == text
    assert get_metric(name).format(value, unit=False) == bare


def test_registered_name_and_other_columns_for_mcnemar_are_rejected():
    with pytest.raises(OptionError, match="metric 'accuracy' is already registered"):
        register(metric(name="accuracy"))
    assert get_metric("accuracy").comparison == "mcnemar"
    assert register(get_metric("accuracy")) is get_metric("accuracy")
    with pytest.raises(OptionError, match=r"McNemar's test takes \('correct', 'targets'\)"):
        register(metric(comparison="mcnemar"))
    assert "made_up" not in METRICS


# Statistics from logits.


def random_logits(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def one_hot(classes, num_classes=3):
    return torch.nn.functional.one_hot(torch.tensor(classes), num_classes).float()


def test_accuracy_of_scored_tokens_by_hand():
    logits = one_hot([[0, 1, 2], [2, 2, 2]])
    targets = torch.tensor([[0, 0, IGNORE], [IGNORE, 2, 2]])
    statistics = accuracy_statistics(logits, targets).numpy()
    assert statistics.tolist() == [[1, 2], [2, 2]]
    assert get_metric("accuracy").aggregate(statistics) == 0.75


@pytest.mark.parametrize("predicted", list(itertools.product((0, 1), repeat=4)))
def test_f1_by_brute_force(predicted):
    """Compare with the harmonic mean of precision and recall, for every assignment."""
    for target in itertools.product((0, 1), repeat=4):
        pairs = list(zip(predicted, target, strict=True))
        hits = pairs.count((1, 1))
        statistics = f1_statistics(one_hot(list(predicted), 2), torch.tensor(target)).numpy()
        expected = 0.0
        if hits:
            precision, recall = hits / sum(predicted), hits / sum(target)
            expected = 2 * precision * recall / (precision + recall)
        assert get_metric("f1").aggregate(statistics) == pytest.approx(expected)


def test_mrr_by_sorting():
    logits = random_logits(40, 9)
    targets = torch.arange(40) % 9
    statistics = reciprocal_rank_statistics(logits, targets).numpy()
    for row, (reciprocal, queries) in enumerate(statistics):
        ranking = sorted(range(9), key=lambda candidate: -logits[row, candidate])
        assert reciprocal == pytest.approx(1 / (1 + ranking.index(int(targets[row]))), rel=1e-6)
        assert queries == 1
    assert get_metric("mrr").aggregate(statistics) == pytest.approx(statistics[:, 0].mean())


def test_mrr_ranks_ties_and_nan_last():
    targets = torch.tensor([1, 1, 0])
    nan = math.nan
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [nan, nan, nan, nan], [1.0, nan, 0.0, 2.0]])
    found = reciprocal_rank_statistics(logits, targets)[:, 0]
    torch.testing.assert_close(found, torch.tensor([1 / 4, 1 / 4, 1 / 3], dtype=torch.float64))


def test_f1_and_mrr_ignore_unscored_tokens():
    statistics = f1_statistics(one_hot([[1, 1, 0]], 2), torch.tensor([[1, IGNORE, IGNORE]]))
    assert statistics.tolist() == [[1, 0, 0]]
    logits = torch.tensor([[[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 0.0, 0.0]]])
    statistics = reciprocal_rank_statistics(logits, torch.tensor([[1, 0, IGNORE]]))
    assert statistics.tolist() == [[1.5, 2]]


def test_bits_and_perplexity_of_uniform_guess():
    """Expect 8 bits and perplexity 256 for a uniform guess among 256 bytes."""
    statistics = likelihood_statistics(torch.zeros(3, 5, 256), torch.full((3, 5), 7)).numpy()
    assert statistics[:, 1].tolist() == [5] * 3
    for name in ("bits_per_byte", "bits_per_character"):
        assert get_metric(name).aggregate(statistics) == pytest.approx(8, rel=1e-6)
    for name in ("perplexity", "word_perplexity"):
        assert get_metric(name).aggregate(statistics) == pytest.approx(256, rel=1e-6)


def test_perplexity_of_a_diverged_model_is_a_number():
    """Records have no infinity, and a diverged run could not be written."""
    metric = get_metric("perplexity")
    found = [metric.aggregate(np.array([[nats, 1.0]])) for nats in (699, 1_000, 1e30)]
    assert found[0] == pytest.approx(math.exp(699))
    assert found[1:] == pytest.approx([math.exp(700)] * 2)
    assert np.isnan(metric.finalize(np.array([0.0, 0.0])))


def test_bits_and_perplexity_in_closed_form():
    """Expect 1 and 3 bits for targets of probability 1/2 and 1/8."""
    logits = torch.tensor([[0.5, 0.5], [0.125, 0.875]]).log()
    statistics = likelihood_statistics(logits, torch.tensor([0, 0])).numpy()
    np.testing.assert_allclose(statistics[:, 0], [math.log(2), math.log(8)], rtol=1e-6)
    assert get_metric("bits_per_byte").aggregate(statistics) == pytest.approx(2, rel=1e-6)
    assert get_metric("perplexity").aggregate(statistics) == pytest.approx(4, rel=1e-6)
    weighted = np.array([[8 * math.log(2), 2], [2 * math.log(2), 8]])  # by length
    assert get_metric("bits_per_byte").aggregate(weighted) == pytest.approx(1)


@pytest.mark.parametrize("name", sorted(LOGIT_STATISTICS))
@pytest.mark.parametrize("shape", [(6,), (6, 4)])
def test_statistics_have_one_row_per_example(name, shape):
    logits, targets = random_logits(*shape, 3), torch.zeros(shape, dtype=torch.int64)
    found = LOGIT_STATISTICS[name](logits, targets)
    assert found.shape == (6, len(get_metric(name).columns))
    assert found.dtype == torch.float64
    one_by_one = [LOGIT_STATISTICS[name](logits[i : i + 1], targets[i : i + 1]) for i in range(6)]
    torch.testing.assert_close(found, torch.cat(one_by_one))


def test_every_file_of_the_package_is_imported():
    """Reports read records of any metric without importing the task that names it."""
    modules = {f"longspan.metrics.{path.stem}" for path in SOURCE.glob("[!_]*.py")}
    assert len(modules) > 4
    assert modules <= set(sys.modules)
