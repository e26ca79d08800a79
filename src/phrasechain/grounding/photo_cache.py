"""A cache of the regions of recent photos: finding them is the slow part of a grounding.

A photo is known by its content: a file by the hash of its bytes, which unlike its time and size cannot miss a change;
an image in memory by the pixels that the network sees. So no answer is ever about an older photo.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO
from weakref import WeakSet

from phrasechain.core.errors import DataError
from phrasechain.core.images import PhotoFile
from phrasechain.core.schema import Regions
from phrasechain.regions.extractor import RegionExtractor
from phrasechain.regions.pixels import ImageSource, Photo, read_photo

#: What a grounder takes for a photo: those, or an encoded picture in memory.
GivenPhoto = ImageSource | bytes | bytearray | memoryview | BinaryIO

PHOTOS = 256  # whose regions are kept: 60 kB each
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(//|image/)")


class PhotoCache:
    """Extracts the regions of photos and keeps those of the last ``size`` (LRU); threads may share it.

    Two threads that ask for the same new photo at once both extract it.
    """

    def __init__(self, extractor: RegionExtractor, size: int = PHOTOS) -> None:
        if size < 0:
            raise DataError(f"the photos to keep must be 0 or more, not {size}")
        self.extractor, self.size = extractor, size
        self._kept: OrderedDict[str, Regions] = OrderedDict()
        self._lock = Lock()
        _CACHES.add(self)

    def unlock(self) -> None:
        """Take a new lock: in a forked child, a thread that holds the old one is not there to release it."""
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in this process or another, begins with no photos."""
        return PhotoCache, (self.extractor, self.size)

    def regions(self, photo: ImageSource) -> Regions:
        """The regions of a photo; their ``image`` is a name for its content."""
        if isinstance(photo, PhotoFile):
            key = f"file {photo.digest}"
            return self._get(key) or self._extract(key, read_photo(photo, self.extractor.size))
        pixels = read_photo(photo, self.extractor.size)
        key = _key_of_pixels(pixels)
        return self._get(key) or self._extract(key, pixels)

    def _extract(self, key: str, photo: Photo) -> Regions:
        regions = self.extractor.regions(key, photo)
        with self._lock:
            self._kept[key] = regions
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)
        return regions

    def _get(self, key: str) -> Regions | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)


_CACHES: WeakSet[PhotoCache] = WeakSet()


def _unlock_all() -> None:
    for each in list(_CACHES):
        each.unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_all)


@dataclass(frozen=True, slots=True)
class EncodedPhoto:
    """A photo whose regions are found: a grounder takes it in place of the photo, and does not look again.

    It is good for the grounder that made it. Without its source a grounding of it cannot be drawn.
    """

    regions: Regions
    path: str | None = None
    source: ImageSource | None = None

    def without_photo(self) -> EncodedPhoto:
        """The same without the photo itself: 60 kB."""
        return EncodedPhoto(self.regions, self.path)


def load_photo(source: GivenPhoto) -> ImageSource:
    """Read and hash the file of a path or in memory; pixels stay as they are."""
    if isinstance(source, str) and _URL.match(source):
        raise DataError(f"{source[:200]}: an address, not a file; download the picture and give its path")
    if isinstance(source, str | Path):
        return PhotoFile.read(source)
    if isinstance(source, bytes | bytearray | memoryview) or hasattr(source, "seekable"):
        return PhotoFile.from_memory(source)  # type: ignore[arg-type]
    return source


def _key_of_pixels(photo: Photo) -> str:
    digest = hashlib.blake2b(f"{photo.width} {photo.height} ".encode())
    digest.update(photo.pixels.data)
    return f"pixels {digest.hexdigest()[:40]}"
