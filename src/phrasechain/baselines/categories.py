"""What kind of thing a phrase names, told by its words: the papers take it from the annotation, which a user lacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from phrasechain.baselines.logistic import Array, fit_multinomial
from phrasechain.core.schema import CATEGORIES


class PhraseCategories(nn.Module):
    """The likeliest category of a phrase by a multinomial logistic regression on its mean word vector."""

    weight: Tensor
    bias: Tensor

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(len(CATEGORIES), dimension))
        self.register_buffer("bias", torch.zeros(len(CATEGORIES)))

    def fit(self, phrases: Array, categories: Sequence[str]) -> None:
        """Learn from mean word vectors (N, e) and the category of each."""
        known = np.array([category in CATEGORIES for category in categories], dtype=bool)
        places = np.array([CATEGORIES.index(category) for category in categories if category in CATEGORIES], np.int64)
        weight, bias = fit_multinomial(phrases[known], places, len(CATEGORIES))
        self.weight.copy_(torch.from_numpy(weight))
        self.bias.copy_(torch.from_numpy(bias))

    def forward(self, phrases: Tensor) -> Tensor:
        """(P, e) to places in ``CATEGORIES``, (P,) int64."""
        return (phrases @ self.weight.T + self.bias).argmax(-1)
