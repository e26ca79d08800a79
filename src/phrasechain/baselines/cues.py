"""Cues beside the words: where and how large a region is, and how two regions lie to each other.

Axes: any leading shape; K regions, A and B candidates of two phrases.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from phrasechain.baselines.logistic import Array
from phrasechain.core.boxes import area_xyxy, centre_xyxy

POSITION = 8
PAIR = 12
RESTARTS = 20
_MOST = 4.0  # no feature is larger: ratios of sides are not bounded


def size_costs(boxes: Tensor, sizes: Tensor) -> Tensor:
    """1 − the share of the image that a box covers: (..., 4) and (..., 2) to (...)."""
    return 1 - area_xyxy(boxes) / sizes.prod(-1)


def position_features(boxes: Tensor, sizes: Tensor) -> Tensor:
    """[x and y off the image's centre in half sides, share of the image, log w/h] and their squares: (..., 8)."""
    off = 1 - 2 * centre_xyxy(boxes) / sizes
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1e-3)
    ratio = (sides[..., 0] / sides[..., 1]).log()
    return _with_squares(torch.cat([off, 1 - size_costs(boxes, sizes)[..., None], ratio[..., None]], -1))


def pair_features(left: Tensor, right: Tensor, left_costs: Tensor, right_costs: Tensor) -> Tensor:
    """[(x₁−x₂)/w₁, (y₁−y₂)/h₁, w₂/w₁, h₂/h₁, both costs] of every pair, and their squares.

    Boxes (A, 4) and (B, 4) and costs (A,) and (B,) to (A, B, 12). x and y are those of a box's left upper corner, as in
    the released code.
    """
    sides = (left[:, None, 2:] - left[:, None, :2]).clamp(min=1e-3)  # (A, 1, 2)
    shift = (left[:, None, :2] - right[:, :2]) / sides  # (A, B, 2)
    ratio = (right[:, 2:] - right[:, :2]) / sides
    costs = torch.stack([left_costs[:, None].expand(shift.shape[:2]), right_costs.expand(shift.shape[:2])], -1)
    return _with_squares(torch.cat([shift, ratio, costs], -1))


def cue_costs(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """−log σ(w·f + b): (..., F) to (...)."""
    return -logsigmoid((features * weight).sum(-1) + bias)


def fit_cue_weights(error: Callable[[Array], float], count: int, seed: int = 0) -> Array:
    """The weights of least error that Nelder-Mead finds from 20 random starts: (count,)."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    starts = rng.random((RESTARTS, count))
    found = [minimize(error, start, method="Nelder-Mead", options={"maxfev": 60 * count}) for start in starts]
    best: Array = min(found, key=lambda each: float(each.fun)).x
    return best


def _with_squares(features: Tensor) -> Tensor:
    features = features.clamp(-_MOST, _MOST)
    return torch.cat([features, features.square()], -1)
