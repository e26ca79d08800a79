"""Selecting the best boxes by score and non-maximum suppression."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from phrasechain.regions.nms import suppress


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
