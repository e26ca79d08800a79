"""One progress bar for every long job: on the terminal's stderr, silent where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")


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
