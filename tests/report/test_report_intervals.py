"""Intervals of accuracy, against printed tables and hand-computed values."""

import math

import numpy as np
import pytest
from report_records import interval_of

from longspan.errors import OptionError
from longspan.metrics import get_metric
from longspan.report.statistics.intervals import student
from longspan.report.statistics.noise import Sample

ACCURACY = get_metric("accuracy")


def accuracy_interval(values, examples, sample=None):
    return interval_of(values, ACCURACY, examples, sample)


# Printed tables of Student's t, two-sided 95 %.
@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (120, 1.9799)],
)
def test_student_quantiles_equal_printed_tables(freedom, quantile):
    assert student(freedom) == pytest.approx(quantile, abs=5e-5)


def test_interval_over_seeds_by_hand():
    found = accuracy_interval([0.36, 0.38, 0.40], 2000)
    # mean 0.38, deviation 0.02, t(2) = 4.302653: half = 4.302653 * 0.02 / sqrt(3) = 0.0496827
    assert found.over == "seeds"
    assert found.low == pytest.approx(0.3303173, abs=1e-6)
    assert found.high == pytest.approx(0.4296827, abs=1e-6)


def test_interval_of_single_seed_is_wilsons():
    found = accuracy_interval([0.5], 100)
    assert found.over == "examples"
    assert (found.low, found.high) == pytest.approx((0.403832, 0.596168), abs=1e-6)


def test_ends_of_wilson_interval_solve_score_test():
    found = accuracy_interval([0.3725], 2000)
    for end in (found.low, found.high):
        deviation = math.sqrt(end * (1 - end) / 2000)
        assert abs(0.3725 - end) / deviation == pytest.approx(1.959964, abs=1e-6)


@pytest.mark.parametrize("examples", [50, 2000, 9999])
@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_interval_of_extreme_accuracy_has_positive_width_and_ends_there(accuracy, examples):
    found = accuracy_interval([accuracy], examples)
    assert 0 <= found.low < found.high <= 1
    assert accuracy in (found.low, found.high)


def test_ends_are_python_floats():
    """Reject NumPy scalars, which print with their type."""
    both = np.stack([np.arange(100.0) % 2, np.ones(100)], axis=-1)[None]
    own = Sample(metric=ACCURACY, seeds=(0,), statistics=both)
    found = accuracy_interval([0.5], 100, own)
    assert {type(found.low), type(found.high)} == {float}


def test_interval_without_scores_or_examples_is_rejected():
    with pytest.raises(OptionError, match="at least one score, got none"):
        accuracy_interval([], 10)
    with pytest.raises(OptionError, match="needs at least one example, got 0"):
        accuracy_interval([0.5], 0)
