"""The command line. Commands import what they run inside their bodies: --help answers without torch."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from phrasechain import __version__
from phrasechain.errors import DataError, PhrasechainError, unknown_name
from phrasechain.files import reason, require_writable, write_output
from phrasechain.terminal import print_table, printable

if TYPE_CHECKING:
    from phrasechain.data.captions import Pair
    from phrasechain.ground import Manner, Wanted
    from phrasechain.predict import Grounder

BENCHMARKS = ("chain", "step", "ground")
INTERRUPTED = 130  # the status that typer makes of Ctrl-C

app = typer.Typer(
    help="Finds, for every noun phrase of a caption, the region of the image that it names.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"phrasechain {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
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
    alternatives: Annotated[bool, typer.Option("--alternatives", help="Show the next best boxes too.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show each phrase decided alone beside all decided jointly.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(metavar="FOLDER|HUB_ID", help="Another model than the embedded one.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N captions.")] = None,
    shard: Annotated[str | None, typer.Option(metavar="i/n", help="Only the images of part i of n.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Find what the phrases of a caption name in a photo: a picture with a box for each, and a table or JSON.

    Of many photos or captions the answers go into a folder; run it again to go on after an interruption. See
    docs/grounding.md. Exit status: 0 all done, 1 some failed, 2 stopped.
    """
    from phrasechain.data.photos import parse_part
    from phrasechain.ground import STDOUT, Manner, output_path, wanted

    manner = Manner(decode, alternatives, compare)
    part = None if shard is None else parse_part(shard)
    asked = wanted(arguments or (), captions, phrases or (), out).first(limit, part)
    path = output_path(asked, out, as_json)
    grounder = _grounder(model, device)
    if asked.is_single:
        _ground_one(grounder, asked.pairs[0], manner, path, as_json, to_stdout=out == STDOUT)
    else:
        _ground_many(grounder, asked, manner, path, as_json)


def _grounder(model: str | None, device: str) -> Grounder:
    from phrasechain.predict import Grounder

    return Grounder.from_pretrained(model, device=device)


def _ground_one(
    grounder: Grounder, pair: Pair, manner: Manner, path: Path | None, as_json: bool, to_stdout: bool
) -> None:
    import json

    from rich.console import Console

    from phrasechain.ground import NO_PHRASES, answer, is_animated, picture, print_answer

    found = answer(grounder, pair, manner)
    png = picture(pair.path, found, manner) if found.has_phrases and (path or to_stdout) else None
    if is_animated(pair.path):
        typer.echo(f"{printable(pair.image)}: an animation; its first frame is looked at", err=True)
    if not found.has_phrases:
        typer.echo(NO_PHRASES, err=True)
    if png and path:
        write_output(path, png)
    if png and to_stdout:
        sys.stdout.buffer.write(png)
    elif as_json:
        typer.echo(json.dumps(found.to_dict(), allow_nan=False))
    elif found.has_phrases:
        print_answer(found, manner, Console())
        typer.echo(printable(str(path)))


def _ground_many(grounder: Grounder, asked: Wanted, manner: Manner, out: Path | None, as_json: bool) -> None:
    import json

    from phrasechain.ground import GroundReport, ground_many

    report = GroundReport(problems=asked.problems)
    for record in ground_many(grounder, asked.pairs, manner, report, out):
        if as_json:
            typer.echo(json.dumps(record, allow_nan=False))
    if out is None or as_json:
        _say_skipped(report.problems)
        return
    counts = {
        "grounded": report.grounded,
        "without phrases": report.without_phrases,
        "already there": report.already_there,
        "skipped": len(report.problems),
    }
    _print_counts("captions", out, counts, report.problems)


@app.command()
def check(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder in the official layout, or a .jsonl file.")],
    features: Annotated[
        Path | None, typer.Option(metavar="STORE", help="Region features: also say how they cover the phrases.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw the histograms of the paper's Figure 2 into this file.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Write all figures as JSON.")] = None,
) -> None:
    """Say what a dataset holds, and what is missing or broken.

    Exit status: 0 the data can be used, 1 it cannot, 2 it cannot even be opened.
    """
    import json

    from rich.console import Console

    from phrasechain.check import check_dataset
    from phrasechain.check_report import check_dict, draw_figure, print_check

    require_writable(figure, json_path)
    report = check_dataset(data, features)
    if figure:
        write_output(figure, draw_figure(report))
    if json_path:
        write_output(json_path, json.dumps(check_dict(report), indent=1).encode() + b"\n")
    print_check(report, Console())
    if not report.is_usable:
        raise typer.Exit(1)


@app.command()
def train(
    data: Annotated[Path, typer.Option(metavar="DATA", help="A folder in the official layout, or a .jsonl file.")],
    features: Annotated[Path, typer.Option(metavar="STORE", help="The regions of its images.")],
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run's folder, new or to go on with.")],
    preset: Annotated[str, typer.Option(help="The model: corrected, small, paper or authors.")] = "corrected",
    recipe: Annotated[str | None, typer.Option(help="The training: fast or paper [as the preset has it].")] = None,
    config: Annotated[Path | None, typer.Option(metavar="TOML", help="A file of other values.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="section.key=value", help="Another value; may be repeated.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    tensorboard: Annotated[bool, typer.Option(help="Write scalars for TensorBoard too.")] = False,
) -> None:
    """Train a grounding model; docs/training.md lists what can be set.

    Learns from five sixths of the train split and keeps the model that is best on the rest. Run it again to go on after
    an interruption. With many processes: torchrun --nproc-per-node N -m phrasechain train …
    """
    from phrasechain.config import make_config
    from phrasechain.processes import is_first_process
    from phrasechain.train import train as run

    values = make_config(preset, recipe, config, settings or ())
    folder = run(data, features, out, values, device, tensorboard)
    if is_first_process():
        typer.echo(printable(str(folder)))


@app.command()
def compare(
    data: Annotated[Path, typer.Option(metavar="DATA", help="A folder in the official layout, or a .jsonl file.")],
    features: Annotated[Path, typer.Option(metavar="STORE", help="The regions of its images.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A folder for runs and tables, new or to go on with.")],
    rows: Annotated[
        list[str] | None, typer.Option("--row", metavar="NAME", help="Only this row; may be repeated [all].")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Seeds of each of the four models.")] = 3,
    budget: Annotated[float | None, typer.Option(min=0.0, help="Passes over the data for every run.")] = None,
    split: Annotated[str, typer.Option(help="The part of the data to score.")] = "test",
    preset: Annotated[str, typer.Option(help="What the rows have in common: corrected, small, paper …")] = "corrected",
    recipe: Annotated[str | None, typer.Option(help="The training: fast or paper [as the preset has it].")] = None,
    config: Annotated[Path | None, typer.Option(metavar="TOML", help="A file of other values.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="section.key=value", help="Another value; may be repeated.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Train and score the models of the paper's tables on this data, with tests, as Markdown, JSON and a picture.

    What is trained already is not trained again. Each row is trained once before any gets other seeds, and the tables
    are written anew after each run.
    """
    from phrasechain.compare import Tables
    from phrasechain.compare import compare as run
    from phrasechain.compare_report import markdown, write_comparison
    from phrasechain.config import make_config
    from phrasechain.processes import is_first_process

    given = [*(settings or ()), *([] if budget is None else [f"train.epochs={budget}", "train.steps=0"])]
    values = make_config(preset, recipe, config, given)
    chosen = {"preset": preset, "recipe": recipe, "config": config}
    shown = [*(f"{name} {value}" for name, value in chosen.items() if value is not None), *given]

    def note(tables: Tables) -> None:
        if is_first_process():
            write_comparison(tables, out)

    tables = run(
        data, features, out, values, rows=rows, seeds=seeds, split=split, settings=shown, device=device, note=note
    )
    note(tables)
    if is_first_process():
        typer.echo(markdown(tables))


@app.command()
def evaluate(
    predictions: Annotated[
        Path, typer.Argument(metavar="RUN|FILE.jsonl", help="A run or a checkpoint, or predictions, one phrase a line.")
    ],
    data: Annotated[Path, typer.Option(help="A folder in the official layout, or a .jsonl file.")],
    split: Annotated[str, typer.Option(help="The part of the data to score; 'all' for everything.")] = "test",
    against: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Other predictions: a paired test says who is better.")
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(metavar="STORE", help="Region features: a run's input, and what their regions allow at best."),
    ] = None,
    regime: Annotated[
        str, typer.Option(help="Which phrases the chains hold: gold (those with a box) or all.")
    ] = "gold",
    decode: Annotated[
        str | None,
        typer.Option(help="A run's boxes: viterbi, smoothing, independent or consensus [as it was trained]."),
    ] = None,
    box_regression: Annotated[bool, typer.Option(help="Whether a run's offsets move the boxes.")] = True,
    device: Annotated[str, typer.Option(help="Where a run is run: auto, cpu or cuda.")] = "auto",
    convention: Annotated[
        str, typer.Option(help="The pixels of the file's boxes: half_open, plus_one or raw.")
    ] = "half_open",
    thresholds: Annotated[str, typer.Option(help="IoU thresholds, with commas; 0.5 is always there.")] = "0.5",
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples of the images.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Write all figures as JSON.")] = None,
    html_path: Annotated[Path | None, typer.Option("--html", metavar="PATH", help="Write a report as HTML.")] = None,
) -> None:
    """Score a run or predictions: every protocol with denominators and intervals, caption 0 and all captions.

    A run gets predictions.jsonl, report.json and report.html in a folder of its own for each split and way of asking.
    """
    import json

    from rich.console import Console

    from phrasechain.evaluate import Protocol, evaluate_file
    from phrasechain.report import print_report, report_dict, report_html

    require_writable(json_path, html_path)
    protocol = Protocol(regime, convention, _numbers("--thresholds", thresholds), resamples, seed)
    if predictions.is_dir():
        if features is None:
            raise DataError(f"{predictions}: a run needs --features STORE, the regions of the images of {data}")
        from phrasechain.evaluate_run import predict_run
        from phrasechain.processes import is_first_process

        predictions = predict_run(predictions, data, features, split, regime, decode, box_regression, device=device)
        if not is_first_process():
            return
        json_path = json_path or predictions.with_name("report.json")
        html_path = html_path or predictions.with_name("report.html")
    report = evaluate_file(predictions, data, split, protocol, against, features)
    if json_path:
        write_output(json_path, json.dumps(report_dict(report), indent=1).encode() + b"\n")
    if html_path:
        write_output(html_path, report_html(report).encode())
    print_report(report, Console())


@app.command("import-authors")
def import_authors(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A checkpoint that the paper's authors released.")],
    features: Annotated[Path, typer.Option(metavar="STORE", help="Bottom-up-attention features, which it is for.")],
    out: Annotated[Path, typer.Option(metavar="CHECKPOINT", help="The folder to make; evaluate takes it.")],
    options: Annotated[
        Path | None, typer.Option(metavar="JSON", help="The options.json of its ELMo, if not the official one.")
    ] = None,
) -> None:
    """Write a checkpoint of the authors' code as one of ours, which computes the same."""
    from phrasechain.authors import import_authors as run

    run(file, out, features, options)
    typer.echo(printable(str(out)))


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise DataError(f"{option} takes numbers with commas between them, such as 0.3,0.5, not {text!r}") from None


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A training run, or one of its checkpoints.")],
    data: Annotated[Path, typer.Option(metavar="DATA", help="A folder in the official layout, or a .jsonl file.")],
    features: Annotated[Path, typer.Option(metavar="STORE", help="The regions of its images.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The grounder's folder.")],
    split: Annotated[str, typer.Option(help="Images to calibrate on, which the run has not learnt from.")] = "dev",
    decode: Annotated[
        str | None, typer.Option(help="viterbi, smoothing, independent or consensus; by default the best there.")
    ] = None,
    regions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The region network of the store, if not the embedded one.")
    ] = None,
    finder: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another phrase finder than the embedded one.")
    ] = None,
) -> None:
    """Make a grounder of a training run: a folder for ground --model and Grounder.from_pretrained.

    Weights are kept in float16, and probabilities are calibrated: of the phrases with 80 %, four in five are right.
    """
    from rich.console import Console

    from phrasechain.export import export as write
    from phrasechain.export import print_export

    found = write(run, data, features, out, split=split, decode=decode, regions=regions, finder=finder)
    print_export(found, Console())
    typer.echo(printable(str(out)))


@app.command("import-features")
def import_features(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Feature files, or a folder of npz files.")],
    out: Annotated[Path, typer.Option("--out", metavar="STORE", help="The store to make, or to go on with.")],
    format: Annotated[str, typer.Option("--format", help="auto, tsv, ban or ddpn.")] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", help="float16 or float32.")] = "float16",
    ids: Annotated[
        list[Path] | None,
        typer.Option("--ids", metavar="PICKLE", help="BAN's image ids, one for each file [NAME_imgid2idx.pkl]."),
    ] = None,
    on_error: Annotated[str, typer.Option("--on-error", help="What a broken image does: stop or skip.")] = "stop",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N images.")] = None,
    extractor: Annotated[
        str, typer.Option("--extractor", help="A name for what made the features.")
    ] = "bottom-up-attention",
) -> None:
    """Convert region features (bottom-up-attention TSV, BAN HDF5, DDPN npz) to a store.

    Run it again to go on after an interruption. Exit status: 0 all imported, 1 some images skipped, 2 stopped.
    """
    from phrasechain.data.features import import_features as run

    report = run(
        files, out, format=format, dtype=dtype, ids=ids or (), on_error=on_error, limit=limit, extractor=extractor
    )
    counts = {
        "written": report.written,
        "already there": report.already_there,
        "met again (first kept)": report.duplicates,
        "broken, skipped": report.skipped,
    }
    _print_counts("images", out, counts, report.problems)


def _print_counts(what: str, out: Path, counts: dict[str, int], skipped: list[str]) -> None:
    """Say what went into a store, and on stderr what did not; if there is such, end with status 1."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(what, "count", title=escape(printable(str(out))))
    table.columns[1].justify = "right"
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    print_table(table, Console())
    _say_skipped(skipped)


def _say_skipped(skipped: list[str]) -> None:
    for problem in skipped:
        typer.echo(f"skipped {printable(problem)}", err=True)
    if skipped:
        raise typer.Exit(1)


@app.command("train-regions")
def train_regions(
    data: Annotated[Path, typer.Option("--data", metavar="DATA", help="A folder in the official layout, with photos.")],
    out: Annotated[Path, typer.Option("--out", metavar="RUN", help="The run's folder, new or to go on with.")],
    start: Annotated[
        Path | None,
        typer.Option(metavar="PTH", help="ImageNet weights of EfficientNet-Lite0 [those of the extra 'train']."),
    ] = None,
    dimension: Annotated[int, typer.Option(min=1, max=4096, help="Features of a region.")] = 256,
    size: Annotated[int, typer.Option(min=64, max=2048, help="The side that photos are squashed to.")] = 384,
    anchors: Annotated[int, typer.Option(min=1, max=64, help="Anchors at each place of a map.")] = 9,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the photos.")] = 7,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, order and views.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N photos of each part.")] = None,
) -> None:
    """Train the region network on photos and the captions about them.

    Fits on five sixths of the train split and watches the rest. Run it again to go on after an interruption.
    """
    from phrasechain.train_regions import Recipe, published_weights
    from phrasechain.train_regions import train_regions as run

    heads = min(Recipe().head_epochs, epochs - 1)
    recipe = Recipe(dimension=dimension, size=size, anchors=anchors, head_epochs=heads, epochs=epochs, seed=seed)
    weights = run(data, out, start or published_weights(), recipe, limit)
    typer.echo(printable(str(weights)))


@app.command("train-finder")
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
    from phrasechain.train_finder import Recipe
    from phrasechain.train_finder import train_finder as run

    weights = run(sentences, out, data, vectors, Recipe(epochs=epochs, seed=seed), limit)
    typer.echo(printable(str(weights)))


@app.command()
def extract(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES…", help="Photos, folders of photos, or datasets.")],
    out: Annotated[Path, typer.Option("--out", metavar="STORE", help="The store to make, or to go on with.")],
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
        int | None, typer.Option(min=1, max=256, help="Photos worked on at once [one for each core].")
    ] = None,
) -> None:
    """Find the regions of photos and describe them: boxes and features into a store.

    Run it again to go on after an interruption. Exit status: 0 all done, 1 some photos skipped, 2 stopped.
    """
    from phrasechain.data.photos import find_photos, parse_part
    from phrasechain.extract import detected_boxes, given_boxes
    from phrasechain.extract import extract as run
    from phrasechain.vision.extractor import RegionExtractor

    if boxes is not None and proposals is not None:
        raise DataError("--boxes and --proposals both say which boxes: choose one")
    photos = find_photos(images, limit, parse_part(shard) if shard is not None else None)
    source = None if boxes is None else given_boxes(boxes)
    if proposals is not None:
        source = detected_boxes(proposals, regions)
    extractor = RegionExtractor.from_pretrained(weights, runtime)
    report = run(photos, out, extractor, count=regions, source=source, workers=workers)
    counts = {"written": report.written, "already there": report.already_there, "skipped": len(report.problems)}
    _print_counts("photos", out, counts, report.problems)


@app.command("merge-stores")
def merge_stores(
    stores: Annotated[list[Path], typer.Argument(metavar="STORE…", help="Finished stores that share no image.")],
    out: Annotated[Path, typer.Option("--out", metavar="STORE", help="The store to make, or to go on with.")],
) -> None:
    """Copy the parts that several machines wrote (--shard) into one store."""
    from phrasechain.data.store_writer import merge_stores as run

    typer.echo(f"{printable(str(out))}: {run(stores, out):,} images")


@app.command()
def bench(
    what: Annotated[str, typer.Argument(metavar="[chain|step|ground]", help="What to measure.")] = "chain",
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to measure each size.")] = 4.0,
    memory: Annotated[bool, typer.Option(help="Measure peak memory too.")] = True,
    growth: Annotated[bool, typer.Option(help="step: also with more regions, phrases and captions.")] = True,
    model: Annotated[
        str | None, typer.Option(metavar="FOLDER|HUB_ID", help="ground: another model than the embedded one.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Write all figures as JSON.")] = None,
) -> None:
    """Measure speed and memory, as ratios in one run against named peers and a floor."""
    import json

    from rich.console import Console

    require_writable(json_path)
    if what not in BENCHMARKS:
        raise DataError(unknown_name("benchmark", what, BENCHMARKS))
    found: dict[str, Any]
    if what == "chain":
        from phrasechain.bench import bench_chain, print_chain

        found, show = bench_chain(seconds=seconds, memory=memory), print_chain
    elif what == "ground":
        from phrasechain.bench_ground import bench_ground, print_ground

        found, show = bench_ground(model, seconds=seconds), print_ground
    else:
        from phrasechain.bench_step import bench_step, print_step

        found, show = bench_step(seconds=seconds, memory=memory, growth=growth), print_step
    if json_path:
        write_output(json_path, json.dumps(found, indent=1).encode() + b"\n")
    show(found, Console())


def main() -> None:
    """Run the command line; an error the user can mend is one line on stderr and status 2, an interrupt 130."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: no sign is worth a traceback
    try:
        app()
    except PhrasechainError as error:
        _stop(str(error), 2)
    except OSError as error:
        _stop(f"{error.filename}: {reason(error)}" if error.filename else reason(error), 2)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _stop("interrupted", INTERRUPTED)
        raise


def _stop(message: str, status: int) -> NoReturn:
    print(f"phrasechain: {printable(message)}", file=sys.stderr)
    sys.exit(status)
