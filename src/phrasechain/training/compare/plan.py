"""Which runs a comparison needs, in which order, in which part of it, and how long they will still take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from phrasechain.core.errors import DataError, require_name
from phrasechain.data.photos import ShardNumber
from phrasechain.model.config import Config
from phrasechain.training.compare.rows import FIRST, ROWS, unavailable


class Job(NamedTuple):
    """A run: a row and a seed."""

    row: str
    seed: int

    def __str__(self) -> str:
        return f"{self.row} seed {self.seed}"


def choose_rows(base: Config, names: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    """The rows to train, by default all, and why the others of them are left out: the reason of each.

    A row that is asked for by name and cannot be trained is refused.
    """
    for name in names or ():
        require_name("row", name, ROWS)
        if reason := unavailable(name, base):
            raise DataError(f"row {name!r}: {reason}")
    wanted = [row for row in ROWS if row in names] if names else list(ROWS)
    reasons = {row: reason for row in wanted if (reason := unavailable(row, base))}
    return [row for row in wanted if row not in reasons], reasons


def plan_jobs(rows: Sequence[str], seeds: int, other_seeds: int, part: ShardNumber | None = None) -> list[Job]:
    """Every row once, then the other seeds: ``seeds`` of the rows of Table 1 and ``other_seeds`` of the others.

    Of several shards each takes every n-th run, so that all of them are at seed 0 first.

    >>> [str(job) for job in plan_jobs(["SL", "SL-CCRF M+LR"], 2, 1)]
    ['SL seed 0', 'SL-CCRF M+LR seed 0', 'SL seed 1']
    """
    count = {row: seeds if row in FIRST else other_seeds for row in rows}
    jobs = [Job(row, seed) for seed in range(max(seeds, other_seeds)) for row in rows if seed < count[row]]
    return jobs if part is None else jobs[part.number - 1 :: part.count]


def seconds_left(jobs: Sequence[Job], took: dict[Job, float]) -> float | None:
    """The time that these jobs will take, from the jobs that are done: of the same row where there is one.

    >>> seconds_left([Job("SL", 1), Job("BAN", 0)], {Job("SL", 0): 10.0, Job("HL", 0): 30.0})
    30.0
    """
    if not took:
        return None
    by_row = {row: mean(seconds for job, seconds in took.items() if job.row == row) for row, _ in took}
    return sum(by_row.get(job.row, mean(took.values())) for job in jobs)


def duration(seconds: float) -> str:
    """
    >>> [duration(seconds) for seconds in (7.4, 200, 5 * 3600 + 59)]
    ['7 s', '3 min', '5 h 1 min']
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
