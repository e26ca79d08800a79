"""A store's metadata, and one shard of it: a safetensors file, validated before it is memory-mapped.

docs/features.md specifies the format. Headers are untrusted: every name, dtype, shape and offset must match the one
valid layout before any data is read.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from reprlib import repr as short
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from phrasechain.core.errors import DataError
from phrasechain.core.files import reason
from phrasechain.core.json_lines import parse_json_at
from phrasechain.core.schema import Regions

BOX_CONVENTION = "x0 y0 x1 y1, continuous, 0-based, half-open, pixels of the image as displayed"
MAX_DIMENSION = 65_536
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library as well
DTYPES: dict[str, np.dtype[Any]] = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4")}
_TAGS = {np.dtype("<f2"): "F16", np.dtype("<f4"): "F32", np.dtype("<i4"): "I32", np.dtype("<i8"): "I64"}

TensorLayout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]  # tensor name → dtype, shape


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The metadata of a store, common to all its images.

    ``weights_sha256`` is the hash of the extractor's weights, ``None`` where they are unknown (imported features).
    ``has_objectness`` and ``has_names`` say which optional arrays every image has.
    """

    dimension: int  # D
    dtype: str = "float16"
    extractor: str = "unknown"
    weights_sha256: str | None = None
    has_objectness: bool = False
    has_names: bool = False
    box_convention: str = BOX_CONVENTION

    def __post_init__(self) -> None:
        if type(self.dimension) is not int or not 1 <= self.dimension <= MAX_DIMENSION:
            raise DataError(
                f"the feature dimension must be a number from 1 to {MAX_DIMENSION}, not {short(self.dimension)}"
            )
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise DataError(f"features are stored as {' or '.join(DTYPES)}, not {short(self.dtype)}")
        if self.box_convention != BOX_CONVENTION:
            raise DataError(f"the box convention must be {BOX_CONVENTION!r}, not {short(self.box_convention)}")
        if not isinstance(self.extractor, str) or not isinstance(self.weights_sha256, str | None):
            raise DataError("the extractor's name and the hash of its weights must be texts")
        if type(self.has_objectness) is not bool or type(self.has_names) is not bool:
            raise DataError("has_objectness and has_names must be true or false")


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """The validated index of one shard, in memory."""

    path: Path
    file_bytes: int
    images: tuple[str, ...]  # N ids
    offsets: NDArray[np.int64]  # (N + 1,): image n has the regions offsets[n] … offsets[n + 1]
    sizes: NDArray[np.int32]  # (N, 2): width, height
    vocabulary: tuple[str, ...]  # the class names
    layout: TensorLayout
    starts: dict[str, int]  # tensor name → first byte in the file


@dataclass(frozen=True, slots=True, eq=False)
class ShardArrays:
    """Read-only views of the memory-mapped file; the mapping lives as long as one of them."""

    boxes: NDArray[np.float32]  # (R, 4)
    features: NDArray[np.floating]  # (R, D)
    objectness: NDArray[np.float32] | None  # (R,)
    names: NDArray[np.int32] | None  # (R,): indices into the vocabulary


def shard_layout(info: StoreInfo, images: int, regions: int) -> TensorLayout:
    """The tensors of a shard with N images and R regions."""
    layout: TensorLayout = {
        "offsets": (np.dtype("<i8"), (images + 1,)),
        "sizes": (np.dtype("<i4"), (images, 2)),
        "boxes": (np.dtype("<f4"), (regions, 4)),
        "features": (DTYPES[info.dtype], (regions, info.dimension)),
    }
    if info.has_objectness:
        layout["objectness"] = (np.dtype("<f4"), (regions,))
    if info.has_names:
        layout["names"] = (np.dtype("<i4"), (regions,))
    return layout


def encode_shard(images: Sequence[Regions], info: StoreInfo) -> bytes:
    """The bytes of a shard. The images are already validated and cast (``StoreWriter.add``)."""
    tensors: dict[str, NDArray[Any]] = {
        "offsets": np.cumsum([0, *(len(regions.boxes) for regions in images)], dtype="<i8"),
        "sizes": np.array([(regions.width, regions.height) for regions in images], dtype="<i4"),
        "boxes": np.concatenate([regions.boxes for regions in images]),
        "features": np.concatenate([regions.features for regions in images]),
    }
    metadata = {"images": json.dumps([regions.image for regions in images], ensure_ascii=False)}
    if info.has_objectness:
        tensors["objectness"] = np.concatenate([r.objectness for r in images if r.objectness is not None])
    if info.has_names:
        names = [name for regions in images for name in regions.names or ()]
        index = {name: i for i, name in enumerate(dict.fromkeys(names))}
        tensors["names"] = np.array([index[name] for name in names], dtype="<i4")
        metadata["names"] = json.dumps(list(index), ensure_ascii=False)
    return save(tensors, metadata)


def read_shard(path: Path, info: StoreInfo) -> Shard:
    """Read and validate the index of a shard; boxes and features are not read."""
    try:
        with path.open("rb") as file:
            return _read_shard(file, path, info)
    except OSError as error:
        raise DataError(f"{path}: cannot read the shard: {reason(error)}") from error


def map_shard(shard: Shard) -> ShardArrays:
    """Memory-map a shard, read-only."""
    try:
        with shard.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise DataError(f"{shard.path}: cannot map the shard: {error}") from error
    if len(mapped) != shard.file_bytes:
        raise DataError(f"{shard.path}: the shard changed while it was open; open the store again")

    def view(name: str) -> NDArray[Any]:
        dtype, shape = shard.layout[name]
        return np.frombuffer(mapped, dtype, prod(shape), shard.starts[name]).reshape(shape)

    return ShardArrays(
        boxes=view("boxes"),
        features=view("features"),
        objectness=view("objectness") if "objectness" in shard.layout else None,
        names=view("names") if "names" in shard.layout else None,
    )


def _read_shard(file: BinaryIO, path: Path, info: StoreInfo) -> Shard:
    file_bytes = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if file_bytes < 8 or length > min(MAX_HEADER_BYTES, file_bytes - 8):
        raise DataError(f"{path}: not a shard of a region store, or cut short: its header does not fit")
    header = parse_json_at(str(path), file.read(length))
    if not isinstance(header, dict):
        raise DataError(f"{path}: the shard's header is not an object")
    metadata = header.pop("__metadata__", None)
    images = _texts(metadata, "images", path)
    vocabulary = _texts(metadata, "names", path) if info.has_names else ()
    layout = shard_layout(info, len(images), _count_regions(header, path))
    starts = _check_layout(header, layout, 8 + length, file_bytes, path)

    def read(name: str) -> NDArray[Any]:
        dtype, shape = layout[name]
        file.seek(starts[name])
        return np.frombuffer(file.read(prod(shape) * dtype.itemsize), dtype).reshape(shape)

    offsets, sizes = read("offsets"), read("sizes")
    counts = np.diff(offsets)
    # Offsets are checked to lie in [0, R] first, so that no difference can overflow.
    regions = layout["boxes"][1][0]
    inside = (offsets >= 0).all() and (offsets <= regions).all()
    if not inside or offsets[0] != 0 or offsets[-1] != regions or (counts < 1).any():
        raise DataError(f"{path}: the image offsets do not increase from 0 to the number of regions ({regions})")
    if (sizes < 1).any():
        raise DataError(f"{path}: an image has a width or height below 1")
    return Shard(path, file_bytes, images, offsets, sizes, vocabulary, layout, starts)


def _texts(metadata: Any, key: str, path: Path) -> tuple[str, ...]:
    """A list of strings; safetensors metadata maps strings to strings, so it is stored as JSON."""
    packed = metadata.get(key) if isinstance(metadata, dict) else None
    if not isinstance(packed, str):
        raise DataError(f"{path}: the shard's metadata has no {key!r}")
    texts = parse_json_at(f"{path}: metadata {key!r}", packed.encode("utf-8", "replace"))
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{path}: the shard's metadata {key!r} is not a list of texts")
    return tuple(texts)


def _count_regions(header: dict[str, Any], path: Path) -> int:
    boxes = header.get("boxes")
    shape = boxes.get("shape") if isinstance(boxes, dict) else None
    if not isinstance(shape, list) or len(shape) != 2 or type(shape[0]) is not int or shape[0] < 0:
        raise DataError(f"{path}: the shard's header has no tensor 'boxes' of shape (regions, 4)")
    return shape[0]


def _check_layout(
    header: dict[str, Any], layout: TensorLayout, base: int, file_bytes: int, path: Path
) -> dict[str, int]:
    """The start of each tensor; the header must match the layout exactly, without gaps, up to the end of the file."""
    if header.keys() != layout.keys():
        raise DataError(f"{path}: the shard holds {_list(header)} where the store needs {_list(layout)}")
    spans: list[tuple[int, int]] = []
    for name, (dtype, shape) in layout.items():
        entry = header[name]
        wanted = {"dtype": _TAGS[dtype], "shape": list(shape)}
        if not isinstance(entry, dict) or any(entry.get(key) != value for key, value in wanted.items()):
            raise DataError(f"{path}: tensor {name!r} is not {wanted['dtype']} of shape {shape}")
        span = entry.get("data_offsets")
        if not isinstance(span, list) or len(span) != 2 or any(type(end) is not int for end in span):
            raise DataError(f"{path}: tensor {name!r} has no data_offsets")
        if span[0] < 0 or span[1] - span[0] != prod(shape) * dtype.itemsize:
            raise DataError(f"{path}: tensor {name!r} has data_offsets {span} that do not fit its shape {shape}")
        spans.append((span[0], span[1]))
    ordered = sorted(spans)
    ends = [0, *(end for _, end in ordered)]
    if any(start != end for (start, _), end in zip(ordered, ends, strict=False)):
        raise DataError(f"{path}: the shard's tensors overlap or leave gaps")
    if base + ends[-1] != file_bytes:
        raise DataError(f"{path}: the shard is cut short or too long: {file_bytes} bytes, not {base + ends[-1]}")
    return {name: base + start for name, (start, _) in zip(layout, spans, strict=True)}


def _list(names: dict[str, Any]) -> str:
    return ", ".join(repr(name[:40]) for name in sorted(names)[:10])
