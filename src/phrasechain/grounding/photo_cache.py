"""The regions of photos that were looked at lately: the slow part of a grounding, done once for each photo.

A photo is known by its content. Of a file that is the hash of its bytes, which costs little beside the network and,
unlike its time and size, cannot miss a change; of an image in memory it is what the network gets to see of it. So no
answer is ever about an older photo.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from phrasechain.core.errors import DataError
from phrasechain.core.files import reason
from phrasechain.core.schema import Regions
from phrasechain.regions.extractor import RegionExtractor
from phrasechain.regions.pixels import ImageSource, Photo, read_photo

PHOTOS = 256  # whose regions are kept: 60 kB each
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(//|image/)")


@dataclass(frozen=True, slots=True)
class PhotoCache:
    """Looks at photos with an extractor, and keeps the regions of the last ``size``; many threads may share it.

    Two that ask for the same new photo at once both look at it.
    """

    extractor: RegionExtractor
    size: int
    _kept: OrderedDict[str, Regions]
    _lock: Lock

    @staticmethod
    def of(extractor: RegionExtractor, size: int = PHOTOS) -> PhotoCache:
        if size < 0:
            raise DataError(f"the photos to keep must be 0 or more, not {size}")
        return PhotoCache(extractor, size, OrderedDict(), Lock())

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in this process or another, begins with no photos."""
        return PhotoCache.of, (self.extractor, self.size)

    def regions(self, source: ImageSource) -> Regions:
        """The regions of a photo; their ``image`` is a name for its content."""
        if isinstance(source, str | Path):
            return self._of_file(source)
        photo = read_photo(source, self.extractor.size)
        key = _key_of_pixels(photo)
        return self._get(key) or self._look(key, photo)

    def _of_file(self, path: str | Path) -> Regions:
        if isinstance(path, str) and _ADDRESS.match(path):
            raise DataError(f"{path[:200]}: an address, not a file; download the picture and give its path")
        key = _key_of_file(path)
        if kept := self._get(key):
            return kept
        photo = read_photo(path, self.extractor.size)
        while key != (now := _key_of_file(path)):  # it was written to meanwhile
            key, photo = now, read_photo(path, self.extractor.size)
        return self._look(key, photo)

    def _look(self, key: str, photo: Photo) -> Regions:
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


def _key_of_file(path: str | Path) -> str:
    """A hash of the file's bytes. What is no plain file, such as a pipe, cannot be read twice."""
    try:
        if not Path(path).exists():
            raise DataError(f"{path}: missing")
        if not Path(path).is_file():
            raise DataError(f"{path}: not a file; give the path of a picture")
        with Path(path).open("rb") as file:
            return f"file {hashlib.file_digest(file, 'blake2b').hexdigest()[:40]}"
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None


def _key_of_pixels(photo: Photo) -> str:
    digest = hashlib.blake2b(f"{photo.width} {photo.height} ".encode())
    digest.update(photo.pixels.data)
    return f"pixels {digest.hexdigest()[:40]}"
