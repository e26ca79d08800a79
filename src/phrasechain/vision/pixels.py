"""Photos of every kind as the square of pixels that the region network looks at."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image


class Photo(NamedTuple):
    """A photo, squashed to a square."""

    width: int  # as displayed, before squashing
    height: int
    pixels: NDArray[np.uint8]  # (S, S, 3) RGB


def read_photo(source: Path | Image.Image | NDArray[np.uint8], size: int) -> Photo:
    """Decode a photo, turn it as it is displayed and squash it to ``size`` × ``size``."""
    rgb = read_rgb(source)
    return Photo(rgb.width, rgb.height, np.array(rgb.resize((size, size), Image.Resampling.BILINEAR)))


def read_rgb(source: Path | Image.Image | NDArray[np.uint8]) -> Image.Image:
    """Decode a photo and turn it as it is displayed."""
    image = Image.open(source) if isinstance(source, Path) else source
    return image.convert("RGB")
