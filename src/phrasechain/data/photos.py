"""Which photos a user means: files, folders, datasets; and which of them are this machine's share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from zlib import crc32

from phrasechain.core.errors import DataError
from phrasechain.core.files import reason
from phrasechain.data.dataset import open_dataset
from phrasechain.data.flickr30k import IMAGE_FOLDERS, is_official

#: What a file in a folder must end with to be taken for a photo; a file that is named itself may end as it likes.
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


@dataclass(frozen=True, slots=True)
class ShardNumber:
    """One of ``count`` parts of a list of images, numbered from 1."""

    number: int
    count: int

    def holds(self, image: str) -> bool:
        """Whether the image is in this part: by its id alone, so that no part depends on what else is in the list."""
        return crc32(image.encode("utf-8", "surrogateescape")) % self.count == self.number - 1


def parse_shard(text: str) -> ShardNumber:
    """
    >>> parse_shard("2/8")
    ShardNumber(number=2, count=8)
    """
    match = _SHARD.fullmatch(text)
    part = ShardNumber(int(match[1]), int(match[2])) if match else ShardNumber(0, 0)
    if not 1 <= part.number <= part.count:
        raise DataError(f"a shard is i/n with i from 1 to n, such as 1/4, not {text!r}")
    return part


def find_photos(
    sources: Sequence[Path], limit: int | None = None, part: ShardNumber | None = None
) -> tuple[dict[str, Path], list[str]]:
    """The photos that are meant, by image id: a file, those in and below a folder, those of a dataset.

    The id is the name without suffix, or what a ``.jsonl`` dataset says. Folders are read in the order of their names.
    The first ``limit`` photos are taken, and of those the ``part``. Second comes what is wrong with lines of a
    ``.jsonl`` dataset that cannot be used, whichever photos they mean.
    """
    found: dict[str, Path] = {}
    problems: list[str] = []
    for source in sources:
        photos, wrong = _photos_of(source)
        if not photos:
            raise DataError(
                wrong[0] if wrong else f"{source}: no photos there (files that end with {', '.join(SUFFIXES)})"
            )
        problems += wrong
        for image, path in photos:
            other = found.setdefault(image, path)
            if other != path and other.resolve() != path.resolve():
                raise DataError(
                    f"{path}: its image id {image!r} is that of {other} too; rename one, or make two stores"
                )
    mine = {image: path for image, path in islice(found.items(), limit) if part is None or part.holds(image)}
    return mine, problems


def _photos_of(source: Path) -> tuple[list[tuple[str, Path]], list[str]]:
    if source.is_dir():
        folders = (source / name for name in IMAGE_FOLDERS if (source / name).is_dir()) if is_official(source) else ()
        return [(path.stem, path) for path in photos_below(next(iter(folders), source))], []
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    if source.suffix == ".jsonl":
        dataset = open_dataset(source)
        examples = dataset.examples(on_error="skip")
        photos = [(example.image, example.path or source.parent / example.image) for example in examples]
        return photos, [problem.message for problem in dataset.problems]
    return [(source.stem, source)], []


def photos_below(folder: Path) -> Iterator[Path]:
    """The photos in a folder and, after them, in those below it; what is hidden stays so."""
    for place, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):  # archives of macOS hold a ._NAME for each
                yield Path(place, name)


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be listed: {reason(error)}")
