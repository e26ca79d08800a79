"""BAN's HDF5: the regions of all images in a few large arrays, and a pickle from image id to row.

``image_features`` (R, D), ``image_bb`` (R, 4), ``spatial_features`` (R, 6) and ``pos_boxes`` (N, 2), the region range
[start, end) of each image; or, with K regions in every image, (N, K, D), (N, K, 4) and (N, K, 6) without
``pos_boxes``. Image sizes are not stored: ``spatial_features`` are x0/W, y0/H, x1/W, y1/H, w/W, h/H, so
W = x1 / (x1/W), and H likewise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions
from phrasechain.store.importers.entry import Entry, EntrySource
from phrasechain.store.importers.plain_pickle import read_plain_pickle
from phrasechain.store.writer import MAX_REGIONS

MAX_IMAGES = 10_000_000
MAX_VALUES = 1 << 26  # of one image, and of an HDF5 chunk
_WIDTHS = {"image_features": None, "image_bb": 4, "spatial_features": 6}


def open_ban(files: Sequence[Path], ids: Sequence[Path] = ()) -> EntrySource:
    """The images of HDF5 files, each with its pickle of ids: from ``ids`` in order, or NAME_imgid2idx.pkl beside it."""
    if ids and len(ids) != len(files):
        raise DataError(f"{len(files)} HDF5 files but {len(ids)} pickles of ids: give one --ids for each file")
    pickles = ids or [file.with_name(f"{file.stem}_imgid2idx.pkl") for file in files]
    for file, pickle in zip(files, pickles, strict=True):
        if not pickle.is_file():
            raise DataError(f"{file}: no pickle of its image ids at {pickle}; name it with --ids")
    rows = [read_ids(pickle) for pickle in pickles]
    return EntrySource(_entries(files, rows), sum(len(each) for each in rows))


def read_ids(path: Path) -> list[tuple[str, int]]:
    """Image ids and their rows, in the order of the rows."""
    ids = read_plain_pickle(path)
    if not isinstance(ids, dict):
        raise DataError(f"{path}: a {type(ids).__name__}, not a dict from image id to row")
    for image, row in ids.items():
        if type(image) not in (int, str) or type(row) is not int:
            raise DataError(f"{path}: {str(image)[:40]!r} → {str(row)[:40]!r} is not an image id and a row")
    return sorted(((str(image), row) for image, row in ids.items()), key=lambda pair: pair[1])


def infer_image_size(boxes: NDArray[np.floating], spatial: NDArray[np.floating]) -> tuple[int, int]:
    """Width and height of an image from its boxes in pixels and the same boxes normalised to [0, 1].

    >>> boxes = np.array([[0, 0, 100, 50], [10, 20, 499, 332]], np.float32)
    >>> spatial = boxes / np.array([500, 333, 500, 333], np.float32)
    >>> infer_image_size(boxes, spatial)
    (500, 333)
    """
    sides = []
    for axis, name in ((2, "width"), (3, "height")):
        widest = int(boxes[:, axis].argmax())
        normalised = float(spatial[widest, axis])
        estimate = float(boxes[widest, axis]) / normalised if normalised > 0 else 0.0
        side = round(estimate) if np.isfinite(estimate) else 0
        ends = [axis - 2, axis]
        with np.errstate(all="ignore"):  # values that are not finite do not agree
            is_consistent = np.allclose(spatial[:, ends] * side, boxes[:, ends], rtol=1e-3, atol=0.05)
        if side < 1 or not is_consistent:
            raise DataError(f"spatial_features and image_bb do not agree on the {name} of the image")
        sides.append(side)
    return sides[0], sides[1]


def _entries(files: Sequence[Path], rows: Sequence[Sequence[tuple[str, int]]]) -> Iterator[Entry]:
    try:
        import h5py
    except ImportError as error:
        raise DataError("reading HDF5 needs h5py: pip install 'phrasechain[train]'") from error
    position = 0
    for file, pairs in zip(files, rows, strict=True):
        try:
            hdf5 = h5py.File(file, "r")
        except OSError as error:
            raise DataError(f"{file}: cannot read it as HDF5: {str(error)[:100]}") from error
        with hdf5:
            arrays = {name: _dataset(hdf5, name, width, file) for name, width in _WIDTHS.items()}
            bounds = _bounds(hdf5, file) if "pos_boxes" in hdf5 else None
            _check_shapes(arrays, bounds, file)
            for image, row in pairs:
                position += 1
                yield Entry(f"{file}[{row}]", image, partial(_load, image, row, arrays, bounds), position)


def _dataset(hdf5: Any, name: str, width: int | None, file: Path) -> Any:
    """A numeric dataset stored in this file (no external links), in chunks of bounded size."""
    import h5py

    if name not in hdf5 or not isinstance(hdf5.get(name, getlink=True), h5py.HardLink):
        raise DataError(f"{file}: no dataset {name!r}; BAN files have {', '.join(_WIDTHS)} and pos_boxes")
    data = hdf5[name]
    if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual or data.dtype.kind not in "fiu":
        raise DataError(f"{file}: {name!r} is not an array of numbers within this file")
    if int(np.prod(data.chunks or (1,), dtype=object)) > MAX_VALUES:
        raise DataError(f"{file}: {name!r} is stored in chunks of {data.chunks}, too large to read")
    if width is not None and (data.ndim < 2 or data.shape[-1] != width):
        raise DataError(f"{file}: {name!r} has shape {data.shape}, its last dimension must be {width}")
    return data


def _bounds(hdf5: Any, file: Path) -> NDArray[np.integer]:
    data = _dataset(hdf5, "pos_boxes", 2, file)
    if data.ndim != 2 or len(data) > MAX_IMAGES or data.dtype.kind not in "iu":
        raise DataError(f"{file}: 'pos_boxes' has shape {data.shape} of {data.dtype}, not (images, 2) of whole numbers")
    return np.asarray(data[:])


def _check_shapes(arrays: dict[str, Any], bounds: NDArray[np.integer] | None, file: Path) -> None:
    shapes = {name: data.shape for name, data in arrays.items()}
    sides = 2 if bounds is not None else 3
    heads = {shape[:-1] for shape in shapes.values()}
    if len(heads) != 1 or any(len(shape) != sides for shape in shapes.values()):
        hint = "" if bounds is not None else " (without pos_boxes: images, regions, values)"
        raise DataError(f"{file}: the shapes {shapes} do not fit each other{hint}")


def _load(image: str, row: int, arrays: dict[str, Any], bounds: NDArray[np.integer] | None) -> Regions:
    rows = len(arrays["image_bb"]) if bounds is None else len(bounds)
    if not 0 <= row < rows:
        raise DataError(f"row {row} does not exist, there are {rows}")
    if bounds is None:
        where: int | slice = row
        count = arrays["image_bb"].shape[1]
    else:
        start, end = (int(bound) for bound in bounds[row])
        if not 0 <= start <= end <= len(arrays["image_bb"]):
            raise DataError(f"pos_boxes says {start} to {end}, there are {len(arrays['image_bb'])} regions")
        where, count = slice(start, end), end - start
    if not 1 <= count <= MAX_REGIONS:
        raise DataError(f"the image has {count} regions; it must have 1 to {MAX_REGIONS}")
    if count * arrays["image_features"].shape[-1] > MAX_VALUES:
        raise DataError(f"the image has more than {MAX_VALUES} feature values")
    try:
        features, boxes, spatial = (arrays[name][where] for name in _WIDTHS)
    except OSError as error:
        raise DataError(f"cannot read the row: {str(error)[:100]}") from error
    width, height = infer_image_size(boxes, spatial)
    return Regions(image, width, height, boxes, features)
