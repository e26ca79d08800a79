"""The process's memory."""

from __future__ import annotations

import ctypes
import sys


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
