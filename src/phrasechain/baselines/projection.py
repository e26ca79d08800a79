"""Phrases and regions in one space, where the cosine says how well they go together.

Axes: P phrases, e numbers of a mean word vector, I images, K regions, D features, n numbers of the space.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from phrasechain.baselines.canonical import fit_cca
from phrasechain.baselines.fitting import MatchedPairs
from phrasechain.baselines.pairs import inner_products
from phrasechain.model.batch import Batch


class CanonicalProjection(nn.Module):
    """cos(A r + a, B p + b). :meth:`fit` makes A and B the canonical directions, centred, scaled by correlations."""

    def __init__(self, text_dimension: int, region_dimension: int, joint: int | None = None) -> None:
        super().__init__()
        size = min(text_dimension, region_dimension, joint or text_dimension)
        self.phrase, self.region = nn.Linear(text_dimension, size), nn.Linear(region_dimension, size)

    @torch.no_grad()
    def fit(self, pairs: MatchedPairs) -> None:
        cca = fit_cca(pairs.phrases, pairs.regions, count=self.phrase.out_features)
        views = ((self.phrase, cca.x_weights, cca.x_mean), (self.region, cca.y_weights, cca.y_mean))
        for layer, weights, mean in views:
            scaled = weights * cca.correlations  # (X, n)
            layer.weight.copy_(torch.from_numpy(scaled.T.copy()))
            layer.bias.copy_(torch.from_numpy(-mean @ scaled))

    def forward(self, phrases: Tensor, features: Tensor, batch: Batch) -> Tensor:
        """(P, e) and (I, K, D) to cosines (P, K)."""
        p = normalize(self.phrase(phrases), dim=-1)  # (P, n)
        r = normalize(self.region(features.float()), dim=-1)  # (I, K, n)
        return inner_products(p, r, batch)
