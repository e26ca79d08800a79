"""Parts of the losses: what phrases say about regions against their targets, and offsets against theirs.

Axes: P phrases, K regions, Q positive pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from phrasechain.model.batch import Batch
from phrasechain.model.losses import loss_counts
from phrasechain.model.targets import Targets, positive_pairs


def log_softmax(emissions: Tensor, batch: Batch) -> Tensor:
    """log p of each region of the phrase's image; very small where it has none: (P, K) to (P, K)."""
    mask = batch.region_mask[batch.phrase_image]
    return emissions.masked_fill(~mask, torch.finfo(emissions.dtype).min).log_softmax(-1)


def box_loss(offsets: Tensor, batch: Batch, targets: Targets, scale: Tensor | None = None) -> Tensor:
    """The sum over all pairs with IoU ≥ 0.5, and their four offsets, of SmoothL1((o − o*) / scale): (P, K, 4) to ()."""
    pairs = positive_pairs(batch, targets)
    scale = offsets.new_ones(4) if scale is None else scale
    return smooth_l1_loss(offsets[pairs.phrase, pairs.region] / scale, pairs.offsets / scale, reduction="sum")


def labelled_counts(batch: Batch, targets: Targets) -> Tensor:
    """The labelled phrases, their positive pairs, and the phrases trained, which are the labelled ones: (3,)."""
    return loss_counts(batch, targets, unlabelled="skip", divide="labelled", regress="all")
