"""Geometry of boxes, on torch tensors of any leading shape.

A box is x0, y0, x1, y1: continuous, 0-based, half-open, in pixels of the image. ``sizes`` is always width, height.
A degenerate box (x1 ≤ x0 or y1 ≤ y0) has area 0 and IoU 0 with everything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phrasechain.core.errors import require_name

#: Offsets added to x0, y0, x1, y1 of a gold and of a predicted box before they are compared as half-open boxes.
#: Gold boxes are stored half-open: the annotation (xmin, ymin, xmax, ymax) as (xmin-1, ymin-1, xmax, ymax).
_SHIFTS = {
    "authors": ((1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)),
    "half_open": ((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)),
    "plus_one": ((1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 1.0, 1.0)),
    "raw": ((1.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)),
}
CONVENTIONS = tuple(_SHIFTS)


def area_xyxy(boxes: Tensor) -> Tensor:
    """Area of each box: (..., 4) to (...)."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def centre_xyxy(boxes: Tensor) -> Tensor:
    """Centre x, y of each box: (..., 4) to (..., 2)."""
    return (boxes[..., :2] + boxes[..., 2:]) / 2


def cxcywh_to_xyxy(boxes: Tensor) -> Tensor:
    """Convert boxes from centre, width, height to corners: (..., 4) to (..., 4).

    >>> cxcywh_to_xyxy(torch.tensor([4.0, 5, 2, 6]))
    tensor([3., 2., 5., 8.])
    """
    centres, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centres - half, centres + half], -1)


def iou_xyxy(first: Tensor, second: Tensor) -> Tensor:
    """Element-wise intersection over union (IoU); leading shapes broadcast.

    >>> iou_xyxy(torch.tensor([0.0, 0, 2, 2]), torch.tensor([[0.0, 0, 2, 1], [2.0, 2, 3, 3], [1.0, 1, 1, 1]]))
    tensor([0.5000, 0.0000, 0.0000])
    """
    top_left = torch.maximum(first[..., :2], second[..., :2])
    bottom_right = torch.minimum(first[..., 2:], second[..., 2:])
    overlap = area_xyxy(torch.cat([top_left, bottom_right], -1))
    union = area_xyxy(first) + area_xyxy(second) - overlap
    return overlap / torch.where(union > 0, union, 1.0)


def pairwise_iou_xyxy(first: Tensor, second: Tensor) -> Tensor:
    """IoU of every box with every other: (N, 4) and (M, 4) to (N, M)."""
    return iou_xyxy(first[:, None], second[None])


def contains_xy(boxes: Tensor, points: Tensor) -> Tensor:
    """Whether the half-open box contains the point: (..., 4) and (..., 2) to (...) bool."""
    return ((boxes[..., :2] <= points) & (points < boxes[..., 2:])).all(-1)


def union_xyxy(boxes: Tensor) -> Tensor:
    """The bounding box of N ≥ 1 boxes: (..., N, 4) to (..., 4).

    >>> union_xyxy(torch.tensor([[0.0, 5, 2, 6], [1.0, 1, 9, 3]]))
    tensor([0., 1., 9., 6.])
    """
    return torch.cat([boxes[..., :2].amin(-2), boxes[..., 2:].amax(-2)], -1)


def union_by_group_xyxy(boxes: Tensor, group: Tensor, count: int) -> Tensor:
    """The bounding box of each group of boxes; zeros for an empty group.

    ``boxes`` (M, 4) belong to the groups ``group`` (M,), numbers below ``count``; the result is (count, 4).
    """
    index = group[:, None].expand(-1, 2)
    low = boxes.new_zeros(count, 2).scatter_reduce(0, index, boxes[:, :2], "amin", include_self=False)
    high = boxes.new_zeros(count, 2).scatter_reduce(0, index, boxes[:, 2:], "amax", include_self=False)
    return torch.cat([low, high], -1)


def max_by_group(values: Tensor, group: Tensor, count: int) -> Tensor:
    """The maximum of the values ≥ 0 of each group, 0 for an empty group: (M, ...) and (M,) to (count, ...)."""
    index = group.view(-1, *[1] * (values.dim() - 1)).expand_as(values)
    return values.new_zeros(count, *values.shape[1:]).scatter_reduce(0, index, values, "amax")


def clip_xyxy(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Clip the boxes (..., 4) to images of ``sizes`` (..., 2)."""
    limits = torch.cat([sizes, sizes], -1).to(boxes.dtype)
    return torch.minimum(boxes.clamp(min=0), limits)


def spatial_features_xyxy(boxes: Tensor, sizes: Tensor) -> Tensor:
    """[x0/W, y0/H, x1/W, y1/H, wh/WH] of boxes (..., 4) in images of ``sizes`` (..., 2): (..., 5).

    >>> spatial_features_xyxy(torch.tensor([0.0, 10, 50, 20]), torch.tensor([100.0, 40]))
    tensor([0.0000, 0.2500, 0.5000, 0.5000, 0.1250])
    """
    scaled = boxes / torch.cat([sizes, sizes], -1)
    return torch.cat([scaled, area_xyxy(scaled)[..., None]], -1)


def encode_offsets_xyxy(boxes: Tensor, anchors: Tensor, min_sides: Tensor | None = None) -> Tensor:
    """Box-regression offsets from an anchor to a box (R-CNN parametrisation): (..., 4) and (..., 4) to (..., 4).

    β = [(x - x_a)/w_a, (y - y_a)/h_a, log w/w_a, log h/h_a], with x, y the centres; ``decode_offsets_xyxy`` is the
    exact inverse. All sides must be positive.

    ``min_sides`` (..., 2), a minimum width and height, gives the variant of the authors' code: the sides of both boxes
    are clamped to it (a tenth of the image's). Decoding does not undo that, so it is not invertible for small boxes.
    """
    sides, anchor_sides = boxes[..., 2:] - boxes[..., :2], anchors[..., 2:] - anchors[..., :2]
    if min_sides is not None:
        sides, anchor_sides = torch.maximum(sides, min_sides), torch.maximum(anchor_sides, min_sides)
    shift = (centre_xyxy(boxes) - centre_xyxy(anchors)) / anchor_sides
    return torch.cat([shift, torch.log(sides / anchor_sides)], -1)


def decode_offsets_xyxy(offsets: Tensor, anchors: Tensor) -> Tensor:
    """Apply the offsets of ``encode_offsets_xyxy`` to an anchor: (..., 4) and (..., 4) to (..., 4)."""
    anchor_sides = anchors[..., 2:] - anchors[..., :2]
    centres = centre_xyxy(anchors) + offsets[..., :2] * anchor_sides
    half = anchor_sides * torch.exp(offsets[..., 2:]) / 2
    return torch.cat([centres - half, centres + half], -1)


def gold_in_convention_xyxy(boxes: Tensor, convention: str) -> Tensor:
    """Gold boxes (..., 4), stored half-open, in a pixel convention: see ``predicted_in_convention_xyxy``."""
    return boxes + boxes.new_tensor(_shifts(convention)[0])


def predicted_in_convention_xyxy(boxes: Tensor, convention: str) -> Tensor:
    """Predicted boxes (..., 4), as written in a file, as half-open boxes that can be compared with the gold boxes.

    With (xmin, ymin, xmax, ymax) the annotated 1-based pixels, both inclusive, and p the predicted numbers:

    - ``half_open``: gold (xmin-1, ymin-1, xmax, ymax), p as it is; w = x1 - x0. p counts from 0, x1 and y1 exclusive.
    - ``plus_one``: gold as annotated, p as it is; w = x1 - x0 + 1 for both. p counts as the annotation does. Equal to
      ``half_open`` for p moved to (x0-1, y0-1, x1, y1).
    - ``raw``: gold as annotated, p as it is; w = x1 - x0 for both: every gold box is a pixel short.
    - ``authors``: gold (xmin, ymin, xmax+1, ymax+1), p as it is; w = x1 - x0 for both, as the code of the paper does.
    """
    return boxes + boxes.new_tensor(_shifts(convention)[1])


def _shifts(convention: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    require_name("pixel convention", convention, CONVENTIONS)
    return _SHIFTS[convention]
