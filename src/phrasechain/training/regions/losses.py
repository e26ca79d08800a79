"""The losses of the region network, as functions of tensors.

Axes: B images, N anchors, K boxes given to the region head, G named boxes (zeros where an image has fewer), V words,
P phrases.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from phrasechain.core.boxes import area_xyxy, iou_xyxy
from phrasechain.model.targets import soft_targets

NEAR = 0.5  # the overlap from which a box is about the same thing
_NEAREST = 9  # anchors that a named box has at least


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


def proposal_losses(score: Tensor, boxes: Tensor, anchors: Tensor, named: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the scores and GIoU loss of the boxes, both per standing anchor.

    A score is to tell the overlap of the anchor's regressed box with what the anchor stands for, 0 if that is nothing.
    """
    stands, owner = assign(anchors, named)
    image, place = stands.nonzero(as_tuple=True)
    gold = named[image, owner[image, place]]
    found = boxes[image, place]
    overlap = iou_xyxy(found, gold).detach()
    target = torch.zeros_like(score)
    target[image, place] = overlap
    count = max(1, len(image))
    judged = F.binary_cross_entropy_with_logits(score, target, reduction="sum") / count
    return judged, (1 - giou_xyxy(found, gold)).sum() / count


def quality_losses(quality: Tensor, refined: Tensor, boxes: Tensor, named: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the judged overlap, and GIoU loss of the refined boxes near a named one.

    Rows of zeros, which fill up the boxes of an image, count for nothing.
    """
    overlap, owner = iou_xyxy(boxes[:, :, None], named[:, None]).max(-1)  # (B, K)
    gold = named.gather(1, owner[..., None].expand(-1, -1, 4))
    after = iou_xyxy(refined, gold).detach()
    near = overlap >= NEAR
    real = area_xyxy(boxes) > 0
    judged = F.binary_cross_entropy_with_logits(quality[real], after[real], reduction="sum") / real.sum().clamp_min(1)
    return judged, ((1 - giou_xyxy(refined, gold)) * near).sum() / near.sum().clamp_min(1)


def word_loss(logits: Tensor, boxes: Tensor, named: Tensor, words: Tensor) -> Tensor:
    """Cross-entropy of every word for boxes that are near a named one: (B, K, V), words (B, G, V) in {0, 1}.

    A box shows the words of all the named boxes that it is near. Summed over words, averaged over boxes.
    """
    near = (iou_xyxy(boxes[:, :, None], named[:, None]) >= NEAR).to(words.dtype)  # (B, K, G)
    target = (near @ words).clamp(max=1)  # (B, K, V)
    taught = near.any(-1) & (target.sum(-1) > 0)
    return F.binary_cross_entropy_with_logits(logits[taught], target[taught], reduction="sum") / taught.sum().clamp_min(
        1
    )


def phrase_loss(scores: Tensor, boxes: Tensor, gold: Tensor) -> Tensor:
    """KL(q ‖ p) of each phrase's regions, averaged over phrases that have one: scores (P, K), boxes (P, K, 4).

    q are the soft labels of the chain model: regions with an overlap of at least one half, in its proportion.
    """
    q = soft_targets(iou_xyxy(boxes, gold[:, None]))
    labelled = q.sum(-1) > 0
    divergence = F.kl_div(scores.log_softmax(-1), q, reduction="none").sum(-1)
    return (divergence * labelled).sum() / labelled.sum().clamp_min(1)
