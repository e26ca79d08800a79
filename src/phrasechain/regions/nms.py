"""Non-maximum suppression (NMS): greedy NMS as tensor operations, and soft-NMS.

Where pip found a compiler, nms.c runs both for one photo, several times as fast.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from phrasechain.core.boxes import iou_xyxy, pairwise_iou_xyxy
from phrasechain.regions import nms_kernel

_BLOCK = 128  # boxes per round of nms
_MIDPOINT, _SLOPE = 0.55, 20.0  # of soft-NMS's logistic decay: the IoU at which a score is halved, and the steepness


def suppress(boxes: Tensor, threshold: float) -> Tensor:
    """The mask of greedy NMS over boxes sorted by falling score, batched: (..., N, 4) to (..., N) bool.

    A box is suppressed when an earlier box that is kept has an IoU above ``threshold`` with it. Computed as a fixed
    point: each round decides at least one more box, in order, so it converges to the greedy result, usually quickly.
    """
    overlaps = iou_xyxy(boxes[..., :, None, :], boxes[..., None, :, :]) > threshold  # (..., N, N)
    earlier = overlaps.tril(-1).to(boxes.dtype)  # row i: the boxes before i that overlap it
    before, kept = None, torch.ones_like(boxes[..., 0])
    while before is None or not torch.equal(before, kept):
        before, kept = kept, ((earlier @ kept[..., None])[..., 0] == 0).to(boxes.dtype)
    return kept > 0


class SelectedBoxes(NamedTuple):
    """K boxes of each image, best first; where NMS keeps fewer than K, suppressed boxes fill up the rest."""

    boxes: Tensor  # (B, K, 4), clipped to the image
    indices: Tensor  # (B, K) int64: into the N input boxes
    kept: Tensor  # (B, K) bool: False for boxes that were suppressed


def best_boxes(score: Tensor, boxes: Tensor, candidates: int, overlap: float, count: int) -> SelectedBoxes:
    """Greedy NMS among the ``candidates`` best: scores (B, N) and boxes (B, N, 4) to ``count`` boxes."""
    order = score.topk(min(candidates, score.shape[1]), -1).indices  # (B, M), falling
    inside = boxes.clamp(0, 1).gather(1, order[..., None].expand(-1, -1, 4))
    kept = suppress(inside, overlap)
    first = (~kept).to(torch.int8).sort(dim=-1, stable=True).indices[:, :count]  # the kept ones, in their order
    selected = inside.gather(1, first[..., None].expand(-1, -1, 4))
    return SelectedBoxes(selected, order.gather(1, first), kept.gather(1, first))


def nms(boxes: Tensor, threshold: float, count: int) -> Tensor:
    """Greedy NMS of one photo: the indices of the first ``count`` boxes kept, of (N, 4) sorted by falling score.

    The same result as :func:`suppress`, but it stops as soon as ``count`` boxes are kept.
    """
    library = nms_kernel.load()
    if library is not None and _fits_kernel(boxes, (len(boxes), 4)):
        return nms_kernel.nms(library, boxes, threshold, count)
    kept = torch.empty(0, dtype=torch.long, device=boxes.device)
    for start in range(0, len(boxes), _BLOCK):
        block = torch.arange(start, min(start + _BLOCK, len(boxes)), device=boxes.device)
        overlaps = pairwise_iou_xyxy(boxes[block], boxes[kept]) > threshold
        fresh = block[~overlaps.any(1)]
        kept = torch.cat((kept, fresh[suppress(boxes[fresh], threshold)]))
        if len(kept) >= count:
            break
    return kept[:count]


def soft_nms(boxes: Tensor, score: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Soft-NMS of boxes (M, 4) with ``score`` logits (M,): the indices of the best ``count``, and their log scores.

    Each round selects the box with the highest remaining score and decays the scores of the others by their overlap
    with it. The score of the box selected n-th is σ(score) · Π (1 - σ(20 (IoU - 0.55))) over the n - 1 boxes before it,
    the probability that it shows an object that none of those shows. Scores only fall, so the result is sorted.

    Bodla et al. (2017) decay by 1 - IoU above a threshold, or by exp(-IoU²/σ); ours is logistic: close to 1 below an
    IoU of 0.4 and close to 0 above 0.7, like a smooth version of hard NMS. Boxes and scores must be finite.
    """
    library = nms_kernel.load()
    if library is not None and _fits_kernel(boxes, (len(boxes), 4)) and _fits_kernel(score, (len(boxes),)):
        return nms_kernel.soft_nms(library, boxes, score, count, _MIDPOINT, _SLOPE)
    remaining = F.logsigmoid(score).cpu().numpy().copy()  # (M,) log scores
    log_decay = F.logsigmoid(_SLOPE * (_MIDPOINT - pairwise_iou_xyxy(boxes, boxes))).cpu().numpy()  # (M, M)
    indices, log_scores = [], []
    for _ in range(min(count, len(boxes))):
        best = int(remaining.argmax())
        indices.append(best)
        log_scores.append(float(remaining[best]))
        remaining += log_decay[best]
        remaining[best] = -float("inf")
    return torch.tensor(indices, dtype=torch.long), torch.tensor(log_scores)


def _fits_kernel(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether the compiled code can read the tensor; others take the torch path, which reports wrong shapes."""
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.shape == shape
