"""The speed of region extraction, against the trunk of the network alone.

    python benchmarks/extract.py PHOTOS… [--limit 300] [--weights FILE] [--rounds 3]

"one photo" is a decoded photo to 100 regions with features, warm, the median over 50, torch on all cores and ONNX
Runtime on one; "floor" is the trunk alone in torch, on the same photo and threads, in turns with it. "extract" is the
whole of ``phrasechain extract`` from files to a store, started once and warm, the best of the rounds, which alternate.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from phrasechain.core.parallel import usable_cores
from phrasechain.data.photos import find_photos
from phrasechain.regions.extract import extract
from phrasechain.regions.extractor import RegionExtractor, as_input
from phrasechain.regions.pixels import read_photo
from phrasechain.regions.runtime import RUNTIMES
from phrasechain.regions.weights import load_network


def milliseconds(*functions: Callable[[], object], times: int = 50) -> list[float]:
    """The median time of each function; they take turns, so that all see the same machine."""
    taken: list[list[float]] = [[] for _ in functions]
    for turn in range(times + 5):
        for function, found in zip(functions, taken, strict=True):
            start = time.perf_counter()
            function()
            if turn >= 5:
                found.append(1e3 * (time.perf_counter() - start))
    return [median(found) for found in taken]


def per_second(extractor: RegionExtractor, photos: dict[str, Path], workers: int | None) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        report = extract(photos, Path(folder) / "store", extractor, workers=workers)
        return report.written / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    photos, _ = find_photos(options.photos, options.limit)
    loaded = load_network(options.weights)
    extractors = {name: RegionExtractor(loaded.network, loaded.sha256, name) for name in RUNTIMES}
    photo = read_photo(next(iter(photos.values())), loaded.network.size)
    pixels = as_input(torch.from_numpy(photo.pixels)[None])
    print(f"{len(photos)} photos, {usable_cores()} cores, load average {os.getloadavg()[0]:.2f} before")

    with torch.inference_mode():
        one = [lambda found=found: found.regions("one", photo) for found in extractors.values()]
        *times, floor = milliseconds(*one, lambda: loaded.network.trunk(pixels))
    for name, taken in zip(extractors, times, strict=True):
        print(f"one photo  {name:6} {taken:6.1f} ms   floor {floor:6.1f} ms   ratio {taken / floor:.2f}")

    speeds: dict[str, list[float]] = {name: [] for name in extractors}
    for _ in range(options.rounds):
        for name, extractor in extractors.items():
            speeds[name].append(per_second(extractor, photos, options.workers))
    for name, found in speeds.items():
        print(f"extract    {name:6} {max(found):6.1f} photos/s (all rounds: {' '.join(f'{s:.1f}' for s in found)})")
    print(f"load average {os.getloadavg()[0]:.2f} after, {1e3 / floor:.1f} trunks/s")


if __name__ == "__main__":
    main()
