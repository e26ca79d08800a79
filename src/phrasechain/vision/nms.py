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
    overlaps = iou_xyxy(boxes[..., :, None, :], boxes[..., None, :, :]) > threshold  # (..., N, N)
    earlier = overlaps.tril(-1).to(boxes.dtype)  # row i: the boxes before i that overlap it
    everything = torch.ones_like(boxes[..., 0])

    def next_round(before: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        return kept.clone(), ((earlier @ kept[..., None])[..., 0] == 0).to(boxes.dtype)

    def is_open(before: Tensor, kept: Tensor) -> Tensor:
        return (before != kept).any()

    state = next_round(everything, everything)
    if torch.compiler.is_exporting():  # a loop that the graph can hold
        from torch._higher_order_ops import while_loop

        state = while_loop(is_open, next_round, state)  # type: ignore[no-untyped-call]
    else:
        while is_open(*state):
            state = next_round(*state)
    return state[1] > 0


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
