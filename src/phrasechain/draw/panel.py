"""The canvas: the photo, large enough for labels, and the boxes in its pixels."""

from __future__ import annotations

import math

from PIL import Image

from phrasechain.core.schema import Box
from phrasechain.draw.places import Rectangle

MIN_SIDE = 200  # pixels of the longer side; a smaller photo is enlarged
MIN_FONT_SIZE = 12  # pixels
_BACKGROUND = (238, 238, 238)  # the ground beside a photo that is narrower or lower than its labels


class Panel:
    """A copy of the photo, in the middle of a light ground if it is too narrow or too low for labels."""

    def __init__(self, image: Image.Image) -> None:
        photo = _enlarged(image)
        self.font_size = choose_font_size(*photo.size)
        self.line = max(2, round(self.font_size / 9))
        width, height = max(photo.width, MIN_SIDE), max(photo.height, 4 * self.font_size)
        self.picture = Image.new("RGB", (width, height), _BACKGROUND)
        self._corner = (width - photo.width) // 2, (height - photo.height) // 2
        self._size = image.size
        self._scale = photo.width / image.width, photo.height / image.height
        self.picture.paste(photo, self._corner)

    def rectangle(self, box: Box) -> Rectangle:
        """The whole pixels of the panel that a box covers, enough of them for a frame, all inside."""
        (x0, x1), (y0, y1) = (self._side(sorted(box[axis::2]), axis) for axis in (0, 1))
        return x0, y0, x1, y1

    def _side(self, ends: list[float], axis: int) -> tuple[int, int]:
        limit, least = self.picture.size[axis], 4 * self.line
        clipped = (min(max(end, 0.0), self._size[axis]) for end in ends)
        low, high = (end * self._scale[axis] + self._corner[axis] for end in clipped)
        short = max(0.0, least - (high - low)) / 2
        start = min(max(math.floor(low - short), 0), limit - least)
        return start, max(min(math.ceil(high + short), limit), start + least)


def choose_font_size(width: int, height: int) -> int:
    """The font size, in pixels, that is readable when the picture fills a page or a screen: a share of its size.

    >>> choose_font_size(200, 150), choose_font_size(500, 375), choose_font_size(4000, 3000)
    (12, 14, 108)
    """
    even = min(math.sqrt(width * height) / 32, width / 20)
    return max(MIN_FONT_SIZE, round(even), round(width / 100))


def _enlarged(image: Image.Image) -> Image.Image:
    scale = MIN_SIDE / max(image.size)
    if scale <= 1:
        return image.convert("RGB")
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
