"""Canonical correlation analysis, regularised: the directions in which two views of the same things agree most.

For centred views x and y with covariances C, the a and b that maximise aᵀ C_xy b with aᵀ C_xx a = bᵀ C_yy b = 1 solve

    C_xy C_yy⁻¹ C_yx a = ρ² C_xx a,        b = C_yy⁻¹ C_yx a / ρ.

Decided: the regularisation r adds r times a view's mean variance to the diagonal of its covariance, so that it does not
depend on the unit of the features.

Axes: N pairs, X and Y features of the views, n directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError

Array = NDArray[np.float64]
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class CanonicalCorrelations:
    """The directions, most correlated first; (x − x_mean) @ x_weights has variance 1 in each, but for the ridge."""

    x_mean: Array  # (X,)
    y_mean: Array  # (Y,)
    x_weights: Array  # (X, n)
    y_weights: Array  # (Y, n)
    correlations: Array  # (n,)


def fit_cca(x: Array, y: Array, regularisation: float = 1e-4, count: int | None = None) -> CanonicalCorrelations:
    """The first ``count`` directions, or as many as the smaller view has features, of views (N, X) and (N, Y)."""
    from scipy.linalg import cho_factor, cho_solve, eigh

    if len(x) != len(y) or len(x) < 2:
        raise DataError(f"two or more pairs make a correlation, not {len(x)} with {len(y)}")
    most = min(x.shape[1], y.shape[1])
    n = most if count is None else min(count, most)
    x_mean, y_mean = x.mean(0), y.mean(0)
    x, y = x - x_mean, y - y_mean
    xx, yy, xy = _ridge(x.T @ x / len(x), regularisation), _ridge(y.T @ y / len(y), regularisation), x.T @ y / len(x)
    explained = cho_solve(cho_factor(yy), xy.T)  # (Y, X)
    squares, a = eigh(xy @ explained, xx, subset_by_index=[x.shape[1] - n, x.shape[1] - 1])
    correlations, a = np.sqrt(squares[::-1].clip(_TINY, 1.0)), a[:, ::-1]  # most correlated first
    return CanonicalCorrelations(x_mean, y_mean, a, explained @ a / correlations, correlations)


def _ridge(covariance: Array, regularisation: float) -> Array:
    size = len(covariance)
    added: float = regularisation * np.trace(covariance) / size + _TINY
    return covariance + added * np.eye(size)
