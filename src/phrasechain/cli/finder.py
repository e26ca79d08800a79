"""For someone with marked-up captions: ``train-finder``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phrasechain.core.terminal import printable


def train_finder(
    sentences: Annotated[
        Path, typer.Option("--sentences", metavar="TSV", help="Marked-up captions, a line each, plain or gzipped.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="RUN", help="The run's folder, new or to go on with.")],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DATA", help="A dataset whose val, dev and test are held out.")
    ] = None,
    vectors: Annotated[Path | None, typer.Option(metavar="FILE", help="Word vectors to begin with (GloVe).")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the captions.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, order and ways of writing.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N captions.")] = None,
) -> None:
    """Train the phrase finder on marked-up captions.

    5,000 images are held out and scored. Run it again to go on after an interruption.
    """
    from phrasechain.training.finder.task import Recipe
    from phrasechain.training.finder.task import train_finder as run

    weights = run(sentences, out, data, vectors, Recipe(epochs=epochs, seed=seed), limit)
    typer.echo(printable(str(weights)))
