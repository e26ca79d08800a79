"""DDPN's npz, one file per image: x (D, K), bbox (K, 4), num_bbox, image_w, image_h."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from phrasechain.core.errors import DataError, library_errors
from phrasechain.core.files import files_below
from phrasechain.core.schema import Regions
from phrasechain.store.importers.entry import Entry, EntrySource

MAX_BYTES = 1 << 26  # of a file, and of what its arrays unpack to
_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_NAMES = ("x", "bbox", "num_bbox", "image_w", "image_h")


def open_ddpn(paths: Sequence[Path]) -> EntrySource:
    """The images of npz files, or of all npz files in and below a folder."""
    files = [file for path in paths for file in (sorted(files_below(path, (".npz",))) if path.is_dir() else [path])]
    return EntrySource(_entries(files), len(files))


def image_id(file: Path) -> str:
    """The id of an image from the name of its file.

    >>> image_id(Path("features/1000092795.jpg.npz"))
    '1000092795'
    """
    name = file.name.removesuffix(".npz")
    suffix = next((suffix for suffix in _IMAGE_SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


def _entries(files: Sequence[Path]) -> Iterator[Entry]:
    for position, file in enumerate(files, start=1):
        yield Entry(str(file), image_id(file), partial(_load, file), position)


def _load(file: Path) -> Regions:
    features, boxes, count, width, height = _read_arrays(file)
    regions = _number(count, "num_bbox")
    if boxes.shape != (regions, 4):
        raise DataError(f"bbox has shape {boxes.shape}, not (num_bbox, 4) = ({regions}, 4)")
    if features.ndim != 2 or regions not in features.shape:
        raise DataError(f"x has shape {features.shape}, not (D, num_bbox) with num_bbox = {regions}")
    if features.shape[1] == regions:
        features = features.T  # (K, D)
    return Regions(image_id(file), _number(width, "image_w"), _number(height, "image_h"), boxes, features)


def _read_arrays(file: Path) -> list[NDArray[Any]]:
    """The door to npz files: zipfile and numpy's parser of headers raise many kinds on damaged ones."""
    with library_errors("not an npz file"):
        if file.stat().st_size > MAX_BYTES:
            raise DataError(f"a file of more than {MAX_BYTES:,} bytes")
        with zipfile.ZipFile(file) as archive:
            members = [_member(archive, name) for name in _NAMES]
            if sum(member.file_size for member in members) > MAX_BYTES:
                raise DataError(f"its arrays unpack to more than {MAX_BYTES:,} bytes")
            return [_array(archive, member, name) for member, name in zip(members, _NAMES, strict=True)]


def _member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(f"{name}.npy")
    except KeyError:
        raise DataError(f"no array {name!r}; a DDPN file has x, bbox, num_bbox, image_w and image_h") from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    """A numeric array; its header is checked against the member's size before anything is allocated. No pickle."""
    with archive.open(member) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of headers that Python 2 wrote, Python of those that are no code
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            raise DataError(f"{name!r} is npy version {version}, not 1.0 or 2.0")
        shape, is_fortran, dtype = _HEADERS[version](stream)
        if dtype.kind not in "fiu" or dtype.subdtype is not None:
            raise DataError(f"{name!r} holds {dtype}, not numbers")
        data = stream.read(member.file_size)
    if min(shape, default=0) < 0 or len(data) != math.prod(shape) * dtype.itemsize:
        raise DataError(f"{name!r} has {len(data)} bytes, which do not fit its shape {shape}")
    return np.ndarray(shape, dtype, data, order="F" if is_fortran else "C")


def _number(array: NDArray[Any], name: str) -> int:
    value = float(array.reshape(-1)[0]) if array.size == 1 else math.nan
    if not value.is_integer():
        raise DataError(f"{name} is not one whole number: {str(array)[:40]!r}")
    return int(value)
