"""Parts of the campaign that need processes: kill -9, Ctrl-C, a full disk, threads, long runs, C under sanitizers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from campaign_cases import IMAGES, tsv_bytes, write_grounder
from campaign_tally import Tally, keep_failure
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
CAPTION = "A man with a red ball sees the dog."
Run = Callable[..., Iterator[None]]


def write_inputs(home: Path) -> dict[str, list[str]]:
    """Small inputs for the commands that write, and the commands; ``OUT`` is where they write to."""
    rng = np.random.default_rng(0)
    (home / "photos").mkdir()
    for number in range(6):
        picture = rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(picture).save(home / "photos" / f"{number}.png")
    (home / "a.tsv").write_bytes(tsv_bytes(IMAGES))
    write_grounder(home / "model")
    return {
        "import-features": [str(home / "a.tsv"), "--out", "OUT"],
        "extract": [str(home / "photos"), "--out", "OUT"],
        "ground": [str(home / "photos"), CAPTION, "--out", "OUT", "--model", str(home / "model")],
    }


def start(command: str, arguments: list[str], out: Path) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "phrasechain", command, *(str(out) if each == "OUT" else each for each in arguments)]
    paths = os.pathsep.join([str(ROOT / "src"), *sys.path])
    environment = os.environ | {
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "PHRASECHAIN_CACHE": str(out.parent / "cache"),
    }
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder but for locks; lines of groundings in no order."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in (".lock",) and not path.name.endswith(".tmp"):
            data = path.read_bytes()
            found[str(path.relative_to(folder))] = (
                b"".join(sorted(data.splitlines())) if path.suffix == ".jsonl" else data
            )
    return found


def _whole(home: Path, commands: dict[str, list[str]]) -> dict[str, tuple[dict[str, bytes], float]]:
    """What each command writes if it is left alone, and how long it takes."""
    found = {}
    for command, arguments in commands.items():
        started, out = time.monotonic(), home / f"whole-{command}"
        process = start(command, arguments, out)
        _, err = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{command}: {err}")
        found[command] = content(out), time.monotonic() - started
    return found


def signalled(
    what: signal.Signals, folder: Path, seed: int, count: int, deadline: float, tally: Tally
) -> Iterator[None]:
    """A signal at a random moment of a command; then the command again, whose output is as if nothing had been."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        commands = write_inputs(home)
        wholes = _whole(home, commands)
        deadline += time.monotonic() - begun  # of cases alone
        while tally.cases < count and time.monotonic() < deadline:
            rng = np.random.default_rng([seed, int(what), tally.cases])
            command = list(commands)[int(rng.integers(len(commands)))]
            expected, seconds = wholes[command]
            out = home / "out"
            shutil.rmtree(out, ignore_errors=True)
            process = start(command, commands[command], out)
            try:
                process.wait(timeout=float(rng.random()) * seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(what)
            _, err = process.communicate()
            problem = "" if "Traceback" not in err else err
            if what == signal.SIGINT and process.returncode not in (0, 130, -signal.SIGINT):
                problem += f"\nstatus {process.returncode}: {err}"
            again = start(command, commands[command], out)
            _, err = again.communicate()
            if again.returncode or content(out) != expected:
                problem += f"\nagain: status {again.returncode}, the same: {content(out) == expected}: {err}"
            tally.cases += 1
            if problem:
                tally.failures += 1
                keep_failure(folder, what.name, tally.cases, command.encode(), problem)
            yield


def full_disk(folder: Path, seed: int, count: int, deadline: float, tally: Tally) -> Iterator[None]:
    """Each command on a disk with room for a part of what it writes: one line, and complete once there is room."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        disk = home / "disk"
        disk.mkdir()
        commands = write_inputs(home)
        wholes = _whole(home, commands)
        deadline += time.monotonic() - begun  # of cases alone
        while tally.cases < count and time.monotonic() < deadline:
            rng = np.random.default_rng([seed, 99, tally.cases])
            command = list(commands)[int(rng.integers(len(commands)))]
            room = 4096 * int(rng.integers(1, 12))
            if subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={room}", "none", disk], capture_output=True
            ).returncode:
                tally.note = "a tmpfs cannot be mounted here"
                return
            try:
                process = start(command, commands[command], disk / "out")
                _, err = process.communicate()
                problem = "" if process.returncode in (0, 1, 2) and "Traceback" not in err else err
                subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True, capture_output=True)
                again = start(command, commands[command], disk / "out")
                _, err = again.communicate()
                if again.returncode or content(disk / "out") != wholes[command][0]:
                    problem += f"\nagain: status {again.returncode}: {err}"
            finally:
                subprocess.run(["umount", disk], check=True)
            tally.cases += 1
            if problem:
                tally.failures += 1
                keep_failure(folder, "full disk", tally.cases, f"{command} {room}".encode(), problem)
            yield


def threads(folder: Path, seed: int, count: int, deadline: float, tally: Tally) -> Iterator[None]:
    """Eight threads that share one grounder: each finds what one alone finds."""
    from phrasechain.grounding.grounder import Grounder

    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        write_inputs(home)
        photos = sorted((home / "photos").iterdir())
        grounder = Grounder.from_pretrained(home / "model", device="cpu", photos=2)
        alone = {photo: grounder.ground(photo, CAPTION).to_json() for photo in photos}
        while tally.cases < count and time.monotonic() < deadline:
            problems: list[str] = []

            def storm(first: int, problems: list[str] = problems) -> None:
                for number in range(10):
                    photo = photos[(first + number) % len(photos)]
                    try:
                        if grounder.ground(photo, CAPTION).to_json() != alone[photo]:
                            problems.append(f"{photo}: found another")
                    except Exception as error:
                        problems.append(repr(error))

            workers = [threading.Thread(target=storm, args=(number,)) for number in range(8)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            tally.cases += 80
            if problems:
                tally.failures += len(problems)
                keep_failure(folder, "threads", tally.cases, b"", "\n".join(problems))
            yield


def long_run(folder: Path, seed: int, count: int, deadline: float, tally: Tally) -> Iterator[None]:
    """Groundings one after the other: memory, descriptors and threads after the first hundred and at the end."""
    from phrasechain.grounding.grounder import Grounder

    def held() -> dict[str, int]:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        return {
            "bytes": int(status["VmRSS"].split()[0]) * 1024,
            "descriptors": descriptors,
            "threads": int(status["Threads"]),
        }

    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        write_inputs(home)
        photos = sorted((home / "photos").iterdir())
        grounder = Grounder.from_pretrained(home / "model", device="cpu", photos=2)
        begin: dict[str, int] = {}
        for number in range(count - tally.cases):
            if time.monotonic() > deadline:
                break
            words = " ".join(["a dog", "a man", "the ball"][: 1 + number % 3])
            grounder.ground(photos[number % len(photos)], f"{words} {number}").draw()
            tally.cases += 1
            if number == min(200, count // 4):
                begin = held()
            if number % 100 == 0:
                yield
        if begin:
            end = held()
            tally.worst_bytes = end["bytes"] - begin["bytes"]
            tally.note = ", ".join(f"{name} {begin[name]:,} → {end[name]:,}" for name in begin)
            leaks = end["descriptors"] > begin["descriptors"] or end["threads"] > begin["threads"]
            if leaks or tally.worst_bytes > 50_000_000:
                tally.failures += 1
                keep_failure(folder, "long run", tally.cases, b"", json.dumps([begin, end]))
        yield


def sanitized(kinds: str, folder: Path, seed: int, count: int, deadline: float, tally: Tally) -> Iterator[None]:
    """The C of the chain and of NMS, called by a C driver with random sizes, lengths, masks and scores."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "driver"
        flags = [
            "-O1",
            "-g",
            "-std=gnu11",
            f"-fsanitize={kinds}",
            "-fno-sanitize-recover=all",
            "-fno-omit-frame-pointer",
        ]
        sources = [Path(__file__).with_name("sanitize.c"), "-I", ROOT / "src" / "phrasechain"]
        built = subprocess.run(
            ["cc", *flags, "-Wno-psabi", *sources, "-o", program, "-pthread", "-lm"], capture_output=True, text=True
        )
        if built.returncode:
            tally.note = "not built here: " + " ".join(built.stderr.split())[:200]
            return
        deadline += time.monotonic() - begun  # of cases alone
        while tally.cases < count and time.monotonic() < deadline:
            started = time.perf_counter()
            done = subprocess.run([program, str(seed + tally.cases), "200"], capture_output=True, text=True)
            tally.worst_seconds = max(tally.worst_seconds, (time.perf_counter() - started) / 200)
            tally.cases += 200
            if done.returncode:
                tally.failures += 1
                keep_failure(folder, f"C {kinds}", tally.cases, b"", done.stderr)
            yield


PROCESSES: dict[str, tuple[int, Run]] = {
    "kill -9": (200, lambda *a: signalled(signal.SIGKILL, *a)),
    "Ctrl-C": (100, lambda *a: signalled(signal.SIGINT, *a)),
    "full disk": (60, full_disk),
    "threads": (8_000, threads),
    "long run": (10_000, long_run),
    "C, ASan and UBSan": (100_000, lambda *a: sanitized("address,undefined", *a)),
    "C, TSan": (20_000, lambda *a: sanitized("thread", *a)),
}
