"""Metrics of regression: R² and root-mean-square error."""

import math

import numpy as np

from longspan.metrics.base import Metric, ratio, register


def _r2(sums: np.ndarray) -> np.ndarray:
    error, deviation = np.moveaxis(sums, -1, 0)
    # Of targets that all equal the training mean nothing can be explained.
    share = np.divide(error, deviation, out=np.ones(np.shape(error)), where=deviation > 0)
    return np.asarray(1 - share)


def _rmse(sums: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(ratio(sums)))


# Deviations are from the mean of the training targets, so 0 is the value of always predicting that
# mean (out-of-sample R²; Campbell and Thompson 2008, https://doi.org/10.1093/rfs/hhm055, eq. 1).
R2 = register(
    Metric(
        name="r2",
        title="R²",
        decimals=3,
        lowest=-math.inf,
        highest=1.0,
        columns=("squared_error", "squared_deviation"),
        finalize=_r2,
    )
)
RMSE = register(
    Metric(
        name="rmse",
        title="RMSE",
        decimals=3,
        higher_is_better=False,
        columns=("squared_error", "targets"),
        finalize=_rmse,
    )
)
