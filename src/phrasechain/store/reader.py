"""Reading a region store: random access by image id, memory-mapped, safe for many processes.

A store is a folder: ``store.json`` is the header, the manifest ``shards.jsonl`` has one line per complete shard, and
the shards are safetensors files. docs/features.md specifies the format; ``store/writer.py`` writes it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache, partial
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError, located
from phrasechain.core.files import read_bounded, reason
from phrasechain.core.json_lines import parse_json_at
from phrasechain.core.progress import track
from phrasechain.core.schema import Regions
from phrasechain.store.shard import Shard, ShardArrays, StoreInfo, map_shard, read_shard

STORE_FORMAT = "phrasechain-store"
VERSION = 1
HEADER_NAME = "store.json"
MANIFEST_NAME = "shards.jsonl"
_MAX_HEADER_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 1 << 28
_MAX_OPEN_MAPS = 128  # each holds a file descriptor, of which a process has about a thousand
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A line of the manifest: a shard that is complete and synced to disk."""

    file: str
    bytes: int
    sha256: str
    images: int


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts that a finished store declares in its header."""

    shards: int
    images: int


@dataclass(frozen=True, slots=True)
class RegionBatch:
    """The regions of several images, concatenated: image n has the rows ``offsets[n]`` to ``offsets[n + 1]``."""

    images: tuple[str, ...]  # N ids
    sizes: NDArray[np.int32]  # (N, 2): width, height
    offsets: NDArray[np.int64]  # (N + 1,)
    boxes: NDArray[np.float32]  # (R, 4)
    features: NDArray[np.floating]  # (R, D)
    objectness: NDArray[np.float32] | None  # (R,)


class FeatureStore:
    """A store opened for reading.

    ``store[image_id]`` gives :class:`~phrasechain.core.schema.Regions` whose arrays are read-only views of the
    memory-mapped file (copy them before changing them); :meth:`read_batch` copies many images at once. A store can be
    shared by threads and forked processes, and pickled: only the path is sent, and the receiver opens it again.
    """

    def __init__(self, path: Path, info: StoreInfo, records: Sequence[ShardRecord], is_finished: bool) -> None:
        """Use :meth:`open`."""
        self.path = path
        self.info = info
        self.is_finished = is_finished
        self._records = tuple(records)
        shards = [_checked_shard(path, record, info) for record in records]
        self._locations = {image: (shard, row) for shard in shards for row, image in enumerate(shard.images)}
        self.ids: tuple[str, ...] = tuple(self._locations)
        if len(self.ids) != sum(record.images for record in records):
            raise DataError(f"{path}: an image is in the store twice; write the store again")
        self._map: Callable[[Shard], ShardArrays] = lru_cache(_MAX_OPEN_MAPS)(map_shard)

    @classmethod
    def open(cls, path: Path | str, *, partial: bool = False) -> FeatureStore:
        """Open a store and validate its structure: sizes, headers and counts, but not the checksums (:meth:`verify`).

        An unfinished store is refused unless ``partial``, which gives the images written so far.
        """
        path = Path(path)
        info, totals = read_header(path)
        records, _ = read_manifest(path)
        if totals is None and not partial:
            count = sum(record.images for record in records)
            raise DataError(
                f"{path}: the store is unfinished, {count} images so far; run the command that writes it again"
            )
        if totals is not None and totals != Totals(len(records), sum(record.images for record in records)):
            raise DataError(
                f"{path / MANIFEST_NAME}: does not list the {short(totals.shards)} shards of the finished store"
            )
        return cls(path, info, records, totals is not None)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, image: object) -> bool:
        return image in self._locations

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __repr__(self) -> str:
        return f"FeatureStore({str(self.path)!r}, {len(self)} images, D={self.info.dimension}, {self.info.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(FeatureStore.open, partial=not self.is_finished), (self.path,)

    def __getitem__(self, image: str) -> Regions:
        shard, row = self._locate(image)
        arrays = self._map(shard)
        rows = slice(int(shard.offsets[row]), int(shard.offsets[row + 1]))
        width, height = shard.sizes[row].tolist()
        return Regions(
            image=image,
            width=width,
            height=height,
            boxes=arrays.boxes[rows],
            features=arrays.features[rows],
            objectness=None if arrays.objectness is None else arrays.objectness[rows],
            names=None if arrays.names is None else _names(shard, arrays.names[rows]),
        )

    def read_batch(self, images: Sequence[str], out: NDArray[np.floating] | None = None) -> RegionBatch:
        """Copy the regions of many images into contiguous arrays.

        ``out``, if given, is a buffer for the features (pinned or reused memory), (rows, D) of the store's dtype with
        enough rows: the batch's features are then its first rows.
        """
        locations = [self._locate(image) for image in images]
        bounds = [(int(shard.offsets[row]), int(shard.offsets[row + 1])) for shard, row in locations]
        offsets = np.cumsum([0, *(end - start for start, end in bounds)], dtype=np.int64)
        regions = int(offsets[-1])
        features = self._feature_buffer(regions, out)  # (R, D)
        boxes = np.empty((regions, 4), np.float32)
        objectness = np.empty(regions, np.float32) if self.info.has_objectness else None
        first = 0
        for (shard, _), (start, end) in zip(locations, bounds, strict=True):
            arrays = self._map(shard)
            last = first + end - start
            features[first:last] = arrays.features[start:end]
            boxes[first:last] = arrays.boxes[start:end]
            if objectness is not None and arrays.objectness is not None:
                objectness[first:last] = arrays.objectness[start:end]
            first = last
        sizes = np.array([shard.sizes[row] for shard, row in locations], np.int32).reshape(-1, 2)
        return RegionBatch(tuple(images), sizes, offsets, boxes, features, objectness)

    def damaged(self) -> Iterator[str]:
        """Compare the SHA-256 of every shard with the manifest; yields one message per shard that is damaged."""
        for record in track(self._records, len(self._records), "Verifying shards"):
            path = self.path / record.file
            try:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                yield f"{path}: cannot read the shard: {reason(error)}"
                continue
            if digest != record.sha256:
                yield f"{path}: the checksum is wrong, the shard is damaged; copy or write the store again"

    def verify(self) -> None:
        """Raise a ``DataError`` for the first shard that is :meth:`damaged`."""
        for message in self.damaged():
            raise DataError(message)

    def _locate(self, image: str) -> tuple[Shard, int]:
        location = self._locations.get(image)
        if location is None:
            raise DataError(f"{self.path}: the store has no image {image!r} ({len(self)} images)")
        return location

    def _feature_buffer(self, regions: int, out: NDArray[np.floating] | None) -> NDArray[np.floating]:
        dtype, dimension = np.dtype(self.info.dtype), self.info.dimension
        if out is None:
            return np.empty((regions, dimension), dtype)
        if out.dtype != dtype or out.ndim != 2 or out.shape[0] < regions or out.shape[1] != dimension:
            wanted = f"{dtype} of at least ({regions}, {dimension})"
            raise DataError(f"the buffer for the features must be {wanted}, not {out.dtype} of {out.shape}")
        return out[:regions]


def read_header(path: Path) -> tuple[StoreInfo, Totals | None]:
    """Parse ``store.json``: the store's info, and the totals if it is finished."""
    file = path / HEADER_NAME
    if not file.is_file():
        raise DataError(f"{path}: not a region store, it has no {HEADER_NAME}; see phrasechain import-features")
    header = parse_json_at(str(file), read_bounded(file, _MAX_HEADER_BYTES))
    if not isinstance(header, dict) or header.pop("format", None) != STORE_FORMAT:
        raise DataError(f"{file}: not the header of a region store")
    version = header.pop("version", None)
    if version != VERSION:
        raise DataError(
            f"{file}: format version {short(version)}, this phrasechain reads {VERSION}; write the store again"
        )
    totals = header.pop("finished", None)
    with located(file):
        try:
            return StoreInfo(**header), None if totals is None else Totals(**totals)
        except TypeError:
            raise DataError("a field is missing or unknown") from None


def encode_header(info: StoreInfo, totals: Totals | None) -> bytes:
    """The bytes of ``store.json``."""
    finished = None if totals is None else asdict(totals)
    header = {"format": STORE_FORMAT, "version": VERSION, **asdict(info), "finished": finished}
    return (json.dumps(header, indent=2) + "\n").encode()


def read_manifest(path: Path) -> tuple[list[ShardRecord], int]:
    """The complete shards, and the length of the manifest in bytes up to the last complete line.

    A last line without a newline was being written when the writer was killed: its shard does not count.
    """
    file = path / MANIFEST_NAME
    if not file.exists():
        return [], 0
    data = read_bounded(file, _MAX_MANIFEST_BYTES)
    complete = data.rfind(b"\n") + 1
    lines = data[:complete].splitlines()
    return [_record(line, number, file) for number, line in enumerate(lines)], complete


def shard_name(number: int) -> str:
    """
    >>> shard_name(12)
    'shard-000012.safetensors'
    """
    return f"shard-{number:06d}.safetensors"


def _record(line: bytes, number: int, file: Path) -> ShardRecord:
    where = f"{file}:{number + 1}"
    entry = parse_json_at(where, line)
    if not isinstance(entry, dict) or entry.keys() != {field.name for field in fields(ShardRecord)}:
        raise DataError(f"{where}: not the record of a shard; write the store again")
    record = ShardRecord(**entry)
    numbers = (record.bytes, record.images)
    if record.file != shard_name(number) or any(type(value) is not int or value < 0 for value in numbers):
        raise DataError(f"{where}: not the record of {shard_name(number)}; write the store again")
    if not isinstance(record.sha256, str) or not _SHA256.fullmatch(record.sha256):
        raise DataError(f"{where}: the SHA-256 is not 64 hexadecimal digits")
    return record


def _checked_shard(path: Path, record: ShardRecord, info: StoreInfo) -> Shard:
    shard = read_shard(path / record.file, info)
    if shard.file_bytes != record.bytes or len(shard.images) != record.images:
        raise DataError(f"{shard.path}: does not have the size given in {MANIFEST_NAME}; write the store again")
    return shard


def _names(shard: Shard, indices: NDArray[np.int32]) -> tuple[str, ...]:
    if (indices < 0).any() or (indices >= len(shard.vocabulary)).any():
        raise DataError(f"{shard.path}: a region's class name is not in the list of names")
    return tuple(shard.vocabulary[index] for index in indices.tolist())
