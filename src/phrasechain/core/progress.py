"""One progress bar for every long job: on the terminal's stderr, silent where there is no terminal.

A training, which may take days, prints a line now and then instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
#: Shows how many steps are done, and a text about them.
ShowStep = Callable[[int, str], None]
LINE_SECONDS = 30.0  # between two lines where there is no terminal


def progress_bar(shown: bool = True) -> Progress:
    """A bar with a count and the estimated time left, on stderr; stdout stays free for data.

    With several processes, only one passes ``shown=True``.
    """
    from rich.console import Console  # imported here: whoever shows no bar starts faster
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not (shown and sys.stderr.isatty()),
    )


def track(items: Iterable[T], total: int, description: str) -> Iterator[T]:
    """Yield the items and advance a progress bar."""
    with progress_bar() as bar:
        yield from bar.track(items, total=total, description=description)


@contextmanager
def step_progress(total: int, done: int, shown: bool = True) -> Iterator[ShowStep]:
    """What shows the steps of a training: a bar, or off a terminal a line every half minute and at the end."""
    if not shown:
        yield lambda step, text: None
    elif sys.stderr.isatty():
        with progress_bar() as bar:
            task = bar.add_task("training", total=total, completed=done)
            yield lambda step, text: bar.update(task, completed=step, description=text)
    else:
        yield StepLines(total, done)


class StepLines:
    """Lines about the steps of a training on stderr, with the time that is left."""

    def __init__(self, total: int, done: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done, self.clock = total, done, clock
        self.start = self.last = clock()

    def __call__(self, step: int, text: str) -> None:
        now = self.clock()
        if step < self.total and now - self.last < LINE_SECONDS:
            return
        self.last = now
        left = (now - self.start) / (step - self.done) * (self.total - step)
        print(f"step {step:,} of {self.total:,}, {text}, {duration(left)} left", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """
    >>> [duration(seconds) for seconds in (0.4, 75, 5400, 200_000)]
    ['0 s', '1 min', '1.5 h', '2.3 days']
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
