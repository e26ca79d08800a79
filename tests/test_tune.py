"""Tuning end to end on made-up photos: the chain's loss reaches the pixels, and a run survives being stopped."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from phrasechain import Grounder
from phrasechain.checkpoint import find_checkpoint, load_checkpoint
from phrasechain.cli.root import app
from phrasechain.config import make_config
from phrasechain.data.dataset import load_examples
from phrasechain.data.photos import find_photos
from phrasechain.errors import DataError
from phrasechain.extract import extract
from phrasechain.region_recipe import GOING_ON, Recipe
from phrasechain.run_folder import read_metrics
from phrasechain.train import train
from phrasechain.train_regions import train_regions
from phrasechain.tune import REGIONS, Together, Tuning, _read_teacher, _Views, tune
from phrasechain.vision.extractor import RegionExtractor, as_input
from phrasechain.vision.teacher import WEIGHTS
from phrasechain.vision.weights import load_network
from phrasechain.vision.words import build_vocabulary
from published import random_weights
from tiny_photos import write_dataset

RECIPE = Recipe(dimension=8, size=64, anchors=2, head_epochs=1, epochs=2, batch=4, rare_word=1)
TUNING = Tuning(epochs=2, batch=4, checkpoint_steps=3)
MODEL = ["text.dimension=8", "model.lstm=8", "model.rank=8", "model.joint=8", "train.epochs=1", "train.batch=8"]


class Begun(NamedTuple):
    data: Path
    regions: Path
    run: Path


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """A dataset, regions that were trained on it, and a grounder on their features."""
    root = tmp_path_factory.mktemp("begun")
    data = write_dataset(root / "data")
    torch.save(random_weights(), root / "start.pth")
    weights = train_regions(data, root / "regions", root / "start.pth", RECIPE)
    extract(find_photos([data])[0], root / "store", RegionExtractor.from_pretrained(weights))
    train(data, root / "store", root / "run", make_config("small", settings=MODEL))
    return Begun(data, root / "regions", root / "run")


@pytest.fixture(scope="module")
def finished(begun: Begun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tune(*begun, tmp_path_factory.mktemp("runs") / "whole", TUNING)


def test_a_run_leaves_two_networks_that_belong_together(begun: Begun, finished: Path) -> None:
    lines = read_metrics(finished)
    assert [line["step"] for line in lines if "grounding" in line] == list(range(1, 11))
    assert sum("dev accuracy" in line for line in lines) == TUNING.epochs
    tuned, before = load_checkpoint(finished), load_checkpoint(begun.run)
    assert tuned.card.regions.weights_sha256 == load_network(finished / REGIONS).sha256
    assert tuned.card.trained is not None
    assert tuned.card.trained["tuning"]["epochs"] == 2
    assert not torch.equal(tuned.model.pairs.v.weight, before.model.pairs.v.weight)
    old, new = load_network(begun.regions / REGIONS).network, load_network(finished / REGIONS).network
    assert not torch.equal(old.trunk.late[0][0].project.weight, new.trunk.late[0][0].project.weight)
    assert torch.equal(old.trunk.stem.weight, new.trunk.stem.weight)


def test_the_chain_teaches_the_pixels(begun: Begun) -> None:
    """Without the teacher's losses there is a gradient in the trunk still, and none where nothing learns."""
    fit = load_examples(begun.data, "fit")
    vocabulary = build_vocabulary(fit, 1)
    teacher, _ = _read_teacher(begun.regions, vocabulary, TUNING)
    both = Together(teacher, load_checkpoint(begun.run).model).train()
    pixels, lessons, examples = _Views(fit, vocabulary, TUNING, 64)[0]
    losses = both(as_input(pixels), lessons, examples)
    assert losses.keys() == WEIGHTS.keys() | {"grounding", "boxes"}
    losses["grounding"].backward()
    trunk = teacher.network.trunk
    assert trunk.stem.weight.grad is None
    assert trunk.late[0][0].project.weight.grad.abs().sum() > 0
    assert both.grounder.pairs.v.weight.grad.abs().sum() > 0
    assert teacher.say.weight.grad is None


def test_a_network_that_has_gone_on_is_taken_up_as_it_was_saved(begun: Begun, tmp_path: Path) -> None:
    """Without batch norms, with its averaged weights."""
    recipe = replace(GOING_ON, epochs=2, batch=4, rare_word=1)
    weights = train_regions(begun.data, tmp_path / "further", begun.regions / REGIONS, recipe)
    vocabulary = build_vocabulary(load_examples(begun.data, "fit"), 1)
    teacher, sha256 = _read_teacher(weights.parent, vocabulary, TUNING)
    saved = load_file(weights)
    state = teacher.network.state_dict()
    assert state.keys() == saved.keys() - {"sides"}
    assert all(torch.equal(weight.half(), saved[name]) for name, weight in state.items())
    assert sha256 == load_network(weights).sha256


def test_batch_norms_keep_their_statistics(begun: Begun, finished: Path) -> None:
    before, after = (load_file(folder / "checkpoint.safetensors") for folder in (begun.regions, finished))
    names = [name.removeprefix("weights.") for name in before if "running" in name or "batches" in name]
    assert len(names) > 10
    assert all(torch.equal(before[f"weights.{name}"], after[f"weights.teacher.{name}"]) for name in names)


def test_a_run_that_stopped_ends_as_if_it_had_not(
    begun: Begun, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = _Views.__getitem__

    def broken(self: _Views, step: int) -> object:
        return DataError("a photo is gone") if step == 7 else views(self, step)

    monkeypatch.setattr(_Views, "__getitem__", broken)
    with pytest.raises(DataError, match="a photo is gone"):
        tune(*begun, tmp_path / "run", TUNING)
    assert not (tmp_path / "run" / REGIONS).exists()
    monkeypatch.undo()
    tune(*begun, tmp_path / "run", TUNING)
    assert (tmp_path / "run" / REGIONS).read_bytes() == (finished / REGIONS).read_bytes()
    one, other = (load_checkpoint(folder).model.state_dict() for folder in (tmp_path / "run", finished))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [line["step"] for line in read_metrics(tmp_path / "run") if "grounding" in line] == list(range(1, 11))


def test_a_run_that_stopped_while_it_wrote_its_end_writes_it_again(
    begun: Begun, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("phrasechain.tune.point_to", full)
    with pytest.raises(OSError, match="no space left"):
        tune(*begun, tmp_path / "run", TUNING)
    monkeypatch.undo()
    tune(*begun, tmp_path / "run", TUNING)
    assert (tmp_path / "run" / REGIONS).read_bytes() == (finished / REGIONS).read_bytes()
    scores = [line["dev accuracy"] for line in read_metrics(finished) if "dev accuracy" in line]
    assert load_checkpoint(tmp_path / "run").card.score == scores[-1]


def test_views_without_a_phrase_teach_the_chain_nothing(begun: Begun) -> None:
    fit = load_examples(begun.data, "fit")
    vocabulary = build_vocabulary(fit, 1)
    both = Together(_read_teacher(begun.regions, vocabulary, TUNING)[0], load_checkpoint(begun.run).model).train()
    pixels, lessons, examples = _Views(fit, vocabulary, TUNING, 64)[0]
    silent = [replace(example, captions=()) for example in examples]
    losses = both(as_input(pixels), lessons, silent)
    assert (losses["grounding"], losses["boxes"]) == (0, 0)
    sum(losses.values()).backward()


def test_another_grounder_or_other_photos_are_refused(begun: Begun, finished: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(find_checkpoint(begun.run), other)
    weights = {name: tensor + 1 for name, tensor in load_file(other / "model.safetensors").items()}
    save_file(weights, other / "model.safetensors", {"format": "phrasechain model 1"})
    with pytest.raises(DataError, match="a run with another grounder; choose another folder"):
        tune(begun.data, begun.regions, other, finished, TUNING)
    with pytest.raises(DataError, match=r"learnt from other photos than those of .*; give the same, limited as then"):
        tune(*begun, tmp_path / "run", TUNING, limit=5)


def test_a_finished_run_is_left_alone(begun: Begun, finished: Path) -> None:
    before = (finished / REGIONS).stat().st_mtime_ns
    assert tune(*begun, finished, TUNING) == finished
    assert (finished / REGIONS).stat().st_mtime_ns == before
    with pytest.raises(DataError, match="a run with another seed; choose another folder"):
        tune(*begun, finished, replace(TUNING, seed=1))


def test_a_grounder_of_other_regions_is_refused(begun: Begun, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="trained with other regions than those of"):
        tune(begun.data, begun.regions, finished, tmp_path / "run", TUNING)


def test_regions_without_their_teacher_are_refused(begun: Begun, tmp_path: Path) -> None:
    for name in (REGIONS, "config.json"):
        (tmp_path / name).write_bytes((begun.regions / name).read_bytes())
    with pytest.raises(DataError, match=r"checkpoint\.safetensors: there is no such file; give the folder of a run"):
        tune(begun.data, tmp_path, begun.run, tmp_path / "run", TUNING)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "config.json: cannot be read: No such file or directory"),
        ("{}", "config.json: not the configuration of a run of train-regions"),
        ("[", "config.json: not the configuration of a run of train-regions"),
    ],
)
def test_what_is_no_run_of_regions_is_refused(begun: Begun, tmp_path: Path, text: str | None, problem: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(DataError, match=f"{problem}$"):
        tune(begun.data, tmp_path, begun.run, tmp_path / "run", TUNING)


def test_a_tuned_run_is_a_grounder(begun: Begun, finished: Path) -> None:
    """It looks at photos with its own regions."""
    photo = load_examples(begun.data, "dev")[0].path
    (found,) = Grounder.from_pretrained(finished).ground(photo, "A box here.", phrases=["A box"]).phrases
    assert found.text == "A box"


def test_the_command_says_where_the_run_is(begun: Begun, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ["tune", str(begun.run), "--data", str(begun.data), "--regions", str(begun.regions), "--out", str(out)]
    answer = CliRunner().invoke(app, [*arguments, "--epochs", "1", "--limit", "1000"])
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.strip() == str(out)
    assert json.loads((out / "config.json").read_text())["epochs"] == 1


def test_the_recipe_is_kept(finished: Path) -> None:
    assert json.loads((finished / "config.json").read_text())["gamma"] == TUNING.gamma
