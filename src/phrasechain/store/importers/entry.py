"""What every reader of foreign feature files gives: the images one by one, decoded only when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions


@dataclass(frozen=True, slots=True)
class Entry:
    """One image of a foreign file. ``load`` decodes it, and raises a ``DataError`` if it is broken."""

    where: str  # the file, and the line or row in it
    image: str | None  # None where it is too broken to tell
    load: Callable[[], Regions]
    position: int  # how much of the whole has been read, in the units of EntrySource.total


@dataclass(frozen=True, slots=True)
class EntrySource:
    """The images of some foreign files, streamed."""

    entries: Iterator[Entry]
    total: int


def broken_entry(where: str, reason: str, position: int) -> Entry:
    """An entry that cannot be told from its neighbours: loading it says why."""

    def fail() -> NoReturn:
        raise DataError(reason)

    return Entry(where, None, fail, position)
