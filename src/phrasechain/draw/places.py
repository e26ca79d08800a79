"""Where labels go: at their boxes, inside the picture, over no other label and over as little else as possible.

Rectangles are x0, y0, x1, y1 in whole pixels, half-open, as boxes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rectangle = tuple[int, int, int, int]
Size = tuple[int, int]  # width, height

#: More labels than this help nobody, and the search below grows with the cube of their number.
LABEL_LIMIT = 60
_FAR = 0.5  # the cost of a distance of the picture's width and height, in boxes covered
_MISALIGNED = 0.05  # the cost of a label that neither starts nor ends where its box does


class Label(NamedTuple):
    """A label that found a place: which of its sizes, and where."""

    choice: int
    rectangle: Rectangle


def place_labels(boxes: Sequence[Rectangle], sizes: Sequence[Sequence[Size]], picture: Size) -> list[Label | None]:
    """A place for the label of each box, or ``None`` where there is no room, and past the first ``LABEL_LIMIT`` boxes.

    Boxes choose in the order given: the small ones, which have less room, come best first. ``sizes`` are those that a
    label may have, the best first: the next is tried only if no place that touches the box is free.
    """
    labels: list[Label | None] = []
    first_boxes = np.array(boxes[:LABEL_LIMIT], int).reshape(-1, 4)
    for box, choices in zip(boxes[:LABEL_LIMIT], sizes, strict=False):
        taken = np.array([label.rectangle for label in labels if label], int).reshape(-1, 4)
        labels.append(_label(box, choices, picture, taken, first_boxes))
    return labels + [None] * (len(boxes) - len(labels))


def _label(
    box: Rectangle, sizes: Sequence[Size], picture: Size, taken: NDArray[np.int_], boxes: NDArray[np.int_]
) -> Label | None:
    for choice, size in enumerate(sizes):
        places = _free_places(box, size, picture, taken)  # (C, 4)
        if len(places):
            best = places[_costs(places, box, picture, boxes).argmin()]
            return Label(choice, tuple(best.tolist()))
    return None


def _free_places(box: Rectangle, size: Size, picture: Size, taken: NDArray[np.int_]) -> NDArray[np.int_]:
    """Places that touch the box and cover nothing taken, (C, 4); empty only if there is none at all.

    Where a label may stand is a rectangle of positions without those, again rectangles, at which it would cover a taken
    one. If anything is left, so is a corner of it: a position whose x and whose y are each the end of such a rectangle.
    """
    xs = _ends(box[0], box[2], size[0], picture[0], taken[:, [0, 2]])
    ys = _ends(box[1], box[3], size[1], picture[1], taken[:, [1, 3]])
    x, y = (axis.ravel() for axis in np.meshgrid(xs, ys))
    places = np.stack([x, y, x + size[0], y + size[1]], -1)
    return places[~(_overlaps(places, taken) > 0).any(1)]


def _ends(low: int, high: int, side: int, limit: int, taken: NDArray[np.int_]) -> NDArray[np.int_]:
    """On one axis, where a label that touches [low, high] may start so that it ends or starts with something."""
    candidates = [low - side, low, high - side, high, 0, limit - side, *(taken[:, 0] - side), *taken[:, 1]]
    ends = np.unique(np.array(candidates))
    return ends[(ends >= max(0, low - side)) & (ends <= min(limit - side, high))]


def _overlaps(first: NDArray[np.int_], second: NDArray[np.int_]) -> NDArray[np.int_]:
    """The area that rectangles have in common: (N, 4) and (M, 4) to (N, M)."""
    top_left = np.maximum(first[:, None, :2], second[None, :, :2])
    sides = (np.minimum(first[:, None, 2:], second[None, :, 2:]) - top_left).clip(0)
    common: NDArray[np.int_] = sides[..., 0] * sides[..., 1]
    return common


def _costs(places: NDArray[np.int_], box: Rectangle, picture: Size, boxes: NDArray[np.int_]) -> NDArray[np.floating]:
    """Boxes covered, each as a share of it, and the distance from the usual place: above the box, at its left end."""
    sides = boxes[:, 2:] - boxes[:, :2]
    covered = (_overlaps(places, boxes) / sides.prod(1)).sum(1)
    distance = np.abs(places[:, 0] - box[0]) + np.abs(places[:, 3] - box[1])
    misaligned = (places[:, 0] != box[0]) & (places[:, 2] != box[2])
    costs: NDArray[np.floating] = covered + _FAR * distance / sum(picture) + _MISALIGNED * misaligned
    return costs
