"""The interface of the importers: the images of a file one by one, decoded lazily."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions


@dataclass(frozen=True, slots=True)
class Entry:
    """One image of a feature file. ``load`` decodes it, and raises a ``DataError`` if it is broken."""

    where: str  # the file, and the line or row in it
    image: str | None  # None where it cannot be read
    load: Callable[[], Regions]
    position: int  # progress, in the units of EntrySource.total


@dataclass(frozen=True, slots=True)
class EntrySource:
    """The images of one or more feature files, streamed."""

    entries: Iterator[Entry]
    total: int


def broken_entry(where: str, reason: str, position: int) -> Entry:
    """An entry without an id that cannot be parsed: loading it raises the reason."""

    def fail() -> NoReturn:
        raise DataError(reason)

    return Entry(where, None, fail, position)
