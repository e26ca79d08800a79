"""Photos on disk: their size as displayed, and whether they can be read to the end."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from phrasechain.errors import DataError
from phrasechain.files import reason

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
PIXEL_LIMIT = 200_000_000
ORIENTATION = 0x0112  # the EXIF tag; from 5 on, rows and columns are exchanged


def image_size(path: Path) -> tuple[int, int]:
    """Width and height as displayed, EXIF orientation applied, from the file's header."""
    with _opened(path) as image:
        return _displayed_size(image)


def check_image(path: Path) -> tuple[int, int]:
    """Width and height as displayed, after decoding every pixel: a cut or damaged photo is an error."""
    with _opened(path) as image:
        image.load()
        return _displayed_size(image)


def _displayed_size(image: Image.Image) -> tuple[int, int]:
    width, height = image.size
    if image.format == "TIFF":  # the decoder has exchanged them already
        return width, height
    return (height, width) if image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8) else (width, height)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open an image; whatever the decoder makes of a damaged or hostile file becomes one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the decoder's remarks on odd files: what it cannot read, it raises
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > PIXEL_LIMIT:
                    raise DataError(f"{path}: {image.width}×{image.height} pixels are more than {PIXEL_LIMIT:,}")
                yield image
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image of a known format ({', '.join(FORMATS)})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None
    except Exception as error:  # decoders raise many kinds on damaged files
        raise DataError(f"{path}: broken image: {error}") from None
