"""Canonical correlations against scikit-learn's, planted ones, and their definition."""

import numpy as np
import pytest
from sklearn.cross_decomposition import CCA

from phrasechain.baselines.canonical import Array, fit_cca
from phrasechain.core.errors import DataError


def planted(correlations: list[float], x: int, y: int, count: int, seed: int = 0) -> tuple[Array, Array]:
    """Views whose canonical correlations are those, turned and stretched at random."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(count, x))
    second = rng.normal(size=(count, y))
    for place, rho in enumerate(correlations):
        second[:, place] = rho * first[:, place] + (1 - rho**2) ** 0.5 * second[:, place]
    return first @ rng.normal(size=(x, x)) + 3.0, second @ rng.normal(size=(y, y)) - 1.0


def test_planted_correlations_are_found() -> None:
    x, y = planted([0.9, 0.6, 0.3], 5, 4, 40_000)
    found = fit_cca(x, y, 1e-9)
    np.testing.assert_allclose(found.correlations, [0.9, 0.6, 0.3, 0.0], atol=0.015)
    a, b = (x - found.x_mean) @ found.x_weights, (y - found.y_mean) @ found.y_weights
    np.testing.assert_allclose(a.T @ a / len(a), np.eye(4), atol=1e-4)
    np.testing.assert_allclose(b.T @ b / len(b), np.eye(4), atol=1e-4)
    np.testing.assert_allclose(a.T @ b / len(a), np.diag(found.correlations), atol=1e-4)


@pytest.mark.parametrize(("dx", "dy"), [(4, 6), (6, 4)])
def test_it_is_scikit_learns_as_the_regularisation_goes_to_nought(dx: int, dy: int) -> None:
    x, y = planted([0.95, 0.8, 0.5], dx, dy, 500, seed=1)
    theirs = CCA(n_components=3, max_iter=5000, tol=1e-12).fit(x, y)
    u, v = theirs.transform(x, y)
    wanted = np.array([np.corrcoef(u[:, n], v[:, n])[0, 1] for n in range(3)])
    gaps = []
    for regularisation in (1e-1, 1e-3, 1e-12):
        found = fit_cca(x, y, regularisation, 3)
        a = (x - found.x_mean) @ found.x_weights
        gaps.append(np.abs(found.correlations - wanted).max())
        same = [abs(np.corrcoef(a[:, n], u[:, n])[0, 1]) for n in range(3)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-5
    np.testing.assert_allclose(same, 1.0, atol=1e-5)


def test_the_unit_of_a_feature_changes_nothing() -> None:
    x, y = planted([0.7], 3, 3, 300, seed=2)
    np.testing.assert_allclose(fit_cca(x, y).correlations, fit_cca(100 * x, y / 7).correlations, atol=1e-9)


def test_a_constant_feature_is_borne_and_one_pair_is_refused() -> None:
    x, y = planted([0.7], 3, 3, 300, seed=3)
    x[:, 0] = 1.0
    assert np.isfinite(fit_cca(x, y).x_weights).all()
    with pytest.raises(DataError, match="two or more pairs"):
        fit_cca(x[:1], y[:1])
