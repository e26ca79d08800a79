"""The queue: bounded, batched, and no job suffers from another."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from threading import Event

import pytest
import torch

from phrasechain.web.errors import ApiError
from phrasechain.web.work_queue import WorkQueue


@asynccontextmanager
async def held(workers: int = 1, size: int = 100) -> AsyncIterator[tuple[WorkQueue, Event]]:
    """A queue whose only thread is busy until the event is set."""
    queue, begun, free = WorkQueue(workers, size), Event(), Event()

    def wait(_: Sequence[None]) -> list[None]:
        begun.set()
        free.wait()
        return [None]

    first = asyncio.create_task(queue.run(wait, None))
    await asyncio.to_thread(begun.wait)
    try:
        yield queue, free
    finally:
        free.set()
        await first
        await asyncio.to_thread(queue.close)


def test_jobs_of_a_kind_are_done_together() -> None:
    seen: list[list[int]] = []

    def double(values: Sequence[int]) -> list[int]:
        seen.append(list(values))
        assert torch.get_num_threads() == 1
        return [2 * value for value in values]

    async def run() -> list[int]:
        async with held() as (queue, free):
            jobs = [asyncio.create_task(queue.run(double, number, number % 2)) for number in range(40)]
            await asyncio.sleep(0)
            assert (queue.waiting, queue.running) == (40, 1)
            free.set()
            return await asyncio.gather(*jobs)

    assert asyncio.run(run()) == [2 * number for number in range(40)]
    assert [len(values) for values in seen] == [16, 16, 4, 4]
    assert all(len({value % 2 for value in values}) == 1 for values in seen)


def test_a_job_without_a_kind_is_alone_and_a_failure_is_its_own() -> None:
    def invert(values: Sequence[float]) -> list[float]:
        return [1 / value for value in values]

    async def run() -> list[float | BaseException]:
        async with held() as (queue, free):
            jobs = [asyncio.create_task(queue.run(invert, number, "kind")) for number in (1, 0, 4)]
            jobs.append(asyncio.create_task(queue.run(invert, 0)))
            await asyncio.sleep(0)
            free.set()
            return await asyncio.gather(*jobs, return_exceptions=True)

    one, failed, quarter, also = asyncio.run(run())
    assert (one, quarter) == (1.0, 0.25)
    assert isinstance(failed, ZeroDivisionError)
    assert isinstance(also, ZeroDivisionError)


def test_one_too_many_is_refused() -> None:
    async def run() -> None:
        async with held(size=2) as (queue, _):
            jobs = [asyncio.create_task(queue.run(list, number)) for number in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(ApiError, match="2 requests are waiting already") as caught:
                await queue.run(list, 3)
            assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "1"})
            for job in jobs:
                job.cancel()

    asyncio.run(run())


def test_whoever_stops_waiting_leaves_the_queue() -> None:
    done: list[int] = []

    def note(values: Sequence[int]) -> Sequence[int]:
        done.extend(values)
        return values

    async def run() -> None:
        async with held() as (queue, free):
            gone, stays = (asyncio.create_task(queue.run(note, number)) for number in (1, 2))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            assert queue.waiting == 1
            free.set()
            assert await stays == 2

    asyncio.run(run())
    assert done == [2]


def test_what_waits_at_the_end_is_told() -> None:
    async def run() -> None:
        async with held() as (queue, free):
            job = asyncio.create_task(queue.run(list, 1))
            await asyncio.sleep(0)
            closing = asyncio.create_task(asyncio.to_thread(queue.close))
            with pytest.raises(ApiError, match="shutting down"):
                await job
            free.set()
            await closing
            with pytest.raises(ApiError, match="shutting down"):
                await queue.run(list, 2)

    asyncio.run(run())
