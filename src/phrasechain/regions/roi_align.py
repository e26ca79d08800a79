"""RoIAlign (He et al., 2017): each cell of a grid over the box averages bilinear samples of the feature map.

Bilinear sampling on a regular grid is separable: a region is two small matrix products, one along the rows and one
along the columns of the map, instead of thousands of gathers.
"""

from __future__ import annotations

import torch
from torch import Tensor

SAMPLES = 4  # along each side of a cell


def roi_align(maps: Tensor, boxes: Tensor, cells: int) -> Tensor:
    """Pool boxes (B, K, 4), normalised to [0, 1], from maps (B, C, H, W): (B, K, cells, cells, C)."""
    B, C, H, W = maps.shape
    K = boxes.shape[1]
    rows = sampling_weights(boxes[..., 1], boxes[..., 3], cells, H)  # (B, K, cells, H)
    columns = sampling_weights(boxes[..., 0], boxes[..., 2], cells, W)  # (B, K, cells, W)
    by_row = maps.permute(0, 2, 3, 1).reshape(B, H, W * C)
    lines = (rows.reshape(B, K * cells, H) @ by_row).view(B, K, cells, W, C)
    return columns[:, :, None] @ lines  # (B, K, 1, cells, W) @ (B, K, cells, W, C)


def sampling_weights(start: Tensor, end: Tensor, cells: int, size: int) -> Tensor:
    """The weight of each of the ``size`` positions of an axis in each cell of [start, end).

    (...) to (..., cells, size). Positions lie at the centres (i + ½) / size; samples beyond the first or the last
    centre take its value (clamping).
    """
    steps = (torch.arange(cells * SAMPLES, device=start.device, dtype=start.dtype) + 0.5) / (cells * SAMPLES)
    points = start[..., None] + (end - start)[..., None] * steps  # (..., cells · SAMPLES)
    points = (points * size - 0.5).clamp(0, size - 1)
    centres = torch.arange(size, device=start.device, dtype=start.dtype)
    weights = (1 - (points[..., None] - centres).abs()).clamp_min(0)  # (..., cells · SAMPLES, size)
    return weights.view(*start.shape, cells, SAMPLES, size).mean(-2)
