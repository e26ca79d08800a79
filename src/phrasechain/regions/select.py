"""Choosing among scored boxes: the best ones that are not the same."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from phrasechain.regions.nms import suppress


class Chosen(NamedTuple):
    """K boxes of each image, best first; where suppression left fewer, the suppressed ones follow."""

    boxes: Tensor  # (B, K, 4) within the image
    places: Tensor  # (B, K) int64: where they stood
    kept: Tensor  # (B, K) bool: False for those that fill up


def best_boxes(score: Tensor, boxes: Tensor, candidates: int, overlap: float, count: int) -> Chosen:
    """Greedy suppression among the ``candidates`` best: scores (B, N) and boxes (B, N, 4) to ``count`` of them."""
    order = score.topk(min(candidates, score.shape[1]), -1).indices  # (B, M), falling
    inside = boxes.clamp(0, 1).gather(1, order[..., None].expand(-1, -1, 4))
    kept = suppress(inside, overlap)
    first = (~kept).to(torch.int8).sort(dim=-1, stable=True).indices[:, :count]  # the kept ones, in their order
    chosen = inside.gather(1, first[..., None].expand(-1, -1, 4))
    return Chosen(chosen, order.gather(1, first), kept.gather(1, first))
