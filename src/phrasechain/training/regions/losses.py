"""The losses of the region network, as functions of tensors.

Axes: B images, N anchors, K boxes given to the region head, G named boxes (zeros where an image has fewer), V words,
P phrases.

Targets may be partial: what has a box is known, and what has none is unknown, never a negative. Photos may have
weights, which every mean is taken with.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from phrasechain.core.boxes import area_xyxy, iou_xyxy
from phrasechain.model.targets import soft_targets

NEAR = 0.5  # the overlap from which a box is about the same thing
_NEAREST = 9  # anchors that a named box has at least


class Supervision(NamedTuple):
    """How much the targets of B photos count, and how far they reach."""

    weight: Tensor  # (B,)
    is_partial: Tensor  # (B,) bool

    @classmethod
    def full(cls, like: Tensor) -> Supervision:
        """Complete targets of equal weight, for as many photos as ``like`` has rows."""
        return cls(like.new_ones(len(like)), torch.zeros(len(like), dtype=torch.bool, device=like.device))

    def weights(self, is_known: Tensor) -> Tensor:
        """The weights (B, …) of what is known to be something and, where targets are complete, of all else."""
        shape = (-1, *[1] * (is_known.dim() - 1))
        return self.weight.view(shape) * (is_known | ~self.is_partial.view(shape))


def giou_xyxy(first: Tensor, second: Tensor) -> Tensor:
    """Generalised intersection over union (Rezatofighi et al., 2019), element by element; in (-1, 1]."""
    low, high = torch.minimum(first[..., :2], second[..., :2]), torch.maximum(first[..., 2:], second[..., 2:])
    hull = area_xyxy(torch.cat((low, high), -1))
    overlap = area_xyxy(
        torch.cat((torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])), -1)
    )
    union = area_xyxy(first) + area_xyxy(second) - overlap
    return overlap / union.clamp_min(1e-9) - 1 + union / hull.clamp_min(1e-9)


def assign(anchors: Tensor, named: Tensor) -> tuple[Tensor, Tensor]:
    """Which anchors stand for a named box, and for which: (N, 4) and (B, G, 4) to (B, N) bool and (B, N) int64.

    An anchor stands for the box that it overlaps most, if by ``NEAR`` or if it is among that box's nearest few.
    """
    overlap = iou_xyxy(anchors[None, None], named[:, :, None])  # (B, G, N)
    few = overlap.topk(_NEAREST, dim=-1).values[..., -1:]  # (B, G, 1)
    close = (overlap >= few.clamp(min=1e-3, max=NEAR)) * overlap
    best, owner = close.max(1)
    return best > 0, owner


def proposal_losses(
    score: Tensor, boxes: Tensor, anchors: Tensor, named: Tensor, supervision: Supervision | None = None
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the scores and GIoU loss of the boxes, both per standing anchor.

    A score is to tell the overlap of the anchor's regressed box with what the anchor stands for, 0 if that is nothing;
    partial targets leave out anchors that stand for nothing.
    """
    supervision = supervision or Supervision.full(score)
    stands, owner = assign(anchors, named)
    image, place = stands.nonzero(as_tuple=True)
    gold = named[image, owner[image, place]]
    found = boxes[image, place]
    overlap = iou_xyxy(found, gold).detach()
    target = torch.zeros_like(score)
    target[image, place] = overlap
    weight = supervision.weight[image]
    count = weight.sum().clamp_min(1)
    judged = F.binary_cross_entropy_with_logits(score, target, supervision.weights(stands), reduction="sum")
    return judged / count, ((1 - giou_xyxy(found, gold)) * weight).sum() / count


def quality_losses(
    quality: Tensor, refined: Tensor, boxes: Tensor, named: Tensor, supervision: Supervision | None = None
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the judged overlap, and GIoU loss of the refined boxes near a named one.

    Rows of zeros, which fill up the boxes of an image, count for nothing; with partial targets, neither do boxes far
    from all named ones.
    """
    supervision = supervision or Supervision.full(quality)
    overlap, owner = iou_xyxy(boxes[:, :, None], named[:, None]).max(-1)  # (B, K)
    gold = named.gather(1, owner[..., None].expand(-1, -1, 4))
    after = iou_xyxy(refined, gold).detach()
    near = overlap >= NEAR
    real = area_xyxy(boxes) > 0
    weight = supervision.weights(near)[real]
    judged = F.binary_cross_entropy_with_logits(quality[real], after[real], weight, reduction="sum")
    moved = supervision.weight[:, None] * near
    extent = ((1 - giou_xyxy(refined, gold)) * moved).sum() / moved.sum().clamp_min(1)
    return judged / weight.sum().clamp_min(1), extent


def word_loss(
    logits: Tensor,
    boxes: Tensor,
    named: Tensor,
    words: Tensor,
    unknown: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of every word for boxes that are near a named one: (B, K, V), words (B, G, V) in {0, 1}.

    A box shows the words of all the named boxes that it is near. Summed over words, averaged over boxes with the
    weights (B,) of their photos. A word that is ``unknown`` (B, G, V) of one of these boxes, and shown by none, is left
    out.
    """
    weight = logits.new_ones(len(logits)) if weight is None else weight
    near = (iou_xyxy(boxes[:, :, None], named[:, None]) >= NEAR).to(words.dtype)  # (B, K, G)
    target = (near @ words).clamp(max=1)  # (B, K, V)
    taught = near.any(-1) & (target.sum(-1) > 0)
    of_box = weight[:, None].expand(taught.shape)[taught]  # (T,)
    counts = of_box[:, None]
    if unknown is not None:
        counts = counts * ((near @ unknown.to(near.dtype) == 0) | (target > 0))[taught]  # (T, V)
    total = F.binary_cross_entropy_with_logits(logits[taught], target[taught], counts, reduction="sum")
    return total / of_box.sum().clamp_min(1)


def phrase_loss(scores: Tensor, boxes: Tensor, gold: Tensor, weight: Tensor | None = None) -> Tensor:
    """KL(q ‖ p) of each phrase's regions, averaged over phrases that have one: scores (P, K), boxes (P, K, 4).

    q are the soft labels of the chain model: regions with an overlap of at least one half, in its proportion. The mean
    is taken with the phrases' weights (P,).
    """
    q = soft_targets(iou_xyxy(boxes, gold[:, None]))
    labelled = q.sum(-1) > 0
    divergence = F.kl_div(scores.log_softmax(-1), q, reduction="none").sum(-1)
    counts = labelled if weight is None else labelled * weight
    return (divergence * counts).sum() / counts.sum().clamp_min(1)
