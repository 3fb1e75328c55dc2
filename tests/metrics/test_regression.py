"""R² and RMSE against their definitions."""

import numpy as np
import pytest

from longspan.metrics import get_metric


def test_r2_and_rmse_equal_their_definitions():
    draws = np.random.default_rng(0)
    train, targets = draws.normal(3, 2, 50), draws.normal(3, 2, 40)
    predicted = targets + draws.normal(0, 1, 40)
    error, deviation = (targets - predicted) ** 2, (targets - train.mean()) ** 2
    r2 = get_metric("r2").aggregate(np.stack((error, deviation), 1))
    assert r2 == pytest.approx(1 - error.sum() / deviation.sum())
    rmse = get_metric("rmse").aggregate(np.stack((error, np.ones(40)), 1))
    assert rmse == pytest.approx(np.sqrt(error.mean()))


def test_predicting_the_training_mean_scores_zero_and_targets_score_one():
    deviation = np.random.default_rng(0).random(20)
    assert get_metric("r2").aggregate(np.stack((deviation, deviation), 1)) == 0
    assert get_metric("r2").aggregate(np.stack((0 * deviation, deviation), 1)) == 1
    assert get_metric("r2").aggregate(np.stack((2 * deviation, deviation), 1)) < 0


def test_directions():
    assert get_metric("r2").is_better(0.5, than=0.2)
    assert get_metric("rmse").is_better(0.2, than=0.5)


def test_targets_equal_to_the_mean_leave_nothing_to_explain():
    assert get_metric("r2").aggregate(np.zeros((3, 2))) == 0
