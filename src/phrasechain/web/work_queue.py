"""A bounded queue before a few threads, each with one core: requests wait in it, and alike ones are done together.

A batch of captions costs far less than the same captions one by one. So a thread that becomes free takes, beside the
first job of the queue, those behind it that are of the same kind. Nothing waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, Generic, TypeVar

import torch

from phrasechain.web.errors import busy

T = TypeVar("T")
R = TypeVar("R")
Handler = Callable[[Sequence[T]], Sequence[R]]


@dataclass(slots=True)
class _Job(Generic[T, R]):
    handler: Handler[T, R]
    value: T
    kind: Hashable | None  # None: never together with others
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[R]
    is_wanted: bool = field(default=True)


class WorkQueue:
    """``workers`` threads and at most ``size`` jobs that wait; a job too many is refused with 503.

    A handler takes the values of a batch and gives a result for each, in order. Where it fails for a batch, each job is
    tried alone, so that none suffers from another.
    """

    def __init__(self, workers: int, size: int, batch_size: int = 16) -> None:
        self.size, self.batch_size = size, batch_size
        self.running = 0  # jobs
        self._waiting: deque[_Job[Any, Any]] = deque()
        self._changed = Condition()
        self._is_open = True
        self._threads = [Thread(target=self._work, name=f"work-{number}", daemon=True) for number in range(workers)]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self, handler: Handler[T, R], value: T, kind: Hashable | None = None) -> R:
        """The result of the handler for this value; it may be computed together with others of the same kind.

        Whoever stops waiting (a time limit, a client that is gone) leaves the queue.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        job = _Job(handler, value, kind, loop, future)
        with self._changed:
            if not self._is_open:
                raise busy("the server is shutting down")
            if len(self._waiting) >= self.size:
                raise busy(f"{self.size} requests are waiting already")
            self._waiting.append(job)
            self._changed.notify()
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                self._leave(job)

    def close(self) -> None:
        """Finish what has begun, drop what waits, and end the threads."""
        with self._changed:
            self._is_open = False
            dropped = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for job in dropped:
            _settle(job, busy("the server is shutting down"))
        for thread in self._threads:
            thread.join()

    def _leave(self, job: _Job[Any, Any]) -> None:
        with self._changed:
            job.is_wanted = False
            if job in self._waiting:
                self._waiting.remove(job)

    def _work(self) -> None:
        torch.set_num_threads(1)
        while jobs := self._take():
            for job, result in zip(jobs, _results(jobs), strict=True):
                _settle(job, result)
            with self._changed:
                self.running -= len(jobs)

    def _take(self) -> list[_Job[Any, Any]]:
        """The next jobs to be done together; none once the queue is closed."""
        with self._changed:
            while self._is_open and not self._waiting:
                self._changed.wait()
            if not self._is_open:
                return []
            first = self._waiting.popleft()
            jobs = [first]
            if first.kind is not None:
                alike = [job for job in self._waiting if (job.handler, job.kind) == (first.handler, first.kind)]
                for job in alike[: self.batch_size - 1]:
                    self._waiting.remove(job)
                    jobs.append(job)
            self.running += len(jobs)
            return jobs


def _results(jobs: Sequence[_Job[Any, Any]]) -> Sequence[Any]:
    handler = jobs[0].handler
    try:
        return handler([job.value for job in jobs])
    except Exception as error:  # whatever it is, it is told to those whose it is
        return [error] if len(jobs) == 1 else [_results([job])[0] for job in jobs]


def _settle(job: _Job[Any, Any], result: Any) -> None:
    def settle() -> None:
        if not job.is_wanted or job.future.done():
            return
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)

    try:
        job.loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return
