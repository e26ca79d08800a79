"""One progress bar for every long job: on the terminal's stderr, silent where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")


def progress_bar(shown: bool = True) -> Progress:
    """A bar with a count and an estimate of the time left; stdout stays free for data.

    Of many processes that work together one shows it.
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
    """Yield the items while a bar shows how many have gone by."""
    with progress_bar() as bar:
        yield from bar.track(items, total=total, description=description)


@contextmanager
def quiet_library(logging: Any) -> Iterator[None]:
    """Keep the warnings of transformers (this is its ``logging``) away, and its bars where there is no terminal."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if bars and not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
