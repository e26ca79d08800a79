"""How long reading a dataset takes on one core: parsing every file, opening its cached index, making every example.

    python benchmarks/read_data.py DATA

The floor of parsing is reading the same files and looking for nothing in them; that of opening is asking the system
for the same files' sizes and times. Every figure is from new processes, the median of several.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from phrasechain.data.dataset import load_examples
from phrasechain.data.flickr30k import list_dataset

ROUNDS = 5


def measure(data: Path, cache: Path) -> dict[str, float]:
    """One round in this process: seconds, and its largest memory in MB."""
    start = time.perf_counter()
    examples = load_examples(data, on_error="skip", cache=cache)
    opened = time.perf_counter()
    phrases = sum(len(caption.phrases) for example in examples for caption in example.captions)
    made = time.perf_counter()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = {"open": opened - start, "make": made - opened}
    return {**seconds, "memory": memory, "images": len(examples), "phrases": phrases, **floors(data)}


def floors(data: Path) -> dict[str, float]:
    start = time.perf_counter()
    layout = list_dataset(data)
    entries = [*layout.sentences.values(), *layout.annotations.values()]
    for entry in entries:
        entry.stat()
    listed = time.perf_counter()
    for entry in entries:
        Path(entry.path).read_bytes()
    return {"list": listed - start, "read": time.perf_counter() - listed}


def in_new_process(data: Path, cache: Path) -> dict[str, float]:
    command = [sys.executable, __file__, str(data), str(cache)]
    answer: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def median(rounds: list[dict[str, float]], name: str) -> float:
    return statistics.median(each[name] for each in rounds)


def main(data: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cold = [in_new_process(data, Path(folder) / str(number)) for number in range(ROUNDS)]
        warm = [in_new_process(data, Path(folder) / "0") for _ in range(ROUNDS)]
        size = sum(path.stat().st_size for path in (Path(folder) / "0").rglob("*.index"))
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{cold[0]['images']:,.0f} images, {cold[0]['phrases']:,.0f} phrases; medians of {ROUNDS}; load {load}")
    parse, read, opened, listed = median(cold, "open"), median(cold, "read"), median(warm, "open"), median(warm, "list")
    print(f"parse and keep the index  {parse:6.2f} s   {parse / read:5.1f} × reading the files ({read:.2f} s)")
    print(f"open the kept index       {opened:6.2f} s   {opened / listed:5.1f} × listing the files ({listed:.2f} s)")
    print(f"make every example        {median(warm, 'make'):6.2f} s   after opening; each on its first access")
    print(f"memory, parsing           {median(cold, 'memory'):6.0f} MB  with every example made")
    print(f"memory, from the index    {median(warm, 'memory'):6.0f} MB  with every example made")
    print(f"the index                 {size / 1e6:6.1f} MB  on disk")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]))))
    else:
        main(Path(sys.argv[1]))
