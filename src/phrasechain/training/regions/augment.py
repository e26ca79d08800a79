"""Data augmentation: views of a photo and of what its captions name, mirrored, nearer, farther, in other light.

Left and right change places in the words when the photo is mirrored; light, contrast and the strength of colours
change, hues never do, since captions name colours; a crop cuts no named box by more than a little.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from torch import Tensor

from phrasechain.core.boxes import area_xyxy
from phrasechain.training.regions.vocabulary import RegionTargets, Vocabulary, mirror

_WHOLE = 1 / 3  # how often a photo is seen as it is
_SIDES = (0.5, 1.4)  # of a photo, that another view shows: a part of it, or more than there is
_GREY = (127, 127, 127)  # what lies beyond the photo
_KEPT = 0.7  # the share of a named box that a crop must leave, or the box is forgotten
_LIGHT = 0.3  # how far brightness, contrast and the strength of colours go


@dataclass(frozen=True, slots=True)
class View:
    """How a photo is looked at."""

    window: tuple[float, float, float, float]  # x0, y0, x1, y1 in shares of its sides; beyond it all is grey
    brightness: float
    contrast: float
    colour: float
    is_mirrored: bool


def random_view(rng: np.random.Generator) -> View:
    """A view of any photo."""
    window = random_window(rng)
    brightness, contrast, colour = (1 + rng.uniform(-_LIGHT, _LIGHT) for _ in range(3))
    return View(window, brightness, contrast, colour, bool(rng.random() < 0.5))


def render_view(image: Image.Image, view: View, size: int) -> NDArray[np.uint8]:
    """What an RGB photo looks like: (size, size, 3)."""
    x0, y0, x1, y1 = view.window
    seen = Image.new("RGB", (round((x1 - x0) * image.width) or 1, round((y1 - y0) * image.height) or 1), _GREY)
    seen.paste(image, (round(-x0 * image.width), round(-y0 * image.height)))
    seen = seen.resize((size, size), Image.Resampling.BILINEAR)
    seen = ImageEnhance.Brightness(seen).enhance(view.brightness)
    seen = ImageEnhance.Contrast(seen).enhance(view.contrast)
    seen = ImageEnhance.Color(seen).enhance(view.colour)
    pixels = np.asarray(seen)
    return np.ascontiguousarray(pixels[:, ::-1] if view.is_mirrored else pixels)


def view_targets(target: RegionTargets, view: View, vocabulary: Vocabulary) -> RegionTargets:
    """What is left to learn of a photo."""
    target = crop(target, view.window)
    return mirror(target, vocabulary) if view.is_mirrored else target


def random_window(rng: np.random.Generator) -> tuple[float, float, float, float]:
    """The whole photo, a part of it, or more than it: x0, y0, x1, y1 in shares of its sides."""
    if rng.random() < _WHOLE:
        return 0.0, 0.0, 1.0, 1.0
    (x0, x1), (y0, y1) = _random_side(rng), _random_side(rng)
    return x0, y0, x1, y1


def _random_side(rng: np.random.Generator) -> tuple[float, float]:
    length = rng.uniform(*_SIDES)
    least, most = sorted((0.0, 1 - length))  # within the photo, or beyond it on both sides
    start = rng.uniform(least, most)
    return start, start + length


def crop(target: RegionTargets, window: tuple[float, float, float, float]) -> RegionTargets:
    """The target of a part of the photo; boxes that it cuts too much are forgotten, with their phrases."""
    cut, kept = _cut(target.boxes, window)
    number = (kept.cumsum(0) - 1).tolist()
    stays = kept[: len(target.words)].tolist()
    return replace(
        target,
        boxes=cut[kept],
        words=tuple(compress(target.words, stays)),
        phrases=tuple((number[box], words) for box, words in target.phrases if kept[box]),
        absent=None if target.absent is None else tuple(compress(target.absent, stays)),
    )


def _cut(boxes: Tensor, window: tuple[float, float, float, float]) -> tuple[Tensor, Tensor]:
    """Boxes (G, 4) in shares of a window's sides, and which of them it does not cut too much."""
    x0, y0, x1, y1 = window
    corner, sides = torch.tensor([x0, y0] * 2).float(), torch.tensor([x1 - x0, y1 - y0] * 2).float()
    moved = (boxes - corner) / sides
    cut = moved.clamp(0, 1)
    return cut, area_xyxy(cut) >= _KEPT * area_xyxy(moved)
