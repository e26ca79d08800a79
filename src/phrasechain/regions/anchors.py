"""Anchors: the reference boxes of the proposal head, in coordinates normalised to [0, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

_MAX_ITERATIONS = 100  # of the clustering; it stops earlier when it converges


def anchor_grid(sides: Tensor, size: int) -> Tensor:
    """Anchors of ``sides`` (A, 2), width and height, at each position of a ``size`` × ``size`` map: (size²·A, 4)."""
    centres = (torch.arange(size, dtype=sides.dtype, device=sides.device) + 0.5) / size
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    middle = torch.stack((x, y), -1).view(-1, 1, 2)  # (size², 1, 2)
    return torch.cat((middle - sides / 2, middle + sides / 2), -1).view(-1, 4)


def cluster_sides(sides: Tensor, count: int) -> Tensor:
    """Anchor sizes by clustering box sides (N, 2) with the distance 1 - IoU of centred boxes: (count, 2), by area.

    The k-means of YOLOv2 (Redmon & Farhadi, 2017) with medians for means. Centres start at quantiles of the area, so
    the result needs no seed.
    """
    order = sides.prod(-1).argsort()
    centres = sides[order[torch.linspace(0, len(sides) - 1, 2 * count + 1).long()[1::2]]]
    for _ in range(_MAX_ITERATIONS):
        common = torch.minimum(sides[:, None], centres).prod(-1)
        overlap = common / (sides.prod(-1)[:, None] + centres.prod(-1) - common)  # (N, count)
        nearest = overlap.argmax(-1)
        moved = torch.stack(
            [
                sides[nearest == each].median(0).values if (nearest == each).any() else centres[each]
                for each in range(count)
            ]
        )
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres[centres.prod(-1).argsort()]
