"""What a terminal is given to show: text that cannot steer it, and tables that keep every figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDEST = 10_000  # columns


def printable(text: str) -> str:
    r"""The text on one line, with escapes for what cannot be seen: control signs, and bytes of paths that are no text.

    >>> print(printable("a\x1b[31m\nb.jpg"))
    a\x1b[31m\nb.jpg
    """
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def print_table(table: Table, console: Console) -> None:
    """Print a table as wide as it is: where the terminal is narrower, lines are broken but no figure is left out."""
    needed = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    console.width = max(console.width, needed)
    console.print(table)
