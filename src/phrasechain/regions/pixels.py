"""Photos of every kind as the input of the region network, a square of pixels.

Colours are those of a viewer without colour management: transparent parts lie over white, 16 bits are scaled to 8, an
animation is its first frame. A photo much larger than the square is first reduced by a whole number, by the JPEG
decoder or by averaging, to no less than twice the square, and then resampled by Pillow's BILINEAR, a triangle as wide
as the scale asks for: neither lets fine patterns alias. The whole photo lies in memory once, as its file has it; what
is converted and averaged goes through in bands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from phrasechain.core.errors import DataError
from phrasechain.core.images import PhotoFile, check_pixel_count, decoding, displayed_size, opened, orientation

ImageSource = str | Path | PhotoFile | Image.Image | NDArray[np.uint8]

_BAND = 1 << 20  # pixels that are converted at once
_SPARE = 2  # a photo is not reduced below this many squares before it is resampled
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ACROSS = range(5, 9)  # turns that exchange rows and columns
_FULL = 65_535  # what 16 bits call white
_NUMBERS = ("I", "F")  # Pillow's modes for values without an agreed white


class Photo(NamedTuple):
    """A photo, squashed to a square."""

    width: int  # as displayed, before squashing
    height: int
    pixels: NDArray[np.uint8]  # (S, S, 3) RGB


class Levels(NamedTuple):
    """The values that are black and white in an image of numbers."""

    black: float
    white: float


def read_photo(source: ImageSource, size: int) -> Photo:
    """Decode a photo, turn it as it is displayed and squash it to ``size`` × ``size``.

    The source is a file, a PIL image or an H × W × 3 array of uint8, RGB; it is left as it is. What cannot be used is
    a ``DataError``. The decoder may warn about odd files: see ``without_warnings``.
    """
    with _opened(source) as image:
        width, height = displayed_size(image)
        turn = orientation(image)
        square = _resampled(image, (size, size), _SPARE, turn, _is_file(source))
        return Photo(width, height, np.array(square))


def read_rgb(source: ImageSource, size: tuple[int, int] | None = None) -> Image.Image:
    """The whole photo in RGB, as displayed; of another ``size`` (width, height) where one is given."""
    with _opened(source) as image:
        turn = orientation(image)
        if size is None or size == displayed_size(image):
            return _turned(_as_rgb(image), turn)
        return _resampled(image, size, 1, turn, _is_file(source))


def _is_file(source: ImageSource) -> bool:
    return isinstance(source, str | Path | PhotoFile)


def _resampled(image: Image.Image, size: tuple[int, int], spare: int, turn: int, is_file: bool) -> Image.Image:
    """The image in RGB, turned, at this size; before that it is reduced to no less than ``spare`` times as much."""
    width, height = size[::-1] if turn in _ACROSS else size
    least = spare * width, spare * height
    draft = image.draft(None, least) if is_file else None  # by the JPEG decoder
    part = draft[1][2:] if draft else image.size
    reduction = max(1, image.width // least[0]), max(1, image.height // least[1])
    rgb = _as_rgb(image, *reduction)
    used = part[0] / reduction[0], part[1] / reduction[1]  # the last row and column may stand for fewer
    shown = _turned(rgb, turn)
    if shown.size == size:
        return shown
    box = _turned_box(used, rgb.size, turn)
    return shown.resize(size, Image.Resampling.BILINEAR, box)  # turned first, so that it does not depend on the turn


@contextmanager
def _opened(source: ImageSource) -> Iterator[Image.Image]:
    if isinstance(source, str | Path | PhotoFile):
        with opened(source) as image:
            yield image
    elif isinstance(source, Image.Image):
        with decoding(getattr(source, "filename", "") or "the given image"):
            check_pixel_count(source)
            yield source
    else:
        with decoding("the given array"):
            image = Image.fromarray(_checked(source))
            check_pixel_count(image)
            yield image


def _checked(array: Any) -> NDArray[np.uint8]:
    if not isinstance(array, np.ndarray):
        kinds = "a path, a PIL image, encoded bytes or a numpy array"
        raise DataError(f"a photo is {kinds}, not of the type {type(array).__name__}")
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise DataError(f"the given array has the shape {array.shape} and the type {array.dtype}, not H × W × 3, uint8")
    return array


def _turned(image: Image.Image, turn: int) -> Image.Image:
    return image.transpose(_TURNS[turn]) if turn in _TURNS else image


def _turned_box(used: tuple[float, float], size: tuple[int, int], turn: int) -> tuple[float, float, float, float]:
    """Where the upper left part of an image lies once the image is turned.

    >>> [_turned_box((9.5, 5), (10, 5), turn)[0] for turn in (1, 2, 5, 8)]
    [0, 0.5, 0, 0]
    """
    right, down = size[0] - used[0], size[1] - used[1]  # what lies beyond it
    left = right if turn in (2, 3) else down if turn in (6, 7) else 0
    top = down if turn in (3, 4) else right if turn in (7, 8) else 0
    width, height = used[::-1] if turn in _ACROSS else used
    return (left, top, left + width, top + height)


def _as_rgb(image: Image.Image, across: int = 1, down: int = 1) -> Image.Image:
    """The image in RGB, each block of ``across`` × ``down`` pixels averaged to one."""
    image.load()
    levels = _levels(image)
    small = Image.new("RGB", (math.ceil(image.width / across), math.ceil(image.height / down)))
    for top, band in _bands(image, down):
        small.paste(_band_as_rgb(band, levels).reduce((across, down)), (0, top // down))
    return small


def _bands(image: Image.Image, multiple: int = 1) -> Iterator[tuple[int, Image.Image]]:
    """The image from top to bottom in bands of a bounded number of pixels, and where each starts.

    All but the last have a number of rows that is a multiple of ``multiple``.
    """
    rows = max(1, _BAND // image.width // multiple) * multiple
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _band_as_rgb(image: Image.Image, levels: Levels | None) -> Image.Image:
    if levels is not None:
        return _scaled(image, levels).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    return white.convert("RGB")


def _scaled(image: Image.Image, levels: Levels) -> Image.Image:
    values = (np.asarray(image, np.float64) - levels.black) * (255 / ((levels.white - levels.black) or 1))
    return Image.fromarray(values.round().clip(0, 255).astype(np.uint8))


def _levels(image: Image.Image) -> Levels | None:
    """What is black and white in an image of 16 or more bits; ``None`` for an image of 8.

    Values of 32 bits, whole or not, are taken as shares of 1 (not whole), as 8 bits or as 16, whichever is the first
    that holds them all, else from the least to the greatest.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Levels(0, _FULL)
    if image.mode not in _NUMBERS:
        return None
    ends = [(values.min(), values.max()) for values in (np.asarray(band) for _, band in _bands(image))]
    low, high = float(np.min(ends)), float(np.max(ends))
    if not math.isfinite(low) or not math.isfinite(high):
        raise ValueError("some of its values are not finite")
    for white in (1, 255, _FULL) if image.mode == "F" else (255, _FULL):
        if low >= 0 and high <= white:
            return Levels(0, white)
    return Levels(low, high)
