"""Writing a region store: resumable, one writer at a time, and safe to kill at any moment."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError
from phrasechain.core.files import LOCK_NAME, disk_errors, lock_folder, write_atomically
from phrasechain.core.schema import NAME_LIMIT, Regions, is_name
from phrasechain.store.reader import (
    HEADER_NAME,
    MANIFEST_NAME,
    FeatureStore,
    ShardRecord,
    Totals,
    encode_header,
    read_manifest,
    shard_name,
)
from phrasechain.store.shard import DTYPES, StoreInfo, encode_shard

SHARD_BYTES = 1 << 26
MAX_REGIONS = 10_000  # of one image
_MAX_SIDE = 2**31 - 1


@dataclass(slots=True)
class _Progress:
    """What is on disk and what is buffered; replaced in one assignment, so an interrupt finds them consistent."""

    written: Totals
    manifest_bytes: int
    buffer: list[Regions] = field(default_factory=list)
    buffer_bytes: int = 0


class StoreWriter:
    """Writes a store, or resumes one that exists.

    >>> import tempfile
    >>> from phrasechain.store.reader import FeatureStore
    >>> folder = Path(tempfile.mkdtemp()) / "store"
    >>> boxes, features = np.array([[0.0, 0.0, 20.0, 10.0]]), np.ones((1, 3), np.float32)
    >>> with StoreWriter(folder, StoreInfo(dimension=3)) as writer:
    ...     writer.add(Regions("1000", 40, 30, boxes, features))
    ...     writer.finish()
    True
    >>> FeatureStore.open(folder)["1000"].boxes
    array([[ 0.,  0., 20., 10.]], dtype=float32)

    Images are buffered in memory until a shard is full (``shard_bytes``); a kill loses those and nothing else. Leaving
    the ``with`` block writes the last shard, also after an exception; only :meth:`finish` marks the store as complete.
    """

    def __init__(self, path: Path | str, info: StoreInfo, shard_bytes: int = SHARD_BYTES) -> None:
        self.path = Path(path)
        self.info = info
        self._shard_bytes = shard_bytes
        _refuse_other_folder(self.path)
        busy = "another process is writing this store; wait until it ends"
        self._lock = lock_folder(self.path, busy, "cannot write a store there")
        try:
            with disk_errors(self.path):
                self._start()
        except BaseException:
            self._lock.release()
            raise

    def _start(self) -> None:
        if not (self.path / HEADER_NAME).exists():
            write_atomically(self.path / HEADER_NAME, encode_header(self.info, None))
        existing = FeatureStore.open(self.path, partial=True)
        for part in fields(StoreInfo):
            old, new = getattr(existing.info, part.name), getattr(self.info, part.name)
            if old != new:
                raise DataError(f"{self.path}: the store has {part.name} {old!r}, not {new!r}; choose another name")
        for leftover in self.path.glob(".*.tmp"):  # of a writer that was killed
            leftover.unlink()
        records, complete = read_manifest(self.path)
        self._progress = _Progress(Totals(len(records), len(existing)), complete)
        self._is_finished = existing.is_finished
        self._images = set(existing.ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._images)

    def __contains__(self, image: object) -> bool:
        return image in self._images

    def add(self, regions: Regions) -> bool:
        """Add an image; ``False`` if the store already has its id (the first one is kept).

        Features are cast to the store's dtype; values that overflow it or are not finite are a ``DataError``.
        """
        if regions.image in self._images:
            return False
        valid = _validated(regions, self.info)
        self._images.add(valid.image)
        self._progress.buffer.append(valid)
        self._progress.buffer_bytes += _estimated_bytes(valid)
        if self._progress.buffer_bytes >= self._shard_bytes:
            self.flush()
        return True

    def flush(self) -> None:
        """Write the buffered images as a shard, even a small one."""
        if not self._progress.buffer:
            return
        with disk_errors(self.path):
            self._write_shard()

    def _write_shard(self) -> None:
        if self._is_finished:
            write_atomically(self.path / HEADER_NAME, encode_header(self.info, None))
            self._is_finished = False
        written, images = self._progress.written, self._progress.buffer
        data = encode_shard(images, self.info)
        name = shard_name(written.shards)
        write_atomically(self.path / name, data)
        record = ShardRecord(name, len(data), hashlib.sha256(data).hexdigest(), len(images))
        end = _write_line(self.path / MANIFEST_NAME, json.dumps(asdict(record)), self._progress.manifest_bytes)
        self._progress = _Progress(Totals(written.shards + 1, written.images + len(images)), end)

    def finish(self) -> None:
        """Flush, and mark the store as complete."""
        self.flush()
        with disk_errors(self.path):
            write_atomically(self.path / HEADER_NAME, encode_header(self.info, self._progress.written))
        self._is_finished = True

    def close(self) -> None:
        """Flush and release the lock; this does not mark the store as complete."""
        try:
            self.flush()
        finally:
            self._lock.release()


def merge_stores(sources: Sequence[Path | str], target: Path | str) -> int:
    """Merge several finished stores (such as those of several machines) into one; returns the number of images.

    The sources must have equal headers and no image in common; their checksums are verified. An interrupted merge
    resumes when it is run again.
    """
    stores = [FeatureStore.open(source) for source in sources]
    if not stores:
        raise DataError("no stores to merge; give at least one")
    owner: dict[str, Path] = {}
    for store in stores:
        if store.info != stores[0].info:
            raise DataError(f"{store.path}: its extractor, dimension or dtype differs from {stores[0].path}")
        for image in store:
            if image in owner:
                raise DataError(f"{store.path}: image {image!r} is also in {owner[image]}")
            owner[image] = store.path
    with StoreWriter(target, stores[0].info) as writer:
        for store in stores:
            store.verify()
            for image in store:
                if image not in writer:
                    writer.add(store[image])
        writer.finish()
        return len(writer)


def _refuse_other_folder(path: Path) -> None:
    """Refuse a folder with other files in it than a store, or the leftovers of one that was begun."""
    if not path.is_dir() or (path / HEADER_NAME).exists():
        return
    if any(file.name != LOCK_NAME and file.suffix != ".tmp" for file in path.iterdir()):
        raise DataError(f"{path}: a non-empty folder that is not a region store; choose another name")


def _write_line(path: Path, line: str, start: int) -> int:
    """Write a line at byte ``start``, the end of the complete lines, over what an interrupted write left there."""
    path.touch()
    with path.open("r+b") as file:
        file.truncate(start)
        file.seek(start)
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _estimated_bytes(regions: Regions) -> int:
    """About how many bytes an image adds to a shard; strings count with their worst case in the header."""
    arrays = regions.boxes.nbytes + regions.features.nbytes
    return arrays + 8 * sum(len(text) for text in (regions.image, *(regions.names or ())))


def _validated(regions: Regions, info: StoreInfo) -> Regions:
    """The validated image, its arrays copied to the store's dtypes."""
    _check_text(regions.image, "an image id")
    what = f"image {regions.image!r}: its"
    if not all(1 <= side <= _MAX_SIDE and side == int(side) for side in (regions.width, regions.height)):
        raise DataError(f"{what} size {regions.width} × {regions.height} is not in whole pixels")
    boxes = _validated_boxes(regions.boxes, f"{what} boxes")
    features = _cast(regions.features, DTYPES[info.dtype], f"{what} features")
    if features.shape != (len(boxes), info.dimension):
        raise DataError(f"{what} features have shape {features.shape}, not ({len(boxes)}, {info.dimension})")
    objectness = _optional(regions.objectness, info.has_objectness, f"{what} objectness")
    if objectness is not None:
        objectness = _cast(objectness, np.dtype("<f4"), f"{what} objectness values")
        if objectness.shape != (len(boxes),):
            raise DataError(f"{what} objectness has shape {objectness.shape}, not ({len(boxes)},)")
    names = _optional(regions.names, info.has_names, f"{what} class names")
    if names is not None:
        if len(names) != len(boxes):
            raise DataError(f"{what} {len(boxes)} regions have {len(names)} class names")
        for name in names:
            _check_text(name, f"{what} class name")
    return Regions(regions.image, int(regions.width), int(regions.height), boxes, features, objectness, names)


def _validated_boxes(values: Any, what: str) -> NDArray[np.float32]:
    boxes = _cast(values, np.dtype("<f4"), what)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise DataError(f"{what} have shape {boxes.shape}, not (regions, 4)")
    if not 1 <= len(boxes) <= MAX_REGIONS:
        raise DataError(f"{what} are {len(boxes)}; an image must have 1 to {MAX_REGIONS} regions")
    inverted = (boxes[:, 2:] < boxes[:, :2]).any(axis=1)
    if inverted.any():
        box = boxes[int(inverted.argmax())].tolist()
        raise DataError(f"{what} hold {box}, which ends before it starts; boxes are x0, y0, x1, y1")
    return boxes


def _check_text(text: Any, what: str) -> None:
    if not is_name(text):
        raise DataError(f"{what} must be a printable text of 1 to {NAME_LIMIT} characters, not {str(text)[:80]!r}")


def _optional(part: Any, is_wanted: bool, what: str) -> Any:
    if (part is not None) != is_wanted:
        raise DataError(f"{what} must be {'given' if is_wanted else 'absent'}, as the store's header says")
    return part


def _cast(values: Any, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    """A copy in the stored dtype; NaN, infinity and values that would overflow are refused."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise DataError(f"{what} are {array.dtype}, not numbers")
    if array.size:
        low, high = float(array.min()), float(array.max())  # NaN if one is NaN
        if not (np.isfinite(low) and np.isfinite(high)):
            raise DataError(f"{what} hold NaN or infinity")
        largest = float(np.finfo(dtype).max)
        if max(-low, high) > largest:
            hint = "; store them as float32" if dtype == DTYPES["float16"] else ""
            raise DataError(f"{what} reach {max(-low, high):.6g}, more than {dtype} can hold ({largest:.6g}){hint}")
    return array.astype(dtype, order="C", copy=True)
