"""``phrasechain bench ground``: how long a photo and a caption take, against the trunk of the region network alone.

The floor is the trunk on one square of pixels: no regions, no text, no chain. Photos are JPEG files of large coloured
blocks; the caption has four phrases.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from phrasechain.core.errors import DataError
from phrasechain.core.memory import keep_freed_memory
from phrasechain.core.progress import track
from phrasechain.core.terminal import print_table
from phrasechain.grounding.grounder import Grounder
from phrasechain.grounding.photo_cache import PHOTOS
from phrasechain.grounding.pretrained import find_folder, load_pretrained
from phrasechain.regions.extractor import as_input
from phrasechain.regions.weights import load_network

CAPTION = "A man in a red shirt throws a frisbee to a dog."
#: What each figure must not exceed on two cores.
GOALS = {
    "a new photo, ms": 120.0,
    "a second caption, ms": 25.0,
    "start to first answer, s": 4.0,
    "peak memory, MB": 900.0,
}
_PHOTOS = 16
_STARTS = 3  # of a process; the first may find the disk's cache empty, and the quickest counts
_FIRST_ANSWER = """
import json, sys, time
from phrasechain import Grounder
from phrasechain.core.memory import peak_bytes
model, photo, caption, threads = json.loads(sys.argv[1])
import torch
torch.set_num_threads(threads)
grounder = Grounder.from_pretrained(model, device="cpu")
grounder.ground(photo, caption)
answered = time.time()
list(grounder.ground_many([(photo, caption)] * 16))
print(json.dumps([answered, peak_bytes() / 1e6]))
"""


def bench_ground(model: str | None = None, threads: int = 2, seconds: float = 4.0) -> dict[str, Any]:
    """Everything that ``phrasechain bench ground`` prints, as plain data."""
    find_folder(model)  # say so at once where there is none
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    with TemporaryDirectory() as folder:
        photos = write_photos(Path(folder), _PHOTOS)
        figures = _first_answer(model, photos[0], threads)
        keep_freed_memory()
        figures |= _warm(model, photos, seconds)
    torch.set_num_threads(before)
    return {"load_average": load, "torch": torch.__version__, "threads": threads, "figures": figures}


def write_photos(folder: Path, count: int) -> list[Path]:
    """JPEG files of large coloured blocks, no two alike."""
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        blocks = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(blocks).resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def _warm(model: str | None, photos: list[Path], seconds: float) -> dict[str, float]:
    parts = load_pretrained(model)
    fresh, keeping = Grounder(parts, "cpu", photos=0), Grounder(parts, "cpu", PHOTOS)
    network = load_network(parts.regions_file).network
    pixels = as_input(torch.zeros(1, network.size, network.size, 3, dtype=torch.uint8))

    @torch.inference_mode()
    def trunk() -> None:
        network.trunk(pixels)

    turns: dict[str, Callable[[Path], object]] = {
        "floor: the trunk alone, ms": lambda _: trunk(),
        "a new photo, ms": lambda photo: fresh.ground(photo, CAPTION),
        "a second caption, ms": lambda _: keeping.ground(photos[0], CAPTION),
    }
    found = _medians(turns, photos, seconds)
    start = time.perf_counter()
    count = sum(1 for _ in fresh.ground_many((photo, CAPTION) for photo in [*photos, *photos]))
    return found | {"ground_many, photos a second": count / (time.perf_counter() - start)}


def _medians(turns: dict[str, Callable[[Path], object]], photos: list[Path], seconds: float) -> dict[str, float]:
    """Milliseconds of each; they take turns, so that a slow moment hits all alike. The first turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    begin, rounds = time.perf_counter(), 0
    gc.disable()
    while rounds < 4 or time.perf_counter() - begin < seconds:
        for name, turn in turns.items():
            start = time.perf_counter()
            turn(photos[rounds % len(photos)])
            times[name].append(1e3 * (time.perf_counter() - start))
        rounds += 1
    gc.enable()
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def _first_answer(model: str | None, photo: Path, threads: int) -> dict[str, float]:
    """Seconds from the start of a process to its first answer, and its peak memory after sixteen more, in MB."""
    arguments = json.dumps([model, str(photo), CAPTION, threads])
    found = [_start_process(arguments) for _ in track(range(_STARTS), _STARTS, "starting")]
    return {"start to first answer, s": min(seconds for seconds, _ in found), "peak memory, MB": found[-1][1]}


def _start_process(arguments: str) -> tuple[float, float]:
    start = time.time()
    done = subprocess.run([sys.executable, "-c", _FIRST_ANSWER, arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DataError(f"no answer from a new process: {(done.stderr.splitlines() or ['nothing'])[-1]}")
    answered, peak = json.loads(done.stdout)
    return answered - start, peak


def print_ground(found: dict[str, Any], console: Console) -> None:
    """A table of the figures, their goals, and their ratio to the floor."""
    console.print(f"torch {found['torch']}, {found['threads']} threads, load average {found['load_average']:.2f}")
    table = Table(title="a photo and a caption")
    for name in ("", "measured", "goal, at most", "× floor"):
        table.add_column(name, justify="right" if name else "left")
    figures = found["figures"]
    floor = next(value for name, value in figures.items() if name.startswith("floor"))
    for name, value in figures.items():
        goal = f"{GOALS[name]:.0f}" if name in GOALS else "–"
        ratio = f"{value / floor:.2f}" if name.endswith("ms") else "–"
        table.add_row(name, f"{value:.2f}" if value < 10 else f"{value:.1f}", goal, ratio)
    print_table(table, console)
