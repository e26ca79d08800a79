"""Terminal output: text without control sequences, and tables that are never truncated."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDEST = 10_000  # columns


def printable(text: str) -> str:
    r"""The text on one line; control characters and undecodable bytes of paths are escaped.

    >>> print(printable("a\x1b[31m\nb.jpg"))
    a\x1b[31m\nb.jpg
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def print_table(table: Table, console: Console) -> None:
    """Print a table at its full width: a narrower terminal wraps the lines, but no figure is dropped."""
    needed = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    console.width = max(console.width, needed)
    console.print(table)
