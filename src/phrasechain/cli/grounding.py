"""For someone with photos and sentences: ``ground``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phrasechain.cli.common import Plugins, limit_spinning, load_plugins, print_counts, say_skipped
from phrasechain.core.files import write_output
from phrasechain.core.terminal import printable

if TYPE_CHECKING:
    from phrasechain.grounding.captions import CaptionedPhoto
    from phrasechain.grounding.grounder import Grounder
    from phrasechain.grounding.requests import GroundOptions, GroundRequest


def ground(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="IMAGE… CAPTION", help="Photos or folders of them, then a caption in quotes."),
    ] = None,
    phrases: Annotated[
        list[str] | None,
        typer.Option(
            "--phrase", metavar="TEXT", help="A phrase of the caption; may be repeated. Without it they are found."
        ),
    ] = None,
    captions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Many images and captions; then IMAGE… is where the images are."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="PNG", help="The picture, by default NAME.grounded.png; - is stdout; of many, a folder."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON and nothing else; a picture only with --out.")
    ] = False,
    decode: Annotated[
        str | None, typer.Option(help="viterbi, smoothing, independent or consensus; by default the model's best.")
    ] = None,
    min_probability: Annotated[
        float | None,
        typer.Option(help="Phrases that are less probably in the photo get no box; by default as the model says."),
    ] = None,
    alternatives: Annotated[bool, typer.Option("--alternatives", help="Show the next best boxes too.")] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Show each phrase decided alone beside all decided jointly, by the same decoder."
        ),
    ] = False,
    model: Annotated[
        str | None, typer.Option(metavar="FOLDER|HUB_ID", help="Another model than the embedded one.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N captions.")] = None,
    shard: Annotated[str | None, typer.Option(metavar="i/n", help="Only the images of part i of n.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    plugins: Plugins = None,
) -> None:
    """Find what the phrases of a caption name in a photo: a picture with a box for each, and a table or JSON.

    Of many photos or captions the results go into a folder; run it again to resume after an interruption. See
    docs/grounding.md. Exit status: 0 all done, 1 some failed, 2 stopped.
    """
    limit_spinning()
    from phrasechain.core.memory import collector_paused

    with collector_paused():
        from phrasechain.data.photos import parse_shard
        from phrasechain.grounding.requests import STDOUT, GroundOptions, output_path, read_request

    load_plugins(plugins)
    options = GroundOptions(decode, alternatives, compare, min_probability)
    part = None if shard is None else parse_shard(shard)
    request = read_request(arguments or (), captions, phrases or (), out).first(limit, part)
    path = output_path(request, out, as_json)
    grounder = _grounder(model, device)
    if request.is_single:
        _ground_one(
            grounder, request.pairs[0], options, path, as_json, to_stdout=out == STDOUT, is_named=out is not None
        )
    else:
        _ground_many(grounder, request, options, path, as_json)


def _grounder(model: str | None, device: str) -> Grounder:
    from phrasechain.grounding.grounder import Grounder

    return Grounder.from_pretrained(model, device=device)


def _ground_one(
    grounder: Grounder,
    pair: CaptionedPhoto,
    options: GroundOptions,
    path: Path | None,
    as_json: bool,
    *,
    to_stdout: bool,
    is_named: bool,
) -> None:
    import json

    from rich.console import Console

    from phrasechain.grounding.ground import ANIMATED, NO_PHRASES, ground_one, print_result

    found = ground_one(grounder, pair, options)
    png = found.picture(options.alternatives) if found.has_phrases and (path or to_stdout) else None
    if found.is_animated():
        typer.echo(f"{printable(pair.image)}: {ANIMATED}", err=True)
    if not found.has_phrases:
        typer.echo(found.grounding.hint or NO_PHRASES, err=True)
    if png and path:
        write_output(path, png, follow=is_named)
    if png and to_stdout:
        sys.stdout.buffer.write(png)
    elif as_json:
        typer.echo(json.dumps(found.to_dict(), allow_nan=False))
    elif found.has_phrases:
        print_result(found, options, Console())
        typer.echo(printable(str(path)))


def _ground_many(
    grounder: Grounder, request: GroundRequest, options: GroundOptions, out: Path | None, as_json: bool
) -> None:
    import json

    from phrasechain.grounding.ground import ANIMATED, GroundReport, ground_many

    for warning in request.warnings:
        typer.echo(printable(warning), err=True)
    report = GroundReport(problems=request.problems)
    for record in ground_many(grounder, request.pairs, options, report, out):
        if as_json:
            typer.echo(json.dumps(record, allow_nan=False))
    for image in report.animated:
        typer.echo(f"{printable(image)}: {ANIMATED}", err=True)
    if out is None or as_json:
        say_skipped(report.problems)
        return
    counts = {
        "grounded": report.grounded,
        "without phrases": report.without_phrases,
        "already there": report.already_there,
        "repeated": report.repeated,
        "skipped": len(report.problems),
    }
    print_counts("captions", out, counts, report.problems)
