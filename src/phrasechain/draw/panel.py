"""The canvas: the photo, large enough for labels, and the boxes in its pixels."""

from __future__ import annotations

import math

from PIL import Image

from phrasechain.core.schema import Box
from phrasechain.draw.places import Rectangle

MIN_SIDE = 200  # pixels of the longer side; a smaller photo is enlarged
MAX_SIDE = 4096  # pixels of the longer side; a larger photo is reduced
MAX_PIXELS = 6_300_000  # of a picture without its caption
MIN_FONT_SIZE = 12  # pixels
_BACKGROUND = (238, 238, 238)  # the ground beside a photo that is narrower or lower than its labels


def canvas_size(width: int, height: int, panels: int = 1) -> tuple[int, int]:
    """The size at which a photo is drawn; a large one is reduced by a whole number, as decoders do it.

    So the memory of a picture is bounded, whatever the photo and the number of its ``panels``.

    >>> canvas_size(640, 480), canvas_size(50, 40), canvas_size(8000, 6000), canvas_size(200_000, 1)
    ((640, 480), (200, 160), (2667, 2000), (4082, 1))
    """
    if max(width, height) < MIN_SIDE:
        scale = MIN_SIDE / max(width, height)
        return max(1, round(width * scale)), max(1, round(height * scale))
    divisor = -(-max(width, height) // MAX_SIDE)
    while -(-width // divisor) * -(-height // divisor) * panels > MAX_PIXELS:
        divisor += 1
    return -(-width // divisor), -(-height // divisor)


class Panel:
    """The photo in the middle of a light ground, if it is too narrow or too low for labels.

    ``size`` is that of the photo which the boxes are of, where ``image`` is a reduced copy of it.
    """

    def __init__(self, image: Image.Image, size: tuple[int, int] | None = None, panels: int = 1) -> None:
        width, height = size or image.size
        photo = _resized(image, canvas_size(width, height, panels))
        self.font_size = choose_font_size(*photo.size)
        self.line = max(2, round(self.font_size / 9))
        self._size = width, height
        self._scale = photo.width / width, photo.height / height
        width, height = max(photo.width, MIN_SIDE), max(photo.height, 4 * self.font_size)
        self.picture = Image.new("RGB", (width, height), _BACKGROUND)
        self._corner = (width - photo.width) // 2, (height - photo.height) // 2
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


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    return rgb if rgb.size == size else rgb.resize(size, Image.Resampling.LANCZOS)
