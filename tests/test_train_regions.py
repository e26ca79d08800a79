"""A tiny run on made-up photos: it learns, it is the same after a kill, and it refuses what it must."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from official_layout import write_image
from phrasechain.data.dataset import is_dev
from phrasechain.errors import DataError
from phrasechain.train_regions import CHECKPOINT, Recipe, rate_at, read_metrics, train_regions

sys.path.insert(0, str(Path(__file__).parent / "vision"))
from published import random_weights

RECIPE = Recipe(dimension=8, size=64, anchors=2, head_epochs=1, epochs=2, batch=4, rare_word=1, checkpoint_steps=3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-odd photos of one bright rectangle each, in the official layout."""
    root = tmp_path_factory.mktemp("data")
    chance = np.random.default_rng(0)
    ids = [str(number) for number in range(1000, 1040)]
    ids = [name for name in ids if not is_dev(name)][:22] + [name for name in ids if is_dev(name)][:2]
    for name in ids:
        x, y = chance.integers(5, 45, 2).tolist()
        box = (x, y, x + 39, y + 29)
        write_image(root, name, "[/EN#1/other A box] here .\n", [(["1"], [box], {})])
        pixels = np.zeros((80, 100, 3), np.uint8)
        pixels[y - 1 : y + 29, x - 1 : x + 39] = 255
        Image.fromarray(pixels).save(root / "images" / f"{name}.jpg")
    (root / "train.txt").write_text("".join(f"{name}\n" for name in ids))
    return root


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
    assert lines[-2]["score"] < lines[0]["score"]
    assert (finished.parent / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((finished.parent / "config.json").read_text())["seed"] == RECIPE.seed


def test_a_finished_run_is_left_alone(finished: Path, data: Path, start: Path) -> None:
    before = finished.stat().st_mtime_ns
    assert train_regions(data, finished.parent, start, RECIPE) == finished
    assert finished.stat().st_mtime_ns == before


def test_a_killed_run_ends_as_if_it_had_not_been(finished: Path, data: Path, start: Path, tmp_path: Path) -> None:
    """A process is really killed after its first checkpoint; the next one goes on to the same weights."""
    run = tmp_path / "killed"
    program = (
        "import sys; from pathlib import Path; from phrasechain import train_regions as t;"
        "data, out, start = map(Path, sys.argv[1:4]);"
        "t.train_regions(data, out, start, t.Recipe(**__import__('json').loads(sys.argv[4])))"
    )
    recipe = json.dumps({name: getattr(RECIPE, name) for name in RECIPE.__slots__})
    with subprocess.Popen([sys.executable, "-c", program, *map(str, (data, run, start)), recipe]) as process:
        while not (run / CHECKPOINT).exists():
            assert process.poll() is None, "the run ended before its first checkpoint"
        os.kill(process.pid, signal.SIGKILL)
    assert not (run / "regions.safetensors").exists()
    again = train_regions(data, run, start, RECIPE)
    one, other = load_file(finished), load_file(again)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    steps = [line["step"] for line in read_metrics(run) if "score" in line]
    assert steps == list(range(1, 11))


def test_another_recipe_is_refused(finished: Path, data: Path, start: Path) -> None:
    with pytest.raises(DataError, match="another dimension, seed; choose another folder"):
        train_regions(data, finished.parent, start, Recipe(**{**_as_dict(RECIPE), "seed": 1, "dimension": 9}))


def _as_dict(recipe: Recipe) -> dict[str, int]:
    return {name: getattr(recipe, name) for name in recipe.__slots__}


def test_weights_that_are_none_are_refused(data: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "x.pth"
    wrong.write_bytes(b"no weights")
    with pytest.raises(DataError, match=r"x\.pth: not the published weights"):
        train_regions(data, tmp_path / "a", wrong, RECIPE)
    torch.save({"other": torch.zeros(1)}, wrong)
    with pytest.raises(DataError, match=r"x\.pth: not the published weights of EfficientNet-Lite0"):
        train_regions(data, tmp_path / "b", wrong, RECIPE)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        train_regions(data, tmp_path / "c", tmp_path / "absent.pth", RECIPE)


def test_a_broken_checkpoint_is_named(finished: Path, data: Path, start: Path, tmp_path: Path) -> None:
    run = tmp_path / "broken"
    run.mkdir()
    (run / "config.json").write_bytes((finished.parent / "config.json").read_bytes())
    (run / CHECKPOINT).write_bytes(b"\x00" * 40)
    with pytest.raises(DataError, match=r"checkpoint\.safetensors: broken checkpoint"):
        train_regions(data, run, start, RECIPE)


def test_the_rate_rises_and_falls() -> None:
    rates = [rate_at(step / 100) for step in range(101)]
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(1)
    assert 0 < peak < 10
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(0.01)
