"""Logistic regressions as weights, against planted ones."""

import numpy as np
import pytest

from phrasechain.baselines.logistic import fit_logistic, fit_multinomial


def test_planted_weights_are_found() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 2)) * [1.0, 10.0] + [5.0, 0.0]
    p = 1 / (1 + np.exp(-(x @ [1.0, -0.2] - 4.0)))
    weight, bias = fit_logistic(x, rng.random(len(x)) < p)
    np.testing.assert_allclose([*weight, bias], [1.0, -0.2, -4.0], rtol=0.06)


def test_one_answer_alone_says_nothing() -> None:
    weight, bias = fit_logistic(np.ones((3, 2)), np.ones(3, dtype=bool))
    assert (weight.tolist(), bias) == ([0.0, 0.0], 0.0)


@pytest.mark.parametrize("found", [[1], [0, 2], [0, 1, 3]])
def test_classes_that_never_occur_are_never_chosen(found: list[int]) -> None:
    rng = np.random.default_rng(1)
    classes = np.array(found)[rng.integers(len(found), size=300)]
    x = np.eye(5)[classes] + 0.1 * rng.normal(size=(300, 5))
    weight, bias = fit_multinomial(x, classes, 5)
    assert (x @ weight.T + bias).argmax(1).tolist() == classes.tolist()
