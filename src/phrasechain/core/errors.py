"""Errors that a user can fix: one line that says what is wrong, where, and what to do.

The command line prints the line and exits with status 2; a traceback is a bug.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from textwrap import shorten


class PhrasechainError(Exception):
    """The user's input cannot be used."""


class DataError(PhrasechainError, ValueError):
    """An input file or value is broken, missing or inconsistent with the others."""


class UnknownNameError(DataError):
    """A name that nothing here bears; a plugin may."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name: the known names, and the closest match.

    >>> unknown_name("split", "tset", ["train", "test"])
    "no split named 'tset'; there are: train, test (did you mean 'test'?)"
    """
    names = list(known)
    nearest = get_close_matches(name, names, n=1)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    return f"no {kind} named {name!r}; there are: {', '.join(names)}{hint}"


def require_name(kind: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is none of the known ones."""
    if name not in known:
        raise UnknownNameError(unknown_name(kind, name, known))


@contextmanager
def located(where: object) -> Iterator[None]:
    """Put ``where`` (a file, or a file and line) before the message of a ``DataError``."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """The door to a library that reads an untrusted file: whatever it raises becomes ``problem: its message``.

    It stands around calls of the library alone. Values that the library returns are checked outside of it, so that
    what is wrong in our own code is not taken for a broken file.
    """
    try:
        yield
    except DataError:
        raise
    except MemoryError:
        raise DataError(f"{problem}: does not fit into the memory that is left") from None
    except Exception as error:
        raise DataError(f"{problem}: {one_line(error)}") from None


def one_line(error: BaseException) -> str:
    """A library exception's message, shortened to one line; its type where it has no message."""
    return shorten(str(error), 300, placeholder=" …") or type(error).__name__
