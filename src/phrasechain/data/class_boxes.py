"""Photos with boxes of classes, such as COCO's, as JSON lines, one photo each.

    {"image": "photos/1.jpg", "width": 640, "height": 480, "boxes": [["dog", 10, 20, 110.5, 95]], "captions": ["A dog"]}

``boxes`` are [class, x0, y0, x1, y1] in pixels. ``captions``, and ``width`` with ``height``, may be absent. A class
that is marked in a photo is marked wherever it is there; all else is unknown. ``source``, a name, may say where photos
come from: those of one source were searched for all classes that any of them has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from phrasechain.core.errors import DataError, unknown_name
from phrasechain.core.images import image_size, without_warnings
from phrasechain.core.json_lines import are_numbers, parse_boxes, parse_json, read_lines
from phrasechain.core.schema import Box, is_name

KEYS = ("image", "width", "height", "source", "boxes", "captions")


@dataclass(frozen=True, slots=True)
class ClassBox:
    """A thing of a class."""

    name: str
    box: Box


@dataclass(frozen=True, slots=True)
class ClassPhoto:
    """A photo with boxes of classes, and the captions about it, if there are any."""

    image: str  # the name of its file, without folder and suffix
    path: Path
    width: int
    height: int
    boxes: tuple[ClassBox, ...]
    captions: tuple[str, ...]
    source: str = ""  # photos of one source were searched for the same classes


def read_class_boxes(path: Path) -> list[ClassPhoto]:
    """All photos of a file; what cannot be used is a ``DataError`` that names its line."""
    photos: dict[str, ClassPhoto] = {}
    for number, line in read_lines(path):
        try:
            photo = _photo(parse_json(line), path.parent)
            if photos.setdefault(photo.image, photo) is not photo:
                raise DataError(f"a second photo named {photo.image!r}; rename one")
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    return list(photos.values())


def learnable_photos(path: Path) -> list[ClassPhoto]:
    """The photos of a file that may be learnt from."""
    return [photo for photo in read_class_boxes(path) if not is_kept_apart(photo.image)]


def single_things(photo: ClassPhoto, least_share: float) -> list[ClassBox]:
    """What is alone of its class in a photo and covers at least this share of it."""
    counts, least = Counter(each.name for each in photo.boxes), least_share * photo.width * photo.height
    return [each for each in photo.boxes if counts[each.name] == 1 and _area(each.box) >= least]


def _area(box: Box) -> float:
    x0, y0, x1, y1 = box
    return (x1 - x0) * (y1 - y0)


def is_kept_apart(image: str) -> bool:
    """Whether nothing is learnt from a photo, one in sixteen: by a hash of its name, which never changes.

    >>> is_kept_apart("29"), is_kept_apart("30")
    (True, False)
    """
    return blake2b(image.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest().startswith("0")


def _photo(record: Any, folder: Path) -> ClassPhoto:
    if not isinstance(record, dict):
        raise DataError(f"the line is not a JSON object with {', '.join(KEYS)}")
    for key in record:
        if key not in KEYS:
            raise DataError(f"the line: {unknown_name('key', key[:40], KEYS)}")
    name = record.get("image")
    if not isinstance(name, str) or not is_name(name) or not Path(name).stem:
        raise DataError('"image" is not the path of a photo')
    path = folder / name
    width, height = _size(record, path)
    captions = record.get("captions", [])
    if not isinstance(captions, list) or not all(isinstance(text, str) for text in captions):
        raise DataError('"captions" is not a list of texts')
    source = record.get("source", "")
    if source and not is_name(source):
        raise DataError('"source" is not a printable text')
    return ClassPhoto(Path(name).stem, path, width, height, _boxes(record.get("boxes")), tuple(captions), source)


def _size(record: Mapping[str, Any], path: Path) -> tuple[int, int]:
    if "width" not in record and "height" not in record:
        with without_warnings():
            return image_size(path)
    sides = record.get("width"), record.get("height")
    if not all(type(side) is int and side > 0 for side in sides):
        raise DataError('"width" and "height" are not whole numbers of 1 or more')
    return sides  # type: ignore[return-value]


def _boxes(rows: Any) -> tuple[ClassBox, ...]:
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 5 for row in rows):
        raise DataError('"boxes" is not a list of [class, x0, y0, x1, y1]')
    if not all(is_name(name) for name, *_ in rows):
        raise DataError("a class is not a printable text")
    if not are_numbers(side for _, *sides in rows for side in sides):
        raise DataError('a "box" is not [class, x0, y0, x1, y1], a text and four numbers')
    boxes = parse_boxes([sides for _, *sides in rows])
    return tuple(
        ClassBox(row[0], (x0, y0, x1, y1))
        for row, (x0, y0, x1, y1) in zip(rows, boxes.tolist(), strict=True)
        if x0 < x1 and y0 < y1
    )
