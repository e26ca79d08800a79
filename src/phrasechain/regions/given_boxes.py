"""External proposals: boxes read from a JSON file; docs/features.md describes the format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError, located
from phrasechain.core.files import read_bounded
from phrasechain.core.json_lines import parse_boxes, parse_json_at, read_lines
from phrasechain.core.schema import NAME_LIMIT, is_name
from phrasechain.store.writer import MAX_REGIONS

LARGEST = 1 << 28  # of a JSON object; JSON lines are streamed
MAX_IMAGES = 10_000_000
_KEYS = {"image", "boxes"}


def read_given_boxes(path: Path) -> dict[str, NDArray[np.float32]]:
    """The boxes (K, 4) of each image, keyed by image id or file name, as the JSON file has it."""
    boxes: dict[str, NDArray[np.float32]] = {}
    for where, image, values in _from_lines(path) if path.suffix == ".jsonl" else _from_object(path):
        if not is_name(image):
            raise DataError(f"{where}: an image name must be a printable text of 1 to {NAME_LIMIT} characters")
        if image in boxes:
            raise DataError(f"{where}: a second list of boxes for the image {image!r}; keep one")
        if len(boxes) == MAX_IMAGES:
            raise DataError(f"{where}: more than {MAX_IMAGES:,} images; split the file")
        boxes[image] = _checked(values, f"{where}: image {image!r}")
    if not boxes:
        raise DataError(f"{path}: contains no boxes")
    return boxes


def _from_object(path: Path) -> Iterator[tuple[str, Any, Any]]:
    data = read_bounded(path, LARGEST).removeprefix(b"\xef\xbb\xbf")
    record = parse_json_at(str(path), data, unique_keys=True)
    if not isinstance(record, dict):
        raise DataError(f'{path}: not a JSON object such as {{"1000.jpg": [[x0, y0, x1, y1], …], …}}')
    for image, values in record.items():
        yield str(path), image, values


def _from_lines(path: Path) -> Iterator[tuple[str, Any, Any]]:
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        record = parse_json_at(where, line, unique_keys=True)
        if not isinstance(record, dict) or record.keys() != _KEYS:
            raise DataError(f'{where}: not {{"image": "1000.jpg", "boxes": [[x0, y0, x1, y1], …]}}')
        yield where, record["image"], record["boxes"]


def _checked(values: Any, where: str) -> NDArray[np.float32]:
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_REGIONS:
        raise DataError(f"{where}: its value is not a list of 1 to {MAX_REGIONS:,} boxes")
    with located(where):
        return parse_boxes(values).astype(np.float32)
