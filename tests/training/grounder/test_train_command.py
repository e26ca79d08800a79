"""What ``phrasechain train`` prints, and what it leaves behind when it refuses."""

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from phrasechain.cli import app
from tiny_grounding import SMALL, write_world

World = tuple[Path, Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return write_world(tmp_path / "world", images=12)


def train(world: World, run: Path, *options: str, preset: str = "small", settings: tuple[str, ...] = ()) -> Result:
    data, store = map(str, world)
    command = ["train", "--data", data, "--features", store, "--out", str(run), "--preset", preset, *options]
    for text in (*SMALL, "train.epochs=1", *settings):
        command += ["--set", text]
    return CliRunner().invoke(app, command)


def test_it_says_what_is_learnt_from(world: World, tmp_path: Path) -> None:
    """The preset of the paper learns from all of train, and chooses by val."""
    found = train(world, tmp_path / "run")
    assert found.stdout == f"{tmp_path / 'run'}\n"
    assert "learns from fit (8 images), keeps the checkpoint that is best on dev (4 images)\n" in found.stderr
    data = world[0]
    images = (data / "train.txt").read_text().split()
    (data / "train.txt").write_text("\n".join(images[:9]))
    (data / "val.txt").write_text("\n".join(images[9:]))
    words = ("text.encoder=words", "train.steps=2")
    found = train(world, tmp_path / "paper", preset="paper", settings=words)
    assert "learns from train (9 images), keeps the checkpoint that is best on val (3 images)\n" in found.stderr
