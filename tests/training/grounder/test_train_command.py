"""What ``phrasechain train`` prints, and what it leaves behind when it refuses."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from phrasechain.cli import app
from phrasechain.core.errors import DataError
from phrasechain.data.dataset import load_examples
from phrasechain.data.regimes import chain_phrases
from phrasechain.model.checkpoint import find_checkpoint, read_model_info
from phrasechain.store.reader import FeatureStore
from phrasechain.store.writer import StoreWriter
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


def test_it_ends_with_the_score_and_the_command_that_evaluates(world: World, tmp_path: Path) -> None:
    """Which then runs as it stands; of a run that is finished already, too."""
    data, store = world
    found = train(world, tmp_path / "my run")
    assert found.stdout == f"{tmp_path / 'my run'}\n"
    *_, score, command = found.stderr.splitlines()
    best = read_model_info(find_checkpoint(tmp_path / "my run"))
    assert best.score is not None
    assert score.startswith(f"best on dev: {100 * best.score:.2f} % of the phrases right, ")
    assert score.endswith(f" % of caption 0 (step {best.step})")
    assert command == f"phrasechain evaluate '{tmp_path / 'my run'}' --data {data} --features {store} --split dev"
    assert CliRunner().invoke(app, shlex.split(command)[1:]).exit_code == 0
    assert train(world, tmp_path / "my run").stderr.splitlines() == [score, command]


@pytest.mark.parametrize(
    "settings",
    [("model.context=MM",), ("model.chain=false", "model.context=MM"), ("train.rate=1e30", "train.clip=0")],
)
def test_a_refused_run_leaves_nothing_behind(world: World, tmp_path: Path, settings: tuple[str, ...]) -> None:
    """Whether it is refused at once or fails at its second step: the corrected command finds an empty place."""
    assert isinstance(train(world, tmp_path / "run", settings=settings).exception, DataError)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert isinstance(train(world, tmp_path / "run", settings=settings).exception, DataError)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]
    assert train(world, tmp_path / "run").exit_code == 0


def test_a_run_that_fails_after_a_checkpoint_keeps_it(world: World, tmp_path: Path) -> None:
    settings = ("train.steps=4", "train.save_every=1")
    broken = ("data.limit=0", "train.rate=1e30", "train.clip=0")
    assert isinstance(train(world, tmp_path / "run", settings=(*settings, *broken)).exception, DataError)
    assert (tmp_path / "run" / "step-00000001").is_dir()


def test_images_that_a_store_lacks(world: World, tmp_path: Path) -> None:
    """They are refused, or left out and counted; when such a run is evaluated their phrases are wrong."""
    data, store = world[0], FeatureStore.open(world[1])
    fit, dev = (load_examples(data, split) for split in ("fit", "dev"))
    lacking = {fit[0].image, fit[1].image, dev[0].image}
    kept = [image for image in store if image not in lacking]
    part = tmp_path / "part"
    with StoreWriter(part, store.info) as writer:
        for image in kept:
            writer.add(store[image])
        writer.finish()
    refused = train((data, part), tmp_path / "run").exception
    assert "not in the store" in str(refused)
    assert str(refused).endswith("or leave images out with --missing skip")
    assert not (tmp_path / "run").exists()
    found = train((data, part), tmp_path / "run", "--missing", "skip")
    assert f"left out 2 of 8 images of fit, which {part} lacks\n" in found.stderr
    assert f"left out 1 of 4 images of dev, which {part} lacks\n" in found.stderr
    assert "learns from fit (6 images), keeps the checkpoint that is best on dev (3 images)\n" in found.stderr
    command = shlex.split(found.stderr.splitlines()[-1])[1:]
    assert command[-2:] == ["--missing", "skip"]
    evaluated = CliRunner().invoke(app, command)
    absent = sum(len(chain_phrases(caption, "gold")) for caption in dev[0].captions)
    assert f"{absent} of " in evaluated.output
    assert "phrases have no prediction: they count as wrong" in evaluated.output
    unknown = train(world, tmp_path / "run2", "--missing", "skp").exception
    assert "no treatment of missing images named 'skp'" in str(unknown)
    empty = tmp_path / "empty"
    with StoreWriter(empty, store.info) as writer:
        writer.add(replace(store["1000"], image="elsewhere"))
        writer.finish()
    refused = train((data, empty), tmp_path / "run2", "--missing", "skip").exception
    assert f"{empty}: has the regions of no image of 'fit' with a phrase" in str(refused)


def test_the_only_other_split_is_the_one_that_is_scored(world: World, tmp_path: Path) -> None:
    """By evaluate, by compare, and in the command that train ends with."""
    data, store = world
    images = (data / "train.txt").read_text().split()
    (data / "train.txt").write_text("\n".join(images[:9]))
    (data / "val.txt").write_text("\n".join(images[9:]))
    told = train(world, tmp_path / "run")
    assert told.stderr.endswith(f"--features {store} --split val\n")
    common = ["--data", str(data), "--features", str(store)]
    assert CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), *common]).exit_code == 0
    assert (tmp_path / "run" / "val-gold-viterbi" / "report.html").exists()
    values = [word for text in SMALL for word in ("--set", text)]
    rows = ["--row", "HL", "--seeds", "1", "--budget", "1", "--preset", "small", "--out", str(tmp_path / "tables")]
    told = CliRunner().invoke(app, ["compare", *common, *rows, *values, "--missing", "skip"])
    assert told.exit_code == 0, told.exception
    assert list((tmp_path / "tables").rglob("val-gold-viterbi"))
