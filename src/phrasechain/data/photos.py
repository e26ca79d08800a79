"""The photos that a command is given: files, folders or datasets, and one shard of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from zlib import crc32

from phrasechain.core.errors import DataError
from phrasechain.core.files import files_below
from phrasechain.data.dataset import open_dataset
from phrasechain.data.flickr30k import IMAGE_FOLDERS, is_official

#: Suffixes of photos in a folder; a file given by name may have any suffix.
SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    *(".avif", ".heic", ".heif"),  # where they can be decoded; elsewhere each is told
)
_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


@dataclass(frozen=True, slots=True)
class ShardNumber:
    """Shard ``number`` of ``count`` of a list of images, numbered from 1."""

    number: int
    count: int

    def holds(self, image: str) -> bool:
        """Whether the image is in this shard: by a hash of its id, independent of the other images."""
        return crc32(image.encode("utf-8", "surrogateescape")) % self.count == self.number - 1


def parse_shard(text: str) -> ShardNumber:
    """
    >>> parse_shard("2/8")
    ShardNumber(number=2, count=8)
    """
    match = _SHARD.fullmatch(text)
    shard = ShardNumber(int(match[1]), int(match[2])) if match else ShardNumber(0, 0)
    if not 1 <= shard.number <= shard.count:
        raise DataError(f"a shard is i/n with i from 1 to n, such as 1/4, not {text!r}")
    return shard


def find_photos(
    sources: Sequence[Path], limit: int | None = None, part: ShardNumber | None = None
) -> tuple[dict[str, Path], list[str]]:
    """The photos by image id: of files, of folders with their subfolders, of datasets; and the problems found.

    The id is the file name without suffix, or the id in a ``.jsonl`` dataset. Folders are read in sorted order. Of the
    first ``limit`` photos those of the shard ``part`` are returned. Problems are the invalid lines of ``.jsonl``
    datasets, all of them whatever the limit and the shard.
    """
    by_id: dict[str, Path] = {}
    problems: list[str] = []
    for source in sources:
        photos, errors = _photos_of(source)
        if not photos:
            raise DataError(
                errors[0] if errors else f"{source}: no photos there (files ending in {', '.join(SUFFIXES)})"
            )
        problems += errors
        for image, path in photos:
            other = by_id.setdefault(image, path)
            if other != path and other.resolve() != path.resolve():
                raise DataError(
                    f"{path}: its image id {image!r} is also that of {other}; rename one, or make two stores"
                )
    selected = {image: path for image, path in islice(by_id.items(), limit) if part is None or part.holds(image)}
    return selected, problems


def _photos_of(source: Path) -> tuple[list[tuple[str, Path]], list[str]]:
    if source.is_dir():
        folders = (source / name for name in IMAGE_FOLDERS if (source / name).is_dir()) if is_official(source) else ()
        return [(path.stem, path) for path in files_below(next(iter(folders), source), SUFFIXES)], []
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    if source.suffix == ".jsonl":
        dataset = open_dataset(source)
        examples = dataset.examples(on_error="skip")
        photos = [(example.image, example.path or source.parent / example.image) for example in examples]
        return photos, [problem.message for problem in dataset.problems]
    return [(source.stem, source)], []
