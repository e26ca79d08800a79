"""The campaign: damaged inputs to every reader, killed and interrupted commands, threads, long runs, sanitized C.

    python benchmarks/campaign.py FOLDER [--share 0.01] [--seconds 600] [--seed 0] [--part NAME]…

Each part runs in a process of its own. It counts as a failure if a case ends in anything but a result or an error of
one line, if it takes more than ``SLOWEST`` seconds or more than ``LARGEST`` bytes over what the part began with, or if
the process dies. FOLDER keeps what was done (run again to resume) and, under ``failures``, the inputs that failed.
``--share`` is the share of each part's cases that are run, ``--seconds`` bounds each part. docs/reliability.md says
what the campaign stands for; its table is in RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "campaign_parts"))

from campaign_tally import Tally, keep_failure  # noqa: E402

SLOWEST = 20  # seconds of a case
LARGEST = 400_000_000  # bytes of memory
_ROUND = 200  # cases between two looks at the clock, the memory and the file of what was done


class TooLong(BaseException):
    """A case that does not end; not an ``Exception``, so that no reader takes it for a broken file."""


def run_reader(name: str, folder: Path, seed: int, count: int, deadline: float, tally: Tally) -> Iterator[None]:
    """Damaged inputs to one reader; yields after each round."""
    from campaign_cases import READERS

    from phrasechain.core.errors import PhrasechainError

    with tempfile.TemporaryDirectory() as scratch:
        reader = READERS[name][1](Path(scratch))
        for whole in reader.wholes:
            reader.read(whole)  # which nothing is wrong with
        place = list(READERS).index(name)
        while tally.cases < count and time.monotonic() < deadline:
            begin = _reset_peak()
            for _ in range(min(_ROUND, count - tally.cases)):
                rng = np.random.default_rng([seed, place, tally.cases])
                data = reader.damage(reader.wholes[int(rng.integers(len(reader.wholes)))], rng)
                problem = _attempt(lambda data=data: reader.read(data), tally, PhrasechainError)  # type: ignore[misc]
                tally.cases += 1
                if problem:
                    tally.failures += 1
                    keep_failure(folder, name, tally.cases, data, problem)
            grown = _peak() - begin
            tally.worst_bytes = max(tally.worst_bytes, grown)
            if grown > LARGEST:
                tally.failures += 1
                keep_failure(folder, name, tally.cases, b"", f"{grown:,} bytes in the {_ROUND} cases before")
            yield


def _attempt(use: Callable[[], object], tally: Tally, expected: type[Exception]) -> str:
    """Run a case; what is wrong with how it ended, or nothing."""

    def stop(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SLOWEST)
    started, problem = time.perf_counter(), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            use()
    except (expected, ValueError) as error:
        tally.refused += 1
        if not isinstance(error, expected) and not _is_of_the_chain(error):
            problem = traceback.format_exc()
        elif "\n" in str(error) or len(str(error)) > 2000:
            problem = f"not one line: {str(error)[:3000]!r}"
    except (Exception, TooLong):
        problem = traceback.format_exc()
    finally:
        signal.alarm(0)
    tally.worst_seconds = max(tally.worst_seconds, time.perf_counter() - started)
    return problem


def _is_of_the_chain(error: BaseException) -> bool:
    """The chain imports torch alone: its errors are ValueErrors with what was expected."""
    return type(error) is ValueError and ": expected " in str(error)


def _reset_peak() -> int:
    """Begin a new peak of this process's memory where the system can, and return what it has now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


# ---- the parts


def parts() -> dict[str, tuple[int, Callable[..., Iterator[None]]]]:
    """All parts by name: how many cases a whole campaign has of each, and what runs them. More may be added here."""
    from campaign_cases import READERS
    from campaign_processes import PROCESSES

    readers = {name: (count, lambda *a, name=name: run_reader(name, *a)) for name, (count, _) in READERS.items()}
    return {**readers, **PROCESSES}


def run_part(name: str, folder: Path, seed: int, share: float, seconds: float) -> Tally:
    """Run one part in this process, from where it was left."""
    state = folder / f"{name.replace(' ', '-').replace(',', '')}.json"
    tally = Tally(**json.loads(state.read_text())) if state.exists() else Tally()
    count, run = parts()[name]
    for _ in run(folder, seed, max(1, round(count * share)), time.monotonic() + seconds, tally):
        state.write_text(json.dumps(asdict(tally)))
    state.write_text(json.dumps(asdict(tally)))
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the campaign, or resume it.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", action="append", help="only this part; may be repeated")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="the most that each part takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = options.part or list(parts())
    if options.here:
        run_part(names[0], options.folder, options.seed, options.share, options.seconds)
        return
    failed = False
    print("| part | cases | refused in one line | failures | worst seconds | worst memory, MB | |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        tally = _in_a_process(name, options)
        failed |= bool(tally.failures)
        numbers = f"{tally.cases:,} | {tally.refused:,} | {tally.failures:,} | {tally.worst_seconds:.2f}"
        print(f"| {name} | {numbers} | {tally.worst_bytes / 1e6:,.0f} | {tally.note} |", flush=True)
    sys.exit(failed)


def _in_a_process(name: str, options: argparse.Namespace) -> Tally:
    given = ["--share", options.share, "--seconds", options.seconds, "--seed", options.seed, "--part", name, "--here"]
    command = [sys.executable, __file__, str(options.folder), *map(str, given)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])})
    state = options.folder / f"{name.replace(' ', '-').replace(',', '')}.json"
    tally = Tally(**json.loads(state.read_text())) if state.exists() else Tally()
    if done.returncode:
        tally.failures += 1
        tally.note = f"the process ended with {done.returncode}"
        keep_failure(options.folder, name, tally.cases, b"", f"{tally.note}, in the {_ROUND} cases that follow")
    return tally


if __name__ == "__main__":
    main()
