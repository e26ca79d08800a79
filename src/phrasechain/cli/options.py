"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Option("--out", metavar="RUN", help="The run's folder, new or to resume.")]
Preset = Annotated[str, typer.Option(help="Settings to begin with.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="TOML", help="A file of other settings.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="section.key=value", help="Another setting; may be repeated.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


def as_settings(**values: object) -> list[str]:
    """``section.key=value`` texts of options that stand for a setting, named ``section__key``, where they are given.

    >>> as_settings(train__epochs=3, train__seed=None)
    ['train.epochs=3']
    """
    return [f"{name.replace('__', '.')}={value}" for name, value in values.items() if value is not None]
