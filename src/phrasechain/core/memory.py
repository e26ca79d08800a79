"""The process's memory."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def keep_freed_memory() -> None:
    """Let the allocator keep what is freed instead of giving it back to the system (glibc; elsewhere nothing happens).

    Large tensors come and go at every step; getting their pages anew can cost as much as the work on them.
    """
    if sys.platform != "linux":
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, (1 << 31) - 1)
        mallopt(mmap_threshold, 1 << 30)


def peak_bytes() -> int:
    """The most memory that this process has had at once."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent's peak too
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
