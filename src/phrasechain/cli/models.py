"""For a researcher with models: ``train``, ``compare``, ``evaluate``, ``import-authors`` and ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phrasechain.cli.common import (
    ConfigFile,
    Device,
    FitOn,
    Missing,
    Plugins,
    Run,
    Settings,
    as_settings,
    load_plugins,
    say,
)
from phrasechain.core.errors import DataError
from phrasechain.core.files import json_bytes, require_writable, write_output
from phrasechain.core.terminal import printable

TrainingRecipe = Annotated[
    str | None, typer.Option(help="The training: fast, paper, ban …; by default that of the preset.")
]


def train(
    data: Annotated[Path, typer.Option(metavar="DATA", help="A folder in the official layout, or a .jsonl file.")],
    features: Annotated[Path, typer.Option(metavar="STORE", help="The regions of its images.")],
    out: Run,
    start: Annotated[
        str | None,
        typer.Option(metavar="embedded|FOLDER", help="Fine-tune this grounder: the embedded one, or that of a folder."),
    ] = None,
    boxes: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Learn from these photos as well: JSON lines with boxes of classes."),
    ] = None,
    fit_on: FitOn = None,
    preset: Annotated[
        str | None, typer.Option(help="The model: corrected (the default), small, paper or authors.")
    ] = None,
    recipe: TrainingRecipe = None,
    config: ConfigFile = None,
    settings: Settings = None,
    device: Device = "auto",
    tensorboard: Annotated[bool, typer.Option(help="Write scalars for TensorBoard too.")] = False,
    missing: Missing = "refuse",
    plugins: Plugins = None,
) -> None:
    """Train a grounding model; docs/training.md lists what can be set.

    Learns from five sixths of the train split and keeps the model that is best on the rest (--preset paper: from all of
    it, and by val). Run it again to resume after an interruption. With many processes: torchrun --nproc-per-node N -m
    phrasechain train …
    """
    from phrasechain.core.distributed import is_first_process
    from phrasechain.model.config import DEFAULT_PRESET, make_config
    from phrasechain.training.grounder.result import describe_result, evaluate_command
    from phrasechain.training.grounder.start import start_config, start_folder
    from phrasechain.training.grounder.task import train as run

    load_plugins(plugins)
    texts = [*as_settings(data__fit=fit_on, train__keep=fit_on and "last"), *(settings or ())]
    folder = None if start is None else start_folder(start)
    if folder is None:
        values = make_config(preset or DEFAULT_PRESET, recipe, config, texts)
    elif preset or recipe:
        raise DataError("--start keeps the model and the recipe of the grounder: leave --preset and --recipe out")
    else:
        values = start_config(folder, config, texts)
    run(data, features, out, values, device, tensorboard, missing, say, folder, boxes)
    if is_first_process():
        typer.echo(printable(str(out)))
        say(describe_result(out, values.data.dev))
        say(evaluate_command(out, data, features, values.data, missing, plugins or ()))


def compare(
    data: Annotated[Path, typer.Option(metavar="DATA", help="A folder in the official layout, or a .jsonl file.")],
    features: Annotated[Path, typer.Option(metavar="STORE", help="The regions of its images.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A folder for runs and tables, new or to resume.")],
    rows: Annotated[
        list[str] | None,
        typer.Option("--row", metavar="NAME", help="Only this row, or several with commas; may be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Seeds of each model of the first table.")] = 3,
    other_seeds: Annotated[int, typer.Option(min=1, max=100, help="Seeds of each other row.")] = 2,
    budget: Annotated[float | None, typer.Option(min=0.0, help="Passes over the data for every run.")] = None,
    split: Annotated[
        str | None, typer.Option(help="The part of the data to score; by default test, or the only one besides train.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="i/n", help="Only part i of n of the runs; without it, then, the tables.")
    ] = None,
    preset: Annotated[str, typer.Option(help="What the rows have in common: corrected, small, paper …")] = "corrected",
    recipe: TrainingRecipe = None,
    config: ConfigFile = None,
    settings: Settings = None,
    device: Device = "auto",
    missing: Missing = "refuse",
    plugins: Plugins = None,
) -> None:
    """Train and score the models of the paper on this data: its tables, figures and tests, in one folder.

    What is trained already is not trained again. Each row is trained once before any gets other seeds, and
    compare.md, compare.json, compare.html and the pictures are written anew after each run.
    """
    from phrasechain.core.distributed import is_first_process
    from phrasechain.data.dataset import open_dataset
    from phrasechain.data.photos import parse_shard
    from phrasechain.model.config import make_config
    from phrasechain.training.compare.figures import FigureMaker
    from phrasechain.training.compare.report import markdown, write_comparison
    from phrasechain.training.compare.runner import ComparisonRunner
    from phrasechain.training.compare.runner import compare as run
    from phrasechain.training.compare.tables import Tables

    load_plugins(plugins)
    split = split or open_dataset(data).split_to_score()
    given = [*(settings or ()), *([] if budget is None else [f"train.epochs={budget}", "train.steps=0"])]
    values = make_config(preset, recipe, config, given)
    chosen = {"preset": preset, "recipe": recipe, "config": config}
    shown = [*(f"{name} {value}" for name, value in chosen.items() if value is not None), *given]
    maker = FigureMaker()

    def note(tables: Tables, runner: ComparisonRunner) -> None:
        if is_first_process():
            write_comparison(tables, maker.figures(tables, runner), out)

    tables = run(
        data,
        features,
        out,
        values,
        rows=[name.strip() for row in rows or () for name in row.split(",")],
        seeds=seeds,
        other_seeds=other_seeds,
        split=split,
        settings=shown,
        device=device,
        part=None if shard is None else parse_shard(shard),
        note=note,
        say=say,
        missing=missing,
    )
    if tables is not None and is_first_process():
        typer.echo(markdown(tables))
        typer.echo(printable(str(out / "compare.html")), err=True)


def evaluate(
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|embedded|FILE.jsonl",
            help="A run, a checkpoint or the embedded grounder; or predictions, one phrase a line.",
        ),
    ],
    data: Annotated[Path, typer.Option(help="A folder in the official layout, or a .jsonl file.")],
    split: Annotated[
        str | None,
        typer.Option(help="The part of the data to score, or 'all'; by default test, or the only one besides train."),
    ] = None,
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
        typer.Option(help="A run's boxes: viterbi, smoothing, independent or consensus; by default as trained."),
    ] = None,
    box_regression: Annotated[bool, typer.Option(help="Whether a run's offsets move the boxes.")] = True,
    device: Annotated[str, typer.Option(help="Where a run is run: auto, cpu or cuda.")] = "auto",
    reading: Annotated[
        str, typer.Option(help="How the mark-up is read: corrected, or authors, as the code of the paper does.")
    ] = "corrected",
    convention: Annotated[
        str | None,
        typer.Option(help="The pixels of boxes: half_open, plus_one, raw or authors; by default as --reading has it."),
    ] = None,
    thresholds: Annotated[str, typer.Option(help="IoU thresholds, with commas; 0.5 is always there.")] = "0.5",
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples of the images.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For a run's predictions and reports, instead of its own folder."),
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="PATH", help="Write all figures as JSON.")] = None,
    html_path: Annotated[Path | None, typer.Option("--html", metavar="PATH", help="Write a report as HTML.")] = None,
    missing: Missing = "refuse",
    plugins: Plugins = None,
) -> None:
    """Score a run or predictions: every protocol with denominators and intervals, caption 0 and all captions.

    A run gets predictions.jsonl, report.json and report.html in a folder of its own for each split and way of asking;
    for the embedded grounder, that is in a folder named embedded where you are.
    """
    from rich.console import Console

    from phrasechain.data.dataset import open_to_score
    from phrasechain.evaluation.evaluate import Protocol, match_files, report_of
    from phrasechain.evaluation.examples import example_pictures
    from phrasechain.evaluation.report import print_report, report_dict, report_html
    from phrasechain.model.checkpoint import is_checkpoint
    from phrasechain.store.reader import FeatureStore

    load_plugins(plugins)
    require_writable(json_path, html_path)
    split = split or open_to_score(data, reading).split_to_score()
    convention = convention or ("authors" if reading == "authors" else "half_open")
    protocol = Protocol(regime, convention, _numbers("--thresholds", thresholds), resamples, seed, reading=reading)
    is_embedded = str(predictions) == "embedded" and not is_checkpoint(predictions)
    if is_embedded or predictions.is_dir():
        if features is None:
            raise DataError(f"{predictions}: a run needs --features STORE, the regions of the images of {data}")
        from phrasechain.core.distributed import is_first_process
        from phrasechain.evaluation.predict import predict_run
        from phrasechain.grounding.pretrained import find_folder

        predictions = predict_run(
            find_folder(None) if is_embedded else predictions,
            data,
            features,
            split,
            regime,
            decode,
            box_regression,
            reading,
            device,
            missing,
            out=out or predictions,
        )
        if not is_first_process():
            return
        json_path = json_path or predictions.with_name("report.json")
        html_path = html_path or predictions.with_name("report.html")
    store = None if features is None else FeatureStore.open(features)
    files = match_files(predictions, data, split, protocol, against)
    report = report_of(files, store)
    if json_path:
        write_output(json_path, json_bytes(report_dict(report)))
    if html_path:
        write_output(html_path, report_html(report, example_pictures(files)).encode())
    print_report(report, Console())


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise DataError(f"{option} takes numbers with commas between them, such as 0.3,0.5, not {text!r}") from None


def import_authors(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A checkpoint that the paper's authors released.")],
    features: Annotated[Path, typer.Option(metavar="STORE", help="Bottom-up-attention features, which it is for.")],
    out: Annotated[Path, typer.Option(metavar="CHECKPOINT", help="The folder to make; evaluate takes it.")],
    options: Annotated[
        Path | None, typer.Option(metavar="JSON", help="The options.json of its ELMo, if not the official one.")
    ] = None,
    chain: Annotated[
        bool | None, typer.Option(help="Whether it was trained with a chain (not HL and SL); by default as it says.")
    ] = None,
    box_regression: Annotated[
        bool | None, typer.Option(help="Whether it was trained to move boxes; by default as it says.")
    ] = None,
) -> None:
    """Write a checkpoint of the authors' code as one of ours, which computes the same.

    Every checkpoint has the weights of a chain and of box regression. The moments of its optimizer tell which of them
    were trained; without these, it is taken to have both unless --no-chain or --no-box-regression says otherwise.
    """
    from phrasechain.model.import_authors import import_authors as run

    heads = run(file, out, features, options, chain=chain, box_regression=box_regression)
    if not heads.is_known:
        chain_word, regression_word = ("with" if each else "without" for each in (heads.chain, heads.box_regression))
        taken = f"taken to be {chain_word} a chain and {regression_word} box regression"
        options_there = "--no-chain and --no-box-regression say otherwise"
        typer.echo(f"{printable(str(file))}: does not tell what was trained; {taken}; {options_there}", err=True)
    typer.echo(printable(str(out)))


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
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Take over this grounder's calibration: for a run that learnt from dev too."
        ),
    ] = None,
    missing: Missing = "refuse",
    plugins: Plugins = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the grounder that is in the folder.")] = False,
) -> None:
    """Make a grounder of a training run: a folder for ground --model and Grounder.from_pretrained.

    Weights are kept in float16, and probabilities are calibrated: of the phrases with 80 %, four in five are right.
    """
    from rich.console import Console

    from phrasechain.grounding.export import export as write
    from phrasechain.grounding.export import print_export

    load_plugins(plugins)
    found = write(
        run,
        data,
        features,
        out,
        split=split,
        decode=decode,
        regions=regions,
        finder=finder,
        calibration=calibration,
        missing=missing,
        force=force,
    )
    print_export(found, Console(), split)
    typer.echo(printable(str(out)))
