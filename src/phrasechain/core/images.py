"""Photo files: reading them once, their size as displayed, and whether they decode to the end.

A photo is opened only if its file and its decoder together take less than ``MEMORY_LIMIT``. That is known from its
header: each decoder takes so many bytes for a pixel.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Self

from PIL import Image, UnidentifiedImageError, features

from phrasechain.core.errors import DataError, one_line
from phrasechain.core.files import reason

IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
PIXEL_LIMIT = 178_956_970  # from which Pillow refuses an image, unless it is told otherwise
SIDE_LIMIT = 1 << 20  # pixels; rows are converted whole
MEMORY_LIMIT = 350_000_000  # bytes of a file and its decoder; with what is made of them, 400 MB
ORIENTATION = 0x0112  # the EXIF tag; from 5 on, rows and columns are exchanged
MEMORY = "the given picture"  # what messages call a file without a path
_PNG_COMPRESSION = 1  # of zlib: an eighth of the time of 6, a twelfth more bytes
_FILE_LIMIT = 1 << 28  # bytes
_MODE_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}  # of a pixel in Pillow; of other modes 4
_DECODER_BYTES = {"WEBP": 18, "AVIF": 10, "HEIF": 14, "TIFF": 8}  # of a pixel, measured; of other formats the mode's
_CONTAINERS = {  # formats that need a decoder which not every installation has, by the brands of ISO media files
    "AVIF": (b"avif", b"avis"),
    "HEIF": (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"),
}
_NO_DECODER = {
    "AVIF": "an AVIF photo, which this Pillow does not decode: pip install --upgrade pillow",
    "HEIF": "a HEIC photo, which needs another decoder: pip install pillow-heif",
}


@dataclass(frozen=True, slots=True)
class PhotoFile:
    """A photo's file, read once: the bytes that are hashed are the bytes that are decoded.

    ``released`` drops the bytes and keeps the hash. The file is then read again when it is needed, and refused if it
    has changed. A file that was only ever in memory keeps its bytes.
    """

    path: str | None  # None: from memory
    digest: str  # of its bytes
    data: bytes | None

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read and hash a plain file; a folder, a pipe and a device are refused."""
        try:
            if not Path(path).exists():
                raise DataError(f"{path}: missing")
            if not Path(path).is_file():
                raise DataError(f"{path}: not a file; give the path of a picture")
            if Path(path).stat().st_size > _FILE_LIMIT:
                raise DataError(f"{path}: more than {_FILE_LIMIT:,} bytes; make it smaller")
            data = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {reason(error)}") from None
        return cls._hashed(str(path), data)

    @classmethod
    def from_memory(cls, given: bytes | bytearray | memoryview | BinaryIO) -> Self:
        """Hash the bytes of a picture, or of an open binary file, which is read from where it stands to its end."""
        try:
            data = given if isinstance(given, bytes | bytearray | memoryview) else given.read(_FILE_LIMIT + 1)
        except (OSError, ValueError) as error:  # a file that is closed, or open for writing
            raise DataError(f"{MEMORY}: cannot be read: {error}") from None
        if not isinstance(data, bytes | bytearray | memoryview):
            raise DataError(f"{MEMORY}: text, not bytes; open the picture with mode 'rb'")
        if len(data) > _FILE_LIMIT:
            raise DataError(f"{MEMORY}: more than {_FILE_LIMIT:,} bytes; make it smaller")
        return cls._hashed(None, bytes(data))

    @classmethod
    def _hashed(cls, path: str | None, data: bytes) -> Self:
        return cls(path, hashlib.blake2b(data, digest_size=20).hexdigest(), data)

    def released(self) -> PhotoFile:
        return self if self.path is None else replace(self, data=None)

    def content(self) -> bytes:
        """The bytes, read again if they were released."""
        if self.data is not None:
            return self.data
        assert self.path is not None
        again = PhotoFile.read(self.path)
        if again.digest != self.digest or again.data is None:
            raise DataError(f"{self.path}: has changed since it was grounded")
        return again.data

    def __str__(self) -> str:
        return MEMORY if self.path is None else self.path


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence the decoder's warnings on odd files: what it cannot read, it raises. One thread, around all others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def image_size(photo: str | Path | PhotoFile) -> tuple[int, int]:
    """Width and height as displayed, EXIF orientation applied; pixels are decoded only where EXIF may follow them."""
    with opened(photo) as image:
        return displayed_size(image)


def is_animated(photo: str | Path | PhotoFile) -> bool:
    """Whether the file has more frames than the one that is used; the previews in a phone's photo do not count."""
    with without_warnings(), opened(photo) as image:
        return bool(getattr(image, "is_animated", False)) and image.format != "MPO"


def check_image(path: Path) -> tuple[int, int]:
    """Width and height as displayed, after decoding every pixel: a cut or damaged photo is an error."""
    with opened(path) as image:
        image.load()
        return displayed_size(image)


def encode_png(image: Image.Image) -> bytes:
    """The image as a PNG file."""
    png = BytesIO()
    image.save(png, "PNG", compress_level=_PNG_COMPRESSION)
    return png.getvalue()


def orientation(image: Image.Image) -> int:
    """How the image has to be turned to be displayed, from 1 (not at all) to 8, as EXIF numbers it."""
    if image.format == "TIFF":  # the decoder turns it
        return 1
    found = image.getexif().get(ORIENTATION, 1)
    return found if found in range(1, 9) else 1


def displayed_size(image: Image.Image) -> tuple[int, int]:
    """Width and height once the image is turned."""
    width, height = image.size
    return (height, width) if orientation(image) >= 5 else (width, height)


@contextmanager
def opened(photo: str | Path | PhotoFile) -> Iterator[Image.Image]:
    """Open an image; whatever the decoder makes of a damaged or hostile file becomes one line."""
    content = photo.content() if isinstance(photo, PhotoFile) else b""
    with decoding(photo), _open(BytesIO(content) if isinstance(photo, PhotoFile) else photo) as image:
        check_pixel_count(image)
        check_memory(image, len(content))
        yield image


def _open(file: str | Path | BytesIO) -> Image.Image:
    try:
        return Image.open(file, formats=IMAGE_FORMATS)
    except UnidentifiedImageError:
        container = _container(file)
        if container is None:
            raise
        return Image.open(file, formats=[container])


def _container(file: str | Path | BytesIO) -> str | None:
    """Whether it is AVIF or HEIF; one that cannot be decoded here is refused."""
    if isinstance(file, BytesIO):
        start = file.getvalue()[:64]
    elif not Path(file).is_file():  # a pipe, which can be read once
        return None
    else:
        with Path(file).open("rb") as stream:
            start = stream.read(64)
    brands = [start[place : place + 4] for place in range(8, 64, 4)] if start[4:8] == b"ftyp" else []
    found = next((name for name, known in _CONTAINERS.items() if set(known).intersection(brands)), None)
    if found is not None and not _can_decode(found):
        raise DataError(_NO_DECODER[found])
    return found


def _can_decode(container: str) -> bool:
    if container == "AVIF":
        return features.check("avif") is True
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def check_pixel_count(image: Image.Image) -> None:
    """Refuse an image without pixels, and one with so many that it may be made to fill the memory."""
    if image.width * image.height > PIXEL_LIMIT:
        raise Image.DecompressionBombError
    if not image.width * image.height:
        raise ValueError(f"{image.width} × {image.height} pixels")
    if max(image.size) > SIDE_LIMIT:
        raise DataError(f"{image.width:,} × {image.height:,} pixels, more than {SIDE_LIMIT:,} on a side; cut it")


def check_memory(image: Image.Image, file_bytes: int = 0) -> None:
    """Refuse a file that takes more memory to decode than a photo may."""
    needed = image.width * image.height * decoder_bytes(image) + file_bytes
    if needed > MEMORY_LIMIT:
        raise DataError(
            f"{image.width:,} × {image.height:,} pixels of {image.format}, which take {needed / 1e6:,.0f} MB to "
            f"decode, more than {MEMORY_LIMIT / 1e6:,.0f}; make it smaller, or save it as JPEG"
        )


def decoder_bytes(image: Image.Image) -> float:
    """How many bytes the decoder of a file takes for each pixel.

    That of a JPEG makes it smaller at once, but for a progressive one keeps two bytes for each pixel and channel.
    """
    if image.format in ("JPEG", "MPO"):
        return 2.2 * len(image.getbands()) if "progressive" in image.info else 0.4
    return _DECODER_BYTES.get(image.format or "", _MODE_BYTES.get(image.mode, 4))


@contextmanager
def decoding(name: str | Path | PhotoFile) -> Iterator[None]:
    """Say what goes wrong with the image of this name in one line."""
    try:
        yield
    except DataError as error:
        raise DataError(str(error) if str(name) in str(error) else f"{name}: {error}") from None
    except Image.DecompressionBombError:
        raise DataError(f"{name}: more than {PIXEL_LIMIT:,} pixels; make it smaller") from None
    except FileNotFoundError:
        raise DataError(f"{name}: missing") from None
    except UnidentifiedImageError:
        raise DataError(f"{name}: not an image of a known format ({', '.join(IMAGE_FORMATS)})") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {reason(error)}") from None
    except MemoryError:
        raise DataError(f"{name}: does not fit into the memory that is left; make it smaller") from None
    except Exception as error:  # decoders raise many kinds on damaged files
        raise DataError(f"{name}: broken image: {one_line(error)}") from None
