"""A tiny run on made-up photos: it learns, it is the same after a kill, and it refuses what it must."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from official_layout import write_image
from phrasechain.core.errors import DataError
from phrasechain.data.dataset import load_examples
from phrasechain.regions.extractor import as_input
from phrasechain.regions.pixels import read_photo
from phrasechain.regions.trunk import Trunk, fold_published
from phrasechain.regions.weights import load_network
from phrasechain.training.regions.model import WEIGHTS
from phrasechain.training.regions.settings import GOING_ON, Recipe
from phrasechain.training.regions.task import _Run, train_regions
from phrasechain.training.resume import CHECKPOINT
from phrasechain.training.run_folder import read_metrics
from published import random_weights
from tiny_photos import write_dataset

RECIPE = Recipe(dimension=8, size=64, anchors=2, head_epochs=1, epochs=2, batch=4, rare_word=1, checkpoint_steps=3)
FURTHER = replace(GOING_ON, epochs=2, batch=4, rare_word=1, checkpoint_steps=3, deeper=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("start") / "weights.pth"
    torch.save(random_weights(), path)
    return path


@pytest.fixture(scope="module")
def finished(data: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_regions(data, tmp_path_factory.mktemp("runs") / "whole", start, RECIPE)


def test_a_run_leaves_weights_notes_and_curves(finished: Path) -> None:
    lines = read_metrics(finished.parent)
    assert [line["step"] for line in lines if "score" in line] == list(range(1, 11))
    assert sum("accuracy" in line for line in lines) == RECIPE.epochs
    losses = [sum(weight * line[name] for name, weight in WEIGHTS.items()) for line in lines if "score" in line]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert (finished.parent / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((finished.parent / "config.json").read_text())["seed"] == RECIPE.seed


def test_a_finished_run_is_left_alone(finished: Path, data: Path, start: Path) -> None:
    before = finished.stat().st_mtime_ns
    assert train_regions(data, finished.parent, start, RECIPE) == finished
    assert finished.stat().st_mtime_ns == before


def test_a_killed_run_ends_as_if_it_had_not_been(finished: Path, data: Path, start: Path, tmp_path: Path) -> None:
    """A process is really killed after its second checkpoint; the next one goes on to the same weights."""
    run = tmp_path / "killed"
    program = (
        "import sys; from pathlib import Path; from phrasechain.training.regions import task as t;"
        "data, out, start = map(Path, sys.argv[1:4]);"
        "t.train_regions(data, out, start, t.Recipe(**__import__('json').loads(sys.argv[4])))"
    )
    recipe = json.dumps({name: getattr(RECIPE, name) for name in RECIPE.__slots__})
    with subprocess.Popen([sys.executable, "-c", program, *map(str, (data, run, start)), recipe]) as process:
        while _checkpoint_step(run) < 6:  # the trunk has been learning since step 5
            assert process.poll() is None, "the run ended before its second checkpoint"
        os.kill(process.pid, signal.SIGKILL)
    assert not (run / "regions.safetensors").exists()
    again = train_regions(data, run, start, RECIPE)
    one, other = load_file(finished), load_file(again)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    steps = [line["step"] for line in read_metrics(run) if "score" in line]
    assert steps == list(range(1, 11))


def _checkpoint_step(run: Path) -> int:
    if not (run / CHECKPOINT).exists():
        return 0
    with safe_open(run / CHECKPOINT, "pt") as file:
        return int(file.metadata()["step"])


def test_early_stages_and_filters_stay_as_they_were_published(finished: Path) -> None:
    learnt, given = load_file(finished), fold_published(random_weights())
    kept = {name for name, weight in given.items() if torch.equal(learnt[f"trunk.{name}"], weight.half())}
    assert {name for name in given if ".filter." in name or name.startswith(("stem.", "early."))} <= kept
    assert "late.0.1.expand.weight" not in kept


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_kept_maps_are_those_of_the_trunk_as_it_will_be(
    precision: str, data: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without blocks left out, in either precision."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("phrasechain.training.regions.task._learn", stop)
    with pytest.raises(KeyboardInterrupt):
        train_regions(data, tmp_path / "run", start, replace(RECIPE, left_out=0.9, precision=precision))
    kept = load_file(min((tmp_path / "run" / "maps").iterdir()))["c4"][0].float()  # (S, S, C)
    trunk = Trunk().eval()
    trunk.load_state_dict(fold_published(random_weights()))
    example = load_examples(data, "fit")[0]
    assert example.path is not None
    with torch.inference_mode():
        expected = trunk(as_input(torch.from_numpy(read_photo(example.path, RECIPE.size).pixels)[None]))[1][0]
    apart = float((kept - expected.permute(1, 2, 0)).norm() / expected.norm())
    assert apart < (0.1 if precision == "bf16" else 1e-3)


def test_another_recipe_is_refused(finished: Path, data: Path, start: Path) -> None:
    with pytest.raises(DataError, match="another dimension, seed; choose another folder"):
        train_regions(data, finished.parent, start, replace(RECIPE, seed=1, dimension=9))


def test_weights_that_are_none_are_refused(data: Path, tmp_path: Path) -> None:
    """And the run folder is not begun, so that the mended command can have it."""
    wrong, run = tmp_path / "x.pth", tmp_path / "run"
    published = random_weights()
    for content in (
        b"no weights",
        b"",
        {"other": torch.zeros(1)},
        {name: tensor for name, tensor in published.items() if "_blocks.3." not in name},
        published | {"_conv_stem.weight": torch.zeros(16, 3, 3, 3)},
    ):
        if isinstance(content, bytes):
            wrong.write_bytes(content)
        else:
            torch.save(content, wrong)
        with pytest.raises(DataError, match=r"x\.pth: not the published weights") as caught:
            train_regions(data, run, wrong, RECIPE)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        train_regions(data, run, tmp_path / "absent.pth", RECIPE)
    assert not run.exists()


def test_a_broken_photo_is_named(data: Path, start: Path, tmp_path: Path) -> None:
    other = tmp_path / "data"
    shutil.copytree(data, other)
    photos = list((other / "images").iterdir())
    for photo in photos:
        photo.write_bytes(b"no photo")
    with pytest.raises(DataError, match=r"\.jpg: not an image of a known format") as caught:
        train_regions(other, tmp_path / "run", start, RECIPE)
    assert "\n" not in str(caught.value)
    photos[0].unlink()
    with pytest.raises(DataError, match=f"image {photos[0].stem}: there is no photo of it"):
        train_regions(other, tmp_path / "run", start, RECIPE)


def test_what_cannot_be_trained_is_refused(data: Path, start: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    write_image(empty, "1000", "[/EN#1/other A box] here .\n", photo=(10, 10))
    (empty / "train.txt").write_text("1000\n")
    with pytest.raises(DataError, match="there is nothing to learn from"):
        train_regions(empty, tmp_path / "run", start, RECIPE)
    with pytest.raises(DataError, match="of 2 epochs, 2 cannot be for the heads alone"):
        train_regions(data, tmp_path / "run", start, replace(RECIPE, head_epochs=2))
    with pytest.raises(DataError, match="no precision named 'bf61'; there are: float32, bf16"):
        train_regions(data, tmp_path / "run", start, replace(RECIPE, precision="bf61"))
    with pytest.raises(DataError, match=r"from 0 to below 1, not 1\.0"):
        train_regions(data, tmp_path / "run", start, replace(RECIPE, left_out=1.0))
    with pytest.raises(DataError, match="multiple of 32, not 65"):
        train_regions(data, tmp_path / "run", start, replace(RECIPE, size=65))


def test_a_broken_checkpoint_is_named(finished: Path, data: Path, start: Path, tmp_path: Path) -> None:
    run = tmp_path / "broken"
    run.mkdir()
    (run / "config.json").write_bytes((finished.parent / "config.json").read_bytes())
    (run / CHECKPOINT).write_bytes(b"\x00" * 40)
    with pytest.raises(DataError, match=r"checkpoint\.safetensors: broken checkpoint"):
        train_regions(data, run, start, RECIPE)


@pytest.fixture(scope="module")
def further(finished: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_regions(data, tmp_path_factory.mktemp("runs") / "further", finished, FURTHER)


def test_a_network_that_has_learnt_goes_on(finished: Path, further: Path) -> None:
    """With its own shape, the same parts of its trunk kept, and towards the average of its weights."""
    before, after = load_file(finished), load_file(further)
    assert before.keys() == after.keys()
    assert torch.equal(before["sides"], after["sides"])
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert {name for name in before if ".filter." in name or name.startswith(("trunk.stem.", "trunk.early."))} <= kept
    assert not kept & {"trunk.late.0.1.expand.weight", "describe.feature.weight", "propose.0.say.weight"}
    state = load_file(further.parent / CHECKPOINT)
    name = "network.region_head.feature.weight"
    assert not torch.equal(state[f"more.{name}"], state[f"weights.{name}"])
    assert torch.equal(after["describe.feature.weight"], state[f"more.{name}"].half())


def test_words_learn_alone_at_first(finished: Path, data: Path, tmp_path: Path) -> None:
    """What a network knows is not spoilt by words that mean nothing yet."""
    known = load_network(finished).network.state_dict()
    run = tmp_path / "run"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("phrasechain.training.regions.task.score", stop)  # asked for after the first epoch
        with pytest.raises(KeyboardInterrupt):
            train_regions(data, run, finished, replace(FURTHER, checkpoint_steps=1))
    state = load_file(run / CHECKPOINT)
    for name, weight in known.items():
        assert torch.equal(state[f"weights.network.{name}"], weight), name
    assert state["weights.phrase.weight"].abs().max() > 0  # they begin at nothing


def test_later_weights_count_more_in_the_average(finished: Path, data: Path, tmp_path: Path) -> None:
    """In proportion to their step, of those in which all weights learn."""
    learn, seen = _Run.learn, []

    def watched(run: _Run, *lesson: Any) -> dict[str, float]:
        losses = learn(run, *lesson)
        seen.append(run.teacher.network.region_head.feature.weight.detach().clone())
        return losses

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Run, "learn", watched)
        weights = train_regions(data, tmp_path / "run", finished, FURTHER)
    shares = torch.arange(1.0, 6) + 1  # of steps 6 to 10; that before them, step 5, has a share of 1 too
    known = seen[4] + sum(share * weight for share, weight in zip(shares, seen[5:], strict=True))
    expected = known / (1 + shares.sum())
    torch.testing.assert_close(load_file(weights)["describe.feature.weight"].float(), expected, rtol=2e-3, atol=1e-4)


def test_a_run_that_goes_on_and_is_stopped_ends_as_if_it_had_not_been(
    finished: Path, further: Path, data: Path, tmp_path: Path
) -> None:
    learn = _Run.learn

    def broken(run: _Run, *lesson: Any) -> dict[str, float]:
        if run.step == 8:
            raise KeyboardInterrupt
        return learn(run, *lesson)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Run, "learn", broken)
        with pytest.raises(KeyboardInterrupt):
            train_regions(data, tmp_path / "run", finished, FURTHER)
    assert train_regions(data, tmp_path / "run", finished, FURTHER).read_bytes() == further.read_bytes()


def test_a_network_that_is_none_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"no network")
    with pytest.raises(DataError, match=r"x\.safetensors: broken region network") as caught:
        train_regions(data, tmp_path / "run", tmp_path / "x.safetensors", FURTHER)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
