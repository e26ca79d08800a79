"""Emissions and box offsets of every pair of a phrase and a region.

Low-rank bilinear pooling fuses a phrase vector p with a region vector r,

    f = act(Pᵀ(Uᵀp ∘ Vᵀr) + b),        emission = w·f + w₀,        offsets = W f + b',

where r is the region's stored features and its five spatial features. Vᵀr is computed once per image, and nothing is
computed for the padding of images with fewer regions.

Axes: I images, K regions, D features, P phrases, N regions of all images, M pairs of all phrases, R rank, J joint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from phrasechain.core.errors import DataError, unknown_name
from phrasechain.model.bag_of_words import BagOfWords
from phrasechain.model.batch import Batch
from phrasechain.model.fused import pair_product, relu_dropout

SPATIAL = 5  # spatial features of a region
NORMALISATIONS = ("none", "standardise")


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of a batch; they mean nothing at regions that an image does not have."""

    emissions: Tensor  # (P, K)
    offsets: Tensor | None  # (P, K, 4), None without box regression
    transitions: Tensor | None  # (B, T-1, K, K), or (B, 1, K, K) without context, or None for independent models
    skips: Tensor | None = None  # (B, T-2, K, K) of phrases with one between them, a second-order chain; None: 0
    presence: Tensor | None = None  # (P,) the logit that the photo shows it at all; None without the label ∅
    presence_transitions: Tensor | None = None  # (B, T-1, 3) of ∅ to regions, of regions to ∅, of ∅ to ∅


class RegionInput(nn.Module):
    """The vector of a region: its stored features, normalised, and its five spatial features.

    - ``none``: features as stored.
    - ``standardise``: (x − mean) / standard deviation of each feature, which :meth:`fit` estimates; they are buffers
      and go with the weights.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int, normalise: str = "none") -> None:
        super().__init__()
        if normalise not in NORMALISATIONS:
            raise DataError(unknown_name("normalisation of region features", normalise, NORMALISATIONS))
        self.normalise = normalise
        self.features, self.dimension = features, features + SPATIAL
        if normalise == "standardise":
            self.register_buffer("mean", torch.zeros(features))
            self.register_buffer("deviation", torch.ones(features))

    def fit(self, features: Iterable[Tensor]) -> None:
        """Estimate mean and deviation from tensors (..., D); does nothing without standardisation."""
        if self.normalise != "standardise":
            return
        count, total = 0, torch.zeros_like(self.mean, dtype=torch.float64)
        squares = torch.zeros_like(total)
        for part in features:
            rows = part.reshape(-1, part.shape[-1]).to(total)
            count, total, squares = count + len(rows), total + rows.sum(0), squares + rows.square().sum(0)
        if not count:
            raise DataError("there are no region features to standardise with; give some images")
        mean = total / count
        self.mean.copy_(mean)
        self.deviation.copy_((squares / count - mean.square()).clamp(min=1e-12).sqrt())

    def forward(self, batch: Batch) -> Tensor:
        """The rows of all regions, image by image, without padding: (N, D + 5) float32."""
        rows = batch.spatial.new_empty(*batch.region_mask.shape, self.dimension)  # (I, K, D + 5)
        rows[..., : self.features] = self.scale(batch.features)
        rows[..., -SPATIAL:] = batch.spatial
        return rows.flatten(0, 1) if bool(batch.region_mask.all()) else rows[batch.region_mask]

    def scale(self, features: Tensor) -> Tensor:
        """The features (..., D), normalised."""
        if self.normalise == "standardise":
            return (features - self.mean) / self.deviation
        return features


class PairScores(nn.Module):
    """Emission and offsets of every pair of a phrase and a region of its image, by low-rank bilinear pooling."""

    def __init__(
        self,
        text_dimension: int,
        region_dimension: int,
        *,
        rank: int,
        joint: int,
        activation: str = "relu",
        dropout: float = 0.0,
        box_regression: bool = True,
        matches: bool = False,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise DataError(unknown_name("activation", activation, ACTIVATIONS))
        self.u = nn.Linear(text_dimension, rank, bias=False)
        self.v = nn.Linear(region_dimension, rank, bias=False)
        self.p = nn.Linear(rank, joint)
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout
        self.box_regression = box_regression
        self.heads = nn.Linear(joint, 1 + 4 * box_regression + matches)  # the emission, the four offsets, the match

    def forward(self, phrases: Tensor, regions: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Phrases (P, d) and regions (N, D) give emissions (P, K), offsets (P, K, 4) or ``None``, matches (P, K) or
        ``None``."""
        counts = batch.region_mask.sum(1)  # (I,)
        starts, image = counts.cumsum(0) - counts, batch.phrase_image
        product = pair_product(self.u(phrases), self.v(regions), starts[image], counts[image])  # (M, R)
        fused = self.p(product)  # (M, J)
        kept, weight = None, self.heads.weight
        if self.training and self.dropout:
            kept = random_mask(fused.shape, 1 - self.dropout, fused.device)
            weight = weight / (1 - self.dropout)  # the scale of dropout, where it costs nothing
        scores = linear(self.activation(fused, kept), weight, self.heads.bias)  # (M, up to 6)
        scores = spread(widen(scores), batch.region_mask[batch.phrase_image])  # (P, K, up to 6)
        offsets = scores[..., 1:5] if self.box_regression else None
        matches = scores[..., -1] if scores.shape[-1] in (2, 6) else None
        return scores[..., 0], offsets, matches


class BagOfWordsScores(nn.Module):
    """Emissions of every pair by the phrase's words alone: (A e + a)·r, with e the phrase as a bag of words.

    It sees less than :class:`PairScores` and overfits less; their sum is right more often than either.
    """

    def __init__(self, word_dimension: int, region_dimension: int) -> None:
        super().__init__()
        self.words = BagOfWords(word_dimension)
        self.ask = nn.Linear(word_dimension, region_dimension)

    def forward(self, tokens: Tensor, regions: Tensor, batch: Batch) -> Tensor:
        """Token vectors (B, L, e) and regions (N, D) give emissions (P, K)."""
        asked = self.ask(self.words(tokens, batch.token_spans, batch.phrase_caption))  # (P, D)
        image = torch.arange(len(batch.region_mask), device=regions.device).repeat_interleave(batch.region_mask.sum(1))
        is_own = image == batch.phrase_image[:, None]  # (P, N)
        scores = widen(asked @ regions.T)[is_own]  # (M,)
        return spread(scores, batch.region_mask[batch.phrase_image])


def _none(values: Tensor, kept: Tensor | None) -> Tensor:
    return values if kept is None else values * kept


#: Activations of the fused vectors, each with the mask of what dropout keeps.
ACTIVATIONS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {"none": _none, "relu": relu_dropout}


def widen(values: Tensor) -> Tensor:
    """Scores in float32 at least: under autocast they come in bfloat16, too coarse to be summed along a chain."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def random_mask(shape: torch.Size, rate: float, device: torch.device) -> Tensor:
    """True with probability ``rate``, to 16 bits: on a CPU many times faster than ``bernoulli_``."""
    bits = torch.empty(-(-shape.numel() // 4), dtype=torch.int64, device=device).random_(-(2**63), None)
    values = bits.view(torch.int16)[: shape.numel()].view(shape)
    return values <= round(rate * 2**16) - 2**15 - 1


def spread(rows: Tensor, mask: Tensor) -> Tensor:
    """Put rows (M, ...) where ``mask`` (A, B) is true, one after the other, zeros elsewhere: (A, B, ...)."""
    if len(rows) == mask.numel():
        return rows.view(*mask.shape, *rows.shape[1:])
    return rows.new_zeros(*mask.shape, *rows.shape[1:]).index_put((mask,), rows)
