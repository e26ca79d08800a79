"""Logistic regression by scikit-learn, as the weights of a linear layer.

Axes: N samples, D features, C classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def fit_logistic(samples: Array, is_positive: NDArray[np.bool_]) -> tuple[Array, float]:
    """The w (D,) and b of p = σ(w·x + b), of samples (N, D); zeros, so that p = ½, unless both answers occur."""
    if len(samples) == 0 or is_positive.all() or not is_positive.any():
        return np.zeros(samples.shape[1]), 0.0
    weight, bias = _fit(samples, is_positive.astype(np.int64))
    return weight[0], float(bias[0])


def fit_multinomial(samples: Array, classes: NDArray[np.int64], count: int) -> tuple[Array, Array]:
    """The W (C, D) and b (C,) of p = softmax(W x + b) over ``count`` classes; one that never occurs is never likely."""
    found = np.unique(classes)
    weight, bias = np.zeros((count, samples.shape[1])), np.full(count, -1e4)
    bias[found] = 0.0
    if len(found) == 2:
        weight[found[1:]], bias[found[1:]] = _fit(samples, classes)
    elif len(found) > 2:
        weight[found], bias[found] = _fit(samples, classes)
    return weight, bias


def _fit(samples: Array, answers: NDArray[np.int64]) -> tuple[Array, Array]:
    """On standardised features, with scikit-learn's usual penalty; the scaling goes into the weights."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(samples, answers)
    scaler, model = pipeline[0], pipeline[1]
    weight = model.coef_ / scaler.scale_
    return weight, model.intercept_ - weight @ scaler.mean_
