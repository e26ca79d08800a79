"""What several commands have: options, and the summary that those over many images print at the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from phrasechain.core.terminal import print_table, printable

Run = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run's folder, new or to resume.")]
Preset = Annotated[str, typer.Option(help="Settings to begin with.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="TOML", help="A file of other settings.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="section.key=value", help="Another setting; may be repeated.")
]
FitOn = Annotated[
    str | None,
    typer.Option(
        metavar="SPLIT",
        help="Learn from this split instead of five sixths of train; train: all of it, to the last step.",
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="MODULE", help="A module with parts of one's own, see docs/extending.md."),
]
Missing = Annotated[str, typer.Option(help="Images that the store lacks: refuse, or skip to do without them.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def as_settings(**values: object) -> list[str]:
    """``section.key=value`` texts of options that stand for a setting, named ``section__key``, where they are given.

    >>> as_settings(train__epochs=3, train__seed=None)
    ['train.epochs=3']
    """
    return [f"{name.replace('__', '.')}={value}" for name, value in values.items() if value is not None]


def load_plugins(names: list[str] | None) -> None:
    """Import the modules that the user names."""
    if names:
        from phrasechain.baselines.plugins import load_plugin

        for name in names:
            load_plugin(name)


def limit_spinning() -> None:
    """Let OpenMP's threads spin for a moment only while they wait, then sleep; before torch is imported.

    Threads that spin take the time that others need: beside other work, a grounding takes many times as long. Threads
    that sleep at once are slow to wake: on an idle machine a new photo takes a third longer. Where the user has chosen
    a policy nothing is set.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # some tens of microseconds; GNU's runtime, torch's on Linux
        os.environ["OMP_WAIT_POLICY"] = "passive"  # for other runtimes


def say(line: str) -> None:
    """Print a line about the work on stderr, apart from its result; of many processes, the first does."""
    from phrasechain.core.distributed import is_first_process

    if is_first_process():
        typer.echo(printable(line), err=True)


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
