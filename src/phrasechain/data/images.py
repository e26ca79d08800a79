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
PIXEL_LIMIT = 178_956_970  # from which Pillow refuses an image, unless it is told otherwise
ORIENTATION = 0x0112  # the EXIF tag; from 5 on, rows and columns are exchanged


@contextmanager
def without_remarks() -> Iterator[None]:
    """Silence the decoder's remarks on odd files: what it cannot read, it raises. For one thread, around all others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def image_size(path: Path) -> tuple[int, int]:
    """Width and height as displayed, EXIF orientation applied; pixels are decoded only where EXIF may follow them."""
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
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > PIXEL_LIMIT:
                raise Image.DecompressionBombError
            yield image
    except Image.DecompressionBombError:
        raise DataError(f"{path}: more than {PIXEL_LIMIT:,} pixels; make it smaller") from None
    except FileNotFoundError:
        raise DataError(f"{path}: missing") from None
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image of a known format ({', '.join(FORMATS)})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None
    except Exception as error:  # decoders raise many kinds on damaged files
        raise DataError(f"{path}: broken image: {error}") from None
