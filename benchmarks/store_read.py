"""Batches of random images from a warm store, against a plain numpy memmap copy of the same bytes.

    python benchmarks/store_read.py [--images 300] [--rounds 9]

Both sides read the same 16 images × 100 regions × 2,048 float16 per batch. "fresh" allocates the result anew for every
batch on both sides; "reused" copies into one buffer. The ratio is store speed / memmap speed, the median over rounds
that alternate between the two; the goal is 0.70.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.schema import Regions
from phrasechain.store.reader import FeatureStore
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter

REGIONS, DIMENSION, BATCH = 100, 2048, 16
Read = Callable[[Sequence[int]], object]


def make_store(folder: Path, images: int) -> FeatureStore:
    rng = np.random.default_rng(0)
    boxes = np.tile(np.array([[0, 0, 10, 10]], np.float32), (REGIONS, 1))
    with StoreWriter(folder, StoreInfo(dimension=DIMENSION)) as writer:
        for image in range(images):
            features = rng.random((REGIONS, DIMENSION), np.float32)
            writer.add(Regions(str(image), 640, 480, boxes, features))
        writer.finish()
    return FeatureStore.open(folder)


def plain_copy(file: Path, store: FeatureStore) -> NDArray[np.float16]:
    """The same features as one raw array on disk, (images, K, D)."""
    np.concatenate([store[image].features for image in store]).tofile(file)
    return np.memmap(file, np.float16, "r", shape=(len(store), REGIONS, DIMENSION))


def aligned_buffer() -> NDArray[np.float16]:
    """(16 · K, D), 64 bytes past a page: 16 past, as numpy gives it, doubles the time of the page-aligned floor."""
    values = BATCH * REGIONS * DIMENSION
    room = np.empty(2 * values + 8192, np.uint8)
    start = -room.ctypes.data % 4096 + 64
    return room[start : start + 2 * values].view(np.float16).reshape(BATCH * REGIONS, DIMENSION)


def seconds(read: Read, batches: Sequence[Sequence[int]]) -> float:
    start = time.perf_counter()
    for batch in batches:
        read(batch)
    return (time.perf_counter() - start) / len(batches)


def compare(name: str, ours: Read, floor: Read, batches: Sequence[Sequence[int]], rounds: int) -> None:
    seconds(ours, batches), seconds(floor, batches)  # warm the pages
    pairs = [(seconds(ours, batches), seconds(floor, batches)) for _ in range(rounds)]
    store_time, floor_time = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    ratio = median(pair[1] / pair[0] for pair in pairs)
    gigabytes = BATCH * REGIONS * DIMENSION * 2 / 1e9
    print(
        f"{name:8} store {store_time * 1e3:6.2f} ms ({gigabytes / store_time:5.2f} GB/s)   "
        f"memmap {floor_time * 1e3:6.2f} ms ({gigabytes / floor_time:5.2f} GB/s)   ratio {ratio:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "store", options.images)
        plain = plain_copy(Path(folder) / "plain.bin", store)
        rng = np.random.default_rng(1)
        batches = [rng.integers(0, len(store), BATCH).tolist() for _ in range(50)]
        buffer = aligned_buffer()
        shaped = buffer.reshape(BATCH, REGIONS, DIMENSION)

        def copy_into(batch: Sequence[int], out: NDArray[np.float16]) -> None:
            for place, image in enumerate(batch):
                out[place] = plain[image]

        print(f"{len(store)} images, load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
        compare(
            "fresh",
            lambda batch: store.read_batch([str(image) for image in batch]),
            lambda batch: copy_into(batch, np.empty((BATCH, REGIONS, DIMENSION), np.float16)),
            batches,
            options.rounds,
        )
        compare(
            "reused",
            lambda batch: store.read_batch([str(image) for image in batch], out=buffer),
            lambda batch: copy_into(batch, shaped),
            batches,
            options.rounds,
        )


if __name__ == "__main__":
    main()
