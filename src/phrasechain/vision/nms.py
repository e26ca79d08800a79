"""Exact greedy non-maximum suppression, without a loop over boxes."""

from __future__ import annotations

import torch
from torch import Tensor

from phrasechain.boxes import iou_xyxy, pairwise_iou_xyxy

_BLOCK = 128  # boxes that are decided together


def suppress(boxes: Tensor, threshold: float) -> Tensor:
    """Which boxes greedy suppression keeps, when they come in order of falling score: (..., N, 4) to (..., N) bool.

    A box goes when an earlier one that stays overlaps it by more than ``threshold``. The earliest boxes are decided
    at once and each round decides at least one more, so that the rounds end at the greedy answer; few are needed.
    """
    N = boxes.shape[-2]
    overlaps = iou_xyxy(boxes[..., :, None, :], boxes[..., None, :, :]) > threshold  # (..., N, N)
    earlier = overlaps.tril(-1).to(torch.float32)  # row i: the boxes before i that overlap it
    kept = torch.ones(boxes.shape[:-1], dtype=torch.float32, device=boxes.device)
    for _ in range(N):
        after = ((earlier @ kept[..., None])[..., 0] == 0).to(torch.float32)
        if torch.equal(after, kept):
            break
        kept = after
    return kept > 0


def first_kept(boxes: Tensor, threshold: float, count: int) -> Tensor:
    """The places of the first ``count`` boxes that :func:`suppress` keeps of (N, 4), without a look at those behind."""
    kept = torch.empty(0, dtype=torch.long, device=boxes.device)
    for start in range(0, len(boxes), _BLOCK):
        block = torch.arange(start, min(start + _BLOCK, len(boxes)), device=boxes.device)
        overlaps = pairwise_iou_xyxy(boxes[block], boxes[kept]) > threshold
        fresh = block[~overlaps.any(1)]
        kept = torch.cat((kept, fresh[suppress(boxes[fresh], threshold)]))
        if len(kept) >= count:
            break
    return kept[:count]
