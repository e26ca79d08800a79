"""Cues by their definitions, and Nelder-Mead on errors with a known answer."""

import math

import numpy as np
import pytest
import torch

from phrasechain.baselines.cca_fit import Choices, choice_error
from phrasechain.baselines.cues import cue_costs, fit_cue_weights, pair_features, position_features, size_costs

SIZE = torch.tensor([100.0, 80.0])


def test_size_and_position() -> None:
    box = torch.tensor([50.0, 0, 100, 40])
    assert float(size_costs(box, SIZE)) == pytest.approx(1 - 2000 / 8000)
    features = position_features(box, SIZE)
    wanted = [-0.5, 0.5, 0.25, math.log(50 / 40)]  # (50 − 75)/50, (40 − 20)/40, …
    assert features.tolist() == pytest.approx([*wanted, *(value**2 for value in wanted)])


def test_pairs() -> None:
    left, right = torch.tensor([[10.0, 20, 30, 60]]), torch.tensor([[0.0, 0, 1, 1], [20.0, 10, 30, 30]])
    found = pair_features(left, right, torch.tensor([0.3]), torch.tensor([0.1, 0.7]))
    assert found.shape == (1, 2, 12)
    wanted = [(10 - 20) / 20, (20 - 10) / 40, 10 / 20, 20 / 40, 0.3, 0.7]
    assert found[0, 1].tolist() == pytest.approx([*wanted, *(value**2 for value in wanted)])


def test_a_cost_is_a_negative_log_probability() -> None:
    features, weight, bias = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0]), torch.tensor(0.25)
    assert float(cue_costs(features, weight, bias)) == pytest.approx(math.log(1 + math.exp(1.25)))


def test_the_error_of_weights_by_hand() -> None:
    choices = [
        Choices(np.zeros(2), np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1.0, 0.0])),
        Choices(np.zeros(3), np.array([[3.0, 0.0], [2.0, 2.0], [0.0, 3.0]]), np.array([0.0, 0.5, 1.0])),
    ]
    error = choice_error(choices)
    assert error(np.array([1.0, 0.0])) == 0.0
    assert error(np.array([0.0, 1.0])) == 1.0
    assert error(np.array([0.0, 0.0])) == 1.0  # of equals the worst counts


def test_nelder_mead_finds_the_cues_that_matter() -> None:
    rng = np.random.default_rng(0)
    choices = []
    for _ in range(200):
        cues = rng.random((20, 3))
        best = (cues @ [1.0, 0.5, 0.0]).argmin()
        choices.append(Choices(np.zeros(20), cues, (np.arange(20) == best).astype(float)))
    error = choice_error(choices)
    weights = fit_cue_weights(error, 3)
    assert error(weights) < 0.05
    assert error(np.ones(3)) > 0.3
    weights /= weights[0]
    assert weights == pytest.approx([1.0, 0.5, 0.0], abs=0.1)
    assert fit_cue_weights(error, 3) / fit_cue_weights(error, 3)[0] == pytest.approx(weights)
