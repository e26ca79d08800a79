"""The process's memory: allocator settings and peak usage."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's cyclic garbage collector, and take what was made meanwhile for long-lived.

    Imports and loading make half a million objects and no garbage; the collector would walk all of torch several times
    to find that out, a tenth of the time to a first answer.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():  # what the caller froze stays so
                gc.freeze()
                gc.unfreeze()  # into the oldest generation, without a walk
            gc.enable()


def keep_freed_memory() -> None:
    """Stop malloc from returning freed memory to the system (glibc only; a no-op elsewhere).

    Every step allocates and frees large tensors; page faults on fresh memory can cost as much as the computation.
    """
    if sys.platform != "linux":
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, (1 << 31) - 1)
        mallopt(mmap_threshold, 1 << 30)


def peak_bytes() -> int:
    """Peak resident memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent's peak too
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
