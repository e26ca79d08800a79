"""For someone with marked-up captions: ``train-finder``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phrasechain.cli.common import ConfigFile, Preset, Run, Settings, as_settings
from phrasechain.core.terminal import printable


def train_finder(
    sentences: Annotated[
        Path, typer.Option("--sentences", metavar="TSV", help="Marked-up captions, a line each, plain or gzipped.")
    ],
    out: Run,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DATA", help="A dataset whose val, dev and test are held out.")
    ] = None,
    vectors: Annotated[Path | None, typer.Option(metavar="FILE", help="Word vectors to begin with (GloVe).")] = None,
    preset: Preset = "default",
    config: ConfigFile = None,
    settings: Settings = None,
    epochs: Annotated[int | None, typer.Option(help="train.epochs: passes over the captions [1].")] = None,
    seed: Annotated[int | None, typer.Option(help="train.seed: of weights, order and ways of writing [0].")] = None,
    limit: Annotated[int | None, typer.Option(help="data.limit: only the first N captions.")] = None,
) -> None:
    """Train the phrase finder on marked-up captions; docs/phrases.md lists what can be set.

    5,000 images are held out and scored. Run it again to resume after an interruption.
    """
    from phrasechain.core.settings import make_settings, with_texts
    from phrasechain.training.finder.settings import FinderSettings
    from phrasechain.training.finder.task import train_finder as run

    given = as_settings(train__epochs=epochs, train__seed=seed, data__limit=limit)
    values = with_texts(make_settings(FinderSettings(), config, preset=preset), given, where="")  # not of a --set
    values = with_texts(values, settings or ())
    typer.echo(printable(str(run(sentences, out, data, vectors, values))))
