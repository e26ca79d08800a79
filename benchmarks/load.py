"""The server under load: many clients on known photos for a while, against what ``ground_many`` reaches in one process.

    python benchmarks/load.py                     # 32 clients for 60 seconds
    python benchmarks/load.py --seconds 600       # ten minutes

Starts a server of its own, sends the three photos of the project once, and lets every client ask for one caption after
the other, by the ids. Prints requests a second, the statuses, the median and the 95th percentile, the server's memory
at the start and at the end, how much of the CPU the clients took, and the ratio to ``ground_many`` on the same captions
and photos. The clients are one process with one connection each.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
PHOTOS = ("astronaut", "photographer", "coffee")
CAPTIONS = [line.split("\t")[1] for line in (ROOT / "photos" / "captions.tsv").read_text("utf-8").splitlines()]


def start_server() -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "phrasechain", "serve", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.match(r"(http://\S+) is ready", line):
            return process, found[1]
    raise SystemExit("the server did not start")


def memory_of(pid: int) -> int:
    """Resident megabytes."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) // 1024


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client:
    """A connection that is kept open; small enough to leave the CPU to the server."""

    def __init__(self, address: str) -> None:
        self.place = urlsplit(address)

    async def __aenter__(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(self.place.hostname, self.place.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def post(self, path: str, body: bytes, kind: str = "application/json") -> tuple[int, bytes]:
        head = f"POST {path} HTTP/1.1\r\nHost: {self.place.netloc}\r\nContent-Type: {kind}\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length"))
        return int(lines[0].split()[1]), await self.reader.readexactly(length)


async def send_photos(address: str) -> list[str]:
    ids = []
    async with Client(address) as client:
        for name in PHOTOS:
            data = (ROOT / "photos" / f"{name}.jpg").read_bytes()
            form = (
                b'--x\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n' + data + b"\r\n--x--\r\n"
            )
            _, answer = await client.post("/api/photos", form, "multipart/form-data; boundary=x")
            ids.append(json.loads(answer)["photo"])
    return ids


async def run_clients(address: str, clients: int, seconds: float) -> tuple[Counter[int], list[float]]:
    photos = await send_photos(address)
    questions = itertools.cycle(
        [
            json.dumps({"photo": photo, "caption": f"{caption} {number}"}).encode()
            for number in range(7)
            for photo, caption in zip(photos, CAPTIONS, strict=True)
        ]
    )
    statuses: Counter[int] = Counter()
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def one() -> None:
        async with Client(address) as client:
            while (begin := time.perf_counter()) < end:
                status, _ = await client.post("/api/ground", next(questions))
                statuses[status] += 1
                if status == 200:
                    times.append(time.perf_counter() - begin)
                elif status == 503:
                    await asyncio.sleep(0.1)

    await asyncio.gather(*(one() for _ in range(clients)))
    return statuses, times


def ground_many_rate(seconds: float) -> float:
    """Captions a second of ``ground_many`` on known photos, in a process of its own."""
    code = f"""if True:
        import itertools, time
        from phrasechain import Grounder
        grounder = Grounder.from_pretrained()
        photos = [grounder.encode(f"{ROOT}/photos/{{name}}.jpg") for name in {PHOTOS!r}]
        captions = {CAPTIONS!r}
        numbers = itertools.count()
        pairs = ((photo, f"{{text}} {{number}}") for number in numbers for photo, text in zip(photos, captions))
        found = grounder.ground_many(pairs)
        for _ in range(64):
            next(found)
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < {seconds}:
            next(found)
            count += 1
        print(count / (time.perf_counter() - begin))
    """
    environment = os.environ | {"GOMP_SPINCOUNT": "5000"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    if not 1 <= arguments.clients <= 256 or not 1 <= arguments.seconds <= 3600:
        parser.error("1 to 256 clients for 1 to 3600 seconds")
    print(f"load average at the start {os.getloadavg()[0]:.2f}")
    before = ground_many_rate(min(arguments.seconds, 20.0) / 2)
    process, address = start_server()
    try:
        asyncio.run(run_clients(address, arguments.clients, min(10.0, arguments.seconds)))  # warm
        own, server, memory = cpu_of(os.getpid()), cpu_of(process.pid), memory_of(process.pid)
        statuses, times = asyncio.run(run_clients(address, arguments.clients, arguments.seconds))
        own, server = cpu_of(os.getpid()) - own, cpu_of(process.pid) - server
        after = memory_of(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    many = statistics.mean([before, ground_many_rate(min(arguments.seconds, 20.0) / 2)])
    rate = statuses[200] / arguments.seconds
    times.sort()
    print(
        f"{arguments.clients} clients, {arguments.seconds:g} s: {rate:.1f} requests a second, statuses {dict(statuses)}"
    )
    print(f"median {1e3 * statistics.median(times):.0f} ms, 95 % {1e3 * times[int(0.95 * len(times))]:.0f} ms")
    print(f"memory of the server {memory} MB → {after} MB ({100 * (after / memory - 1):+.1f} %)")
    print(f"CPU: server {server / arguments.seconds:.2f} cores, clients {own / arguments.seconds:.2f}")
    print(f"ground_many on known photos {many:.1f} a second; ratio {rate / many:.2f}; load {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
