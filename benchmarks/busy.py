"""Beside other work: how long a grounding takes while busy loops run on the same cores, against the same without them.

    python benchmarks/busy.py                 # two busy loops, by turns with none
    python benchmarks/busy.py --api           # through the server's API as well: a known photo, one client

Every round measures a new and a known photo alone and beside the loops, as the commands set their threads and, for
comparison, with threads that never spin and that spin long. Ratios are of medians of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

ROOT = Path(__file__).resolve().parents[1]
PHOTO = ROOT / "photos" / "photographer.jpg"
CAPTION = "A man in a black coat looks through a camera on a tripod in a field"
SETTINGS = {
    "a moment (the commands)": {"GOMP_SPINCOUNT": "5000"},
    "never": {"OMP_WAIT_POLICY": "passive"},
    "as OpenMP has it": {},
}
_TIMES = """
import json, sys, time
from phrasechain import Grounder
photo, caption, count = json.loads(sys.argv[1])
grounder, fresh = Grounder.from_pretrained(), None
fresh = Grounder(grounder.parts, "cpu", photos=0)
found = {"new": [], "known": []}
for name, one in (("new", fresh), ("known", grounder)):
    one.ground(photo, caption)
for line in sys.stdin:
    for name, one in (("new", fresh), ("known", grounder)):
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            one.ground(photo, caption)
            times.append(1e3 * (time.perf_counter() - begin))
        found[name] = times
    print(json.dumps(found), flush=True)
"""


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Timer:
    """A process that grounds when it is told to."""

    def __init__(self, count: int, setting: dict[str, str]) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
        arguments = json.dumps([str(PHOTO), CAPTION, count])
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TIMES, arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | setting,
        )

    def measure(self) -> dict[str, list[float]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        times: dict[str, list[float]] = json.loads(self.process.stdout.readline())
        return times

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure_library(loops: int, rounds: int, count: int) -> None:
    timers = {name: Timer(count, setting) for name, setting in SETTINGS.items()}
    times: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(rounds):
        for beside in (0, loops):
            for name, timer in timers.items():  # by turns
                with busy_loops(beside):
                    for kind, found in timer.measure().items():
                        times.setdefault((name, kind, beside), []).extend(found)
    for name, timer in timers.items():
        timer.close()
        for kind in ("new", "known"):
            alone, busy = (statistics.median(times[name, kind, beside]) for beside in (0, loops))
            shown = f"{alone:.1f} ms alone, {busy:.1f} ms beside {loops} loops, {busy / alone:.2f} ×"
            print(f"{name}: {kind} photo {shown}")


def measure_api(count: int) -> None:
    """One client: a caption that changes on a known photo, against ``Grounder.ground`` on it, by turns."""
    from load import Client, send_photos, start_server

    timer = Timer(count, SETTINGS["a moment (the commands)"])
    server, address = start_server()

    async def ask() -> list[float]:
        photo = (await send_photos(address))[1]
        times = []
        async with Client(address) as client:
            for number in range(count + 5):
                begin = time.perf_counter()
                body = json.dumps({"photo": photo, "caption": f"{CAPTION} {number}"})
                await client.post("/api/ground", body.encode())
                times.append(1e3 * (time.perf_counter() - begin))
        return times[5:]

    api: list[float] = []
    own: list[float] = []
    for _ in range(4):
        own += timer.measure()["known"]
        api += asyncio.run(ask())
    timer.close()
    server.terminate()
    server.wait()
    for name, times in (("Grounder.ground", own), ("API", api)):
        times.sort()
        median, late = statistics.median(times), times[int(0.95 * len(times))]
        print(f"known photo, {name}: median {median:.1f} ms, 95 % {late:.1f} ms")
    print(f"ratio of the medians {statistics.median(api) / statistics.median(own):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument("--api", action="store_true")
    arguments = parser.parse_args()
    print(f"load average at the start {os.getloadavg()[0]:.2f}")
    if arguments.api:
        measure_api(arguments.count)
    measure_library(arguments.loops, arguments.rounds, arguments.count)


if __name__ == "__main__":
    main()
