"""The summary that commands over many images print at the end."""

from __future__ import annotations

from pathlib import Path

import typer

from phrasechain.core.terminal import print_table, printable


def print_counts(unit: str, out: Path, counts: dict[str, int], skipped: list[str]) -> None:
    """Print what went into a store, and on stderr what was skipped; exits with status 1 if anything was."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(unit, "count", title=escape(printable(str(out))))
    table.columns[1].justify = "right"
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    print_table(table, Console())
    say_skipped(skipped)


def say_skipped(skipped: list[str]) -> None:
    for problem in skipped:
        typer.echo(f"skipped {printable(problem)}", err=True)
    if skipped:
        raise typer.Exit(1)
