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

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError
from phrasechain.core.hdf5 import Hdf5Array, Hdf5File, open_hdf5
from phrasechain.core.schema import Regions
from phrasechain.store.importers.entry import Entry, EntrySource
from phrasechain.store.importers.plain_pickle import read_plain_pickle
from phrasechain.store.writer import MAX_REGIONS

MAX_IMAGES = 2_000_000
MAX_VALUES = 1 << 24  # of one image
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
            kinds = f"{type(image).__name__} → {type(row).__name__}"  # not themselves: they may be nested without end
            raise DataError(f"{path}: {kinds} is not an image id and a row")
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
    position = 0
    for file, pairs in zip(files, rows, strict=True):
        with open_hdf5(file, "reading BAN's features") as hdf5:
            arrays = {name: _dataset(hdf5, name, width, file) for name, width in _WIDTHS.items()}
            bounds = _bounds(hdf5, file)
            _check_shapes(arrays, bounds, file)
            for image, row in pairs:
                position += 1
                yield Entry(f"{file}[{row}]", image, partial(_load, image, row, arrays, bounds), position)


def _dataset(hdf5: Hdf5File, name: str, width: int | None, file: Path) -> Hdf5Array:
    data = hdf5.find(name)
    if data is None:
        raise DataError(f"{file}: no dataset {name!r}; BAN files have {', '.join(_WIDTHS)} and pos_boxes")
    if width is not None and (len(data.shape) < 2 or data.shape[-1] != width):
        raise DataError(f"{file}: {name!r} has shape {data.shape}, its last dimension must be {width}")
    return data


def _bounds(hdf5: Hdf5File, file: Path) -> NDArray[np.integer] | None:
    if hdf5.find("pos_boxes") is None:
        return None
    data = _dataset(hdf5, "pos_boxes", 2, file)
    if len(data.shape) != 2 or len(data) > MAX_IMAGES or data.dtype.kind not in "iu":
        raise DataError(f"{file}: 'pos_boxes' has shape {data.shape} of {data.dtype}, not (images, 2) of whole numbers")
    return data.read(most=2 * MAX_IMAGES)


def _check_shapes(arrays: dict[str, Hdf5Array], bounds: NDArray[np.integer] | None, file: Path) -> None:
    shapes = {name: data.shape for name, data in arrays.items()}
    sides = 2 if bounds is not None else 3
    heads = {shape[:-1] for shape in shapes.values()}
    if len(heads) != 1 or any(len(shape) != sides for shape in shapes.values()):
        hint = "" if bounds is not None else " (without pos_boxes: images, regions, values)"
        raise DataError(f"{file}: the shapes {shapes} do not fit each other{hint}")


def _load(image: str, row: int, arrays: dict[str, Hdf5Array], bounds: NDArray[np.integer] | None) -> Regions:
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
    features, boxes, spatial = (arrays[name].read(where, most=MAX_VALUES) for name in _WIDTHS)
    width, height = infer_image_size(boxes, spatial)
    return Regions(image, width, height, boxes, features)
