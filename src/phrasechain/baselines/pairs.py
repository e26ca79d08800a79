"""Scores of every phrase with every region of its image.

Axes: I images, K regions, N regions of all images, D features, P phrases, Q phrases of the image with most, M and H
sizes of vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from phrasechain.model.batch import Batch
from phrasechain.model.scores import spread, widen


def region_rows(batch: Batch, normalise: bool = False) -> Tensor:
    """[features ; five spatial features] of all regions that there are, image by image: (N, D + 5) float32.

    With ``normalise`` the features are divided by their Euclidean norm.
    """
    mask = batch.region_mask
    features = batch.features[mask].float()
    return torch.cat([normalize(features, dim=-1) if normalise else features, batch.spatial[mask]], -1)


def region_vectors(rows: Tensor, batch: Batch) -> Tensor:
    """The rows of all regions that there are laid out by image, zeros elsewhere: (N, D) to (I, K, D)."""
    return spread(rows, batch.region_mask)


def inner_products(phrases: Tensor, regions: Tensor, batch: Batch) -> Tensor:
    """p·r of each phrase with each region of its image: (P, M) and (I, K, M) to (P, K); nothing is repeated."""
    image = batch.phrase_image
    place = one_hot(image, len(regions)).cumsum(0).gather(1, image[:, None])[:, 0] - 1  # (P,) among its image's
    asked = phrases.new_zeros(len(regions), int(place.max()) + 1, phrases.shape[1])  # (I, Q, M)
    asked = asked.index_put((image, place), phrases)
    return widen(asked @ regions.transpose(1, 2))[image, place]


class ConcatScores(nn.Module):
    """Score and offsets of a pair from the two vectors side by side, as QRC Net and DDPN have it:

        h = ReLU(W [p ; r] + b),        score = w·h + w₀,        offsets = V h + v₀.

    W [p ; r] = W_p p + W_r r, so that the regions of an image are multiplied once for all of its phrases. Weights begin
    as Xavier has them, but V at 0: a box that moves at random is worse than one that stays, long into the training.
    """

    def __init__(self, text_dimension: int, region_dimension: int, hidden: int) -> None:
        super().__init__()
        self.text = nn.Linear(text_dimension, hidden, bias=False)
        self.region = nn.Linear(region_dimension, hidden)
        self.heads = nn.Linear(hidden, 5)  # the score, then the four offsets
        joint = (6 / (text_dimension + region_dimension + hidden)) ** 0.5  # Xavier's bound of W as one matrix
        for weight in (self.text.weight, self.region.weight):
            nn.init.uniform_(weight, -joint, joint)
        nn.init.xavier_uniform_(self.heads.weight)
        nn.init.zeros_(self.heads.weight.detach()[1:])
        for bias in (self.region.bias, self.heads.bias):
            nn.init.zeros_(bias)

    def hidden(self, phrases: Tensor, regions: Tensor, batch: Batch) -> Tensor:
        """h: (P, d) and (N, D) to (P, K, H)."""
        seen = region_vectors(self.region(regions), batch)  # (I, K, H)
        asked: Tensor = self.text(phrases)
        return (asked[:, None] + seen[batch.phrase_image]).relu()

    def forward(self, phrases: Tensor, regions: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Scores (P, K) and offsets (P, K, 4)."""
        return self.split(self.heads(self.hidden(phrases, regions, batch)))

    @staticmethod
    def split(scores: Tensor) -> tuple[Tensor, Tensor]:
        """(P, K, 5) to (P, K) and (P, K, 4)."""
        scores = widen(scores)
        return scores[..., 0], scores[..., 1:]
