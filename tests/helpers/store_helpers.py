"""Small stores, for the tests of the store and of what is written into it."""

import json
from pathlib import Path

import numpy as np
import pytest

from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions
from phrasechain.store.reader import FeatureStore
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter

INFO = StoreInfo(dimension=3, dtype="float32")


def make_regions(image: str, count: int = 2, dimension: int = 3, seed: int = 0) -> Regions:
    rng = np.random.default_rng([seed, *image.encode()])
    start = rng.uniform(0, 50, (count, 2))
    boxes = np.concatenate([start, start + rng.uniform(0, 50, (count, 2))], axis=1).astype(np.float32)
    return Regions(image, 120, 90, boxes, rng.normal(size=(count, dimension)).astype(np.float32))


def write(folder: Path, images: list[Regions], info: StoreInfo = INFO, shard_bytes: int = 1 << 26) -> None:
    with StoreWriter(folder, info, shard_bytes) as writer:
        for regions in images:
            writer.add(regions)
        writer.finish()


def assert_same(got: Regions, wanted: Regions) -> None:
    assert (got.image, got.width, got.height, got.names) == (wanted.image, wanted.width, wanted.height, wanted.names)
    np.testing.assert_array_equal(got.boxes, wanted.boxes)
    np.testing.assert_array_equal(got.features, wanted.features)
    assert (got.objectness is None) == (wanted.objectness is None)
    if wanted.objectness is not None:
        np.testing.assert_array_equal(got.objectness, wanted.objectness)


def fails(path: Path, words: str, partial: bool = False) -> None:
    with pytest.raises(DataError, match=words) as caught:
        FeatureStore.open(path, partial=partial)
    assert "\n" not in str(caught.value)


def change_json(path: Path, /, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def replace_shard(folder: Path, data: bytes) -> None:
    """Put a forged shard into a store, with a manifest that agrees with it."""
    (folder / "shard-000000.safetensors").write_bytes(data)
    change_json(folder / "shards.jsonl", bytes=len(data))
    with (folder / "shards.jsonl").open("a") as file:
        file.write("\n")
