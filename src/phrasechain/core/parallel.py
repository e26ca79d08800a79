"""Ordered work in threads, one core each, and what makes a process that has used torch safe to fork."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def in_order(function: Callable[[T], R], items: Iterable[T], workers: int) -> Generator[R]:
    """Map with ``workers`` threads, in the order of the items, at most a few items ahead of the consumer.

    Without workers it is done in the calling thread.
    """
    if not workers:
        yield from map(function, items)
        return
    waiting: deque[Future[R]] = deque()
    with _one_core_each(workers) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def _one_core_each(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads in which torch starts no others; whoever leaves early waits only for what has begun."""
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch start no other threads for the calling one: small operators are slower on several.

    Several threads that wait for each other after each operator lose far more where the machine is busy. A thread that
    first uses torch while another one is in here may keep one thread for itself.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def survive_forks() -> None:
    """From now on, a child that this process forks computes with one thread of torch.

    The threads of torch's OpenMP pool are not there in a child, which would wait for them for ever. A child that is
    spawned, or comes from a fork server, starts anew and has all threads.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
