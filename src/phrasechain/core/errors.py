"""Errors that a user can mend: one line that says what is wrong, where, and what to do.

The command line prints the line and exits with status 2; a traceback is a bug.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from textwrap import shorten


class PhrasechainError(Exception):
    """Something the user gave cannot be used."""


class DataError(PhrasechainError, ValueError):
    """A file or a value from outside is broken, missing or does not fit the rest."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist: what there is, and the nearest one.

    >>> unknown_name("split", "tset", ["train", "test"])
    "no split named 'tset'; there are: train, test (did you mean 'test'?)"
    """
    names = list(known)
    nearest = get_close_matches(name, names, n=1)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    return f"no {kind} named {name!r}; there are: {', '.join(names)}{hint}"


def one_line(error: BaseException) -> str:
    """What an exception of a library says, short and on one line; its kind where it says nothing."""
    return shorten(str(error), 300, placeholder=" …") or type(error).__name__
