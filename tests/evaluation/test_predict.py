"""What a run predicts, counted in two ways, and the command from a run to a report."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from phrasechain import cli
from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.data.dataset import load_examples
from phrasechain.data.regimes import chain_phrases
from phrasechain.evaluation.evaluate import Protocol, evaluate_file
from phrasechain.evaluation.predict import InferenceOptions, count_right, decode_examples, predict_run, predictions_file
from phrasechain.evaluation.predictions import read_predictions
from phrasechain.model.batch import collate_annotated
from phrasechain.model.checkpoint import load_checkpoint
from phrasechain.model.targets import merged_boxes
from phrasechain.store.reader import FeatureStore
from phrasechain.training.grounder.task import train
from tiny_grounding import tiny_config, write_world

World = tuple[Path, Path]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHRASECHAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return write_world(tmp_path_factory.mktemp("world"), images=24)


@pytest.fixture(scope="module")
def run(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not quite trained, so that some answers are wrong."""
    return train(*world, tmp_path_factory.mktemp("runs") / "run", tiny_config("train.epochs=4"))


@pytest.mark.parametrize("decode", ["viterbi", "smoothing", "independent", "consensus"])
def test_the_evaluator_counts_the_same(world: World, run: Path, decode: str) -> None:
    """The trainer's count and the evaluator's, which reads the predictions' file, have nothing in common but boxes."""
    file = predict_run(run, *world, "train", decode=decode)
    report = evaluate_file(file, world[0], "train", Protocol(resamples=10))
    assert report.warnings == ()
    means = [section.figure("accuracy at IoU 0.5", "merged box") for section in report.sections]
    examples, store = load_examples(world[0], "train"), FeatureStore.open(world[1])
    counts = count_right(load_checkpoint(run).model, examples, store, decode)
    assert counts.tolist() == [[mean.sum, mean.total] for mean in means]
    assert 0 < counts[1, 0] < counts[1, 1]


def test_predictions_are_the_models(world: World, run: Path) -> None:
    """Phrase by phrase against a batch of one caption, in both regimes; without offsets boxes are regions."""
    examples, store, model = load_examples(world[0], "dev"), FeatureStore.open(world[1]), load_checkpoint(run).model
    for regime in ("gold", "all"):
        files = [predict_run(run, *world, "dev", regime, box_regression=moved) for moved in (True, False)]
        assert files[0] == predictions_file(run, "dev", InferenceOptions(regime))
        found = list(read_predictions(files[0]))
        wanted = [
            (example.image, caption.index, phrase.start, phrase.end)
            for example in examples
            for caption in example.captions
            for phrase in chain_phrases(caption, regime)
        ]
        assert [prediction.key for prediction in found] == wanted
        by_key = {prediction.key: prediction for prediction in found}
        caption = examples[0].captions[1]
        batch, _ = collate_annotated([(examples[0], caption)], store, regime)
        with torch.no_grad():
            ((_, _, decoded),) = decode_examples(
                model, [replace(examples[0], captions=(caption,))], store, InferenceOptions(regime)
            )
        for row, phrase in enumerate(chain_phrases(caption, regime)):
            prediction = by_key[examples[0].image, 1, phrase.start, phrase.end]
            np.testing.assert_allclose(prediction.box, decoded.boxes[row], atol=2e-3)
            best = decoded.probabilities[row].argsort(descending=True)
            np.testing.assert_allclose(prediction.region_boxes, decoded.refined[row, best], atol=2e-3)
            np.testing.assert_allclose(prediction.probabilities, decoded.probabilities[row, best], atol=2e-6)
        assert len(batch.spans) == len(chain_phrases(caption, regime))
        tiles = {tuple(box) for box in store[examples[0].image].boxes.tolist()}
        assert all(prediction.box in tiles for prediction in read_predictions(files[1]))


def test_more_images_at_once_change_nothing(world: World, run: Path) -> None:
    examples, store, model = load_examples(world[0], "dev"), FeatureStore.open(world[1]), load_checkpoint(run).model
    found = [
        torch.cat(
            [
                decoded.boxes
                for _, _, decoded in decode_examples(model, examples, store, InferenceOptions(), images_at_once=count)
            ]
        )
        for count in (1, 3, 100)
    ]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-3)
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-3)
    golds = torch.cat(
        [merged_boxes(each) for _, each, _ in decode_examples(model, examples, store, InferenceOptions())]
    )
    assert (iou_xyxy(found[0], golds) >= 0.5).any()


def test_other_features_and_weights_that_are_broken(world: World, run: Path, tmp_path: Path) -> None:
    other = write_world(tmp_path, images=2)[1]
    with pytest.raises(DataError, match=r"image 1\d+: not in the store .*more images\); extract the regions of these"):
        predict_run(run, world[0], other, "dev")
    header = json.loads((other / "store.json").read_text())
    (other / "store.json").write_text(json.dumps(header | {"weights_sha256": "cd" * 32}))
    with pytest.raises(DataError, match="trained with abababababab…"):
        predict_run(run, world[0], other, "dev")
    model = load_checkpoint(run).model
    with torch.no_grad():
        model.pairs.heads.bias.fill_(torch.inf)
    with pytest.raises(DataError, match="scores are not finite; its weights are broken"):
        list(decode_examples(model, load_examples(world[0], "dev"), FeatureStore.open(world[1]), InferenceOptions()))
    examples = load_examples(world[0], "dev")
    regions = {image: FeatureStore.open(world[1])[image] for image in (example.image for example in examples)}
    image = examples[1].image
    regions[image] = replace(regions[image], features=np.full_like(regions[image].features, np.nan))
    with pytest.raises(DataError, match=f"image {image}: its region features are not finite"):
        list(decode_examples(load_checkpoint(run).model, examples, regions, InferenceOptions()))


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> object:
    monkeypatch.setattr(sys, "argv", ["phrasechain", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0


def test_the_commands(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Train and evaluate as a user does."""
    data, features = world
    common = ("--data", data, "--features", features)
    small = [text for setting in ("text.dimension=4", "model.lstm=4", "model.rank=4", "model.joint=4", "train.steps=2")
             for text in ("--set", setting)]  # fmt: skip
    run = tmp_path / "run"
    assert command(monkeypatch, "train", *common, "--out", run, "--preset", "small", *small) == 0
    assert capsys.readouterr().out == f"{run}\n"
    assert command(monkeypatch, "evaluate", run, *common, "--split", "dev", "--resamples", "10") == 0
    assert "accuracy at IoU 0.5" in capsys.readouterr().out
    made = run / "dev-gold-viterbi"
    assert {path.name for path in made.iterdir()} == {"predictions.jsonl", "report.json", "report.html"}
    other = ("--decode", "smoothing", "--regime", "all", "--no-box-regression", "--json", tmp_path / "x.json")
    against = ("--against", made / "predictions.jsonl")
    assert command(monkeypatch, "evaluate", run, *common, "--split", "dev", "--resamples", "10", *other, *against) == 0
    assert "points over the other file" in capsys.readouterr().out
    assert (run / "dev-all-smoothing-unmoved" / "predictions.jsonl").exists()
    assert json.loads((tmp_path / "x.json").read_text())["protocol"]["regime"] == "all"
    elsewhere = ("--split", "dev", "--resamples", "10", "--out", tmp_path / "elsewhere")
    assert command(monkeypatch, "evaluate", run, *common, *elsewhere) == 0
    same = tmp_path / "elsewhere" / "dev-gold-viterbi" / "predictions.jsonl"
    assert same.read_bytes() == (made / "predictions.jsonl").read_bytes()
    capsys.readouterr()
    assert command(monkeypatch, "evaluate", "embedded", *common, "--split", "dev") == 2  # features of another network
    assert "256" in capsys.readouterr().err


def test_one_process_needs_no_accelerate(
    world: World, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "accelerate"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    arguments = ("evaluate", run, "--data", world[0], "--features", world[1], "--split", "dev", "--resamples", "10")
    assert command(monkeypatch, *arguments) == 0
    assert "accuracy at IoU 0.5" in capsys.readouterr().out
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert command(monkeypatch, *arguments) == 2
    assert "many processes need accelerate: pip install" in capsys.readouterr().err


_EVALUATE = "evaluate RUN --data DATA --features STORE --split dev"
_TRAIN = "train --data DATA --features STORE --out NEW"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("evaluate RUN --data DATA", "run: a run needs --features STORE, the regions of the images of DATA"),
        ("evaluate RUN --data DATA --features STORE", "no split named 'test'; there are: train, fit, dev"),
        ("evaluate DATA --data DATA --features STORE", "neither a checkpoint nor a run that has one"),
        (f"{_EVALUATE} --decode x", "no decoder named"),
        (f"{_EVALUATE} --regime x", "no regime named"),
        (f"{_TRAIN} --set model.rnak=3", "mean 'model.rank'"),
        (f"{_TRAIN} --preset smal", "no preset named 'smal'"),
        (f"{_TRAIN} --device cuda", "torch finds no GPU here"),
        ("train --data DATA --features NEW --out NEW", "not a region store"),
        ("train --data NEW --features STORE --out NEW", "no such file or folder"),
        ("compare --data DATA --features STORE --out NEW --row LS", "no row named 'LS'"),
    ],
)
def test_what_is_refused(
    world: World,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    message: str,
) -> None:
    """One line that names what, and nothing is left behind."""
    places = {"RUN": run, "DATA": world[0], "STORE": world[1], "NEW": tmp_path / "new"}
    assert command(monkeypatch, *(places.get(argument, argument) for argument in arguments.split())) == 2
    error = capsys.readouterr().err
    for name, place in places.items():
        error = error.replace(str(place), name if name == "DATA" else str(place))
    assert error.count("\n") == 1
    assert message in error
    assert not (tmp_path / "new").exists()
