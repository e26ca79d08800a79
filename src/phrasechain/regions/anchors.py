"""Anchors: the boxes from which proposals are regressed, in shares of the image's sides."""

from __future__ import annotations

import torch
from torch import Tensor


def anchor_grid(sides: Tensor, size: int) -> Tensor:
    """Anchors of ``sides`` (A, 2), width and height, around each centre of a ``size`` × ``size`` map: (size²·A, 4)."""
    centres = (torch.arange(size, dtype=sides.dtype, device=sides.device) + 0.5) / size
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    middle = torch.stack((x, y), -1).view(-1, 1, 2)  # (size², 1, 2)
    return torch.cat((middle - sides / 2, middle + sides / 2), -1).view(-1, 4)


def cluster_sides(sides: Tensor, count: int, rounds: int = 100) -> Tensor:
    """k-means of box sides (N, 2) by intersection over union of boxes with one centre: (count, 2), small ones first.

    The clusters start at even steps of the area and move to the median of what they hold, so the result needs no seed.
    """
    order = sides.prod(-1).argsort()
    centres = sides[order[torch.linspace(0, len(sides) - 1, 2 * count + 1).long()[1::2]]]
    for _ in range(rounds):
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
