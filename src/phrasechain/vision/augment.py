"""Other views of a photo and of what its captions name: mirrored, nearer, farther, lighter or darker.

Left and right change places in the words when the photo is mirrored; light and contrast change, hues never do, since
captions name colours; a crop cuts no named box by more than a little.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from phrasechain.boxes import area_xyxy
from phrasechain.vision.words import Lesson, Vocabulary, mirror

_WHOLE = 1 / 3  # how often a photo is seen as it is
_SIDES = (0.6, 1.3)  # of a photo, that another view shows: a part of it, or more than there is
_GREY = (127, 127, 127)  # what lies beyond the photo
_KEPT = 0.7  # the share of a named box that a crop must leave, or the box is forgotten
_LIGHT = 0.25  # how far brightness and contrast go


def random_view(
    image: Image.Image, lesson: Lesson, vocabulary: Vocabulary, size: int, chance: np.random.Generator
) -> tuple[NDArray[np.uint8], Lesson]:
    """A random view of an RGB photo as (size, size, 3), and its lesson."""
    window = random_window(chance)
    lesson = crop(lesson, window)
    x0, y0, x1, y1 = window
    view = Image.new("RGB", (round((x1 - x0) * image.width) or 1, round((y1 - y0) * image.height) or 1), _GREY)
    view.paste(image, (round(-x0 * image.width), round(-y0 * image.height)))
    view = view.resize((size, size), Image.Resampling.BILINEAR)
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast):
        view = enhance(view).enhance(1 + chance.uniform(-_LIGHT, _LIGHT))
    pixels = np.asarray(view)
    if chance.random() < 0.5:
        pixels, lesson = pixels[:, ::-1], mirror(lesson, vocabulary)
    return np.ascontiguousarray(pixels), lesson


def random_window(chance: np.random.Generator) -> tuple[float, float, float, float]:
    """The whole photo, a part of it, or more than it: x0, y0, x1, y1 in shares of its sides."""
    if chance.random() < _WHOLE:
        return 0.0, 0.0, 1.0, 1.0
    (x0, x1), (y0, y1) = _random_side(chance), _random_side(chance)
    return x0, y0, x1, y1


def _random_side(chance: np.random.Generator) -> tuple[float, float]:
    length = chance.uniform(*_SIDES)
    least, most = sorted((0.0, 1 - length))  # within the photo, or beyond it on both sides
    start = chance.uniform(least, most)
    return start, start + length


def crop(lesson: Lesson, window: tuple[float, float, float, float]) -> Lesson:
    """The lesson of a part of the photo; boxes that it cuts too much are forgotten, with their phrases."""
    x0, y0, x1, y1 = window
    corner, sides = torch.tensor([x0, y0] * 2).float(), torch.tensor([x1 - x0, y1 - y0] * 2).float()
    moved = (lesson.boxes - corner) / sides
    cut = moved.clamp(0, 1)
    kept = area_xyxy(cut) >= _KEPT * area_xyxy(moved)  # (G,)
    number = (kept.cumsum(0) - 1).tolist()
    merged = len(lesson.words)
    return replace(
        lesson,
        boxes=cut[kept],
        words=tuple(words for words, stays in zip(lesson.words, kept[:merged].tolist(), strict=True) if stays),
        phrases=tuple((number[box], words) for box, words in lesson.phrases if kept[box]),
    )
