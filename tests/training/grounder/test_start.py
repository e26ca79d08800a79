"""Fine-tuning: a run that starts from a grounder's weights, and what such a run refuses."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from phrasechain import cli
from phrasechain.core.errors import DataError
from phrasechain.model.checkpoint import read_run_state
from phrasechain.model.config import Config
from phrasechain.training.grounder.start import FINE_TUNE, start_config, start_folder
from phrasechain.training.grounder.task import train
from phrasechain.training.log import read_metrics
from tiny_grounding import last_weights, tiny_config, write_world

CONFIG = tiny_config("train.epochs=6", "model.dropout=0.1", "loss.unlabelled=marginalise", "data.unboxed=0.5")
World = tuple[Path, Path]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHRASECHAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Another few images."""
    return write_world(tmp_path_factory.mktemp("other"), images=12, seed=1)


@pytest.fixture(scope="module")
def run(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(*world, tmp_path_factory.mktemp("runs") / "first", CONFIG)


def test_the_config_is_that_of_the_grounder(run: Path) -> None:
    """Its model, loss and decoder; the rate and the length are those of fine-tuning, and what is given wins."""
    config = start_config(start_folder(str(run)), texts=["train.epochs=2"])
    assert (config.model, config.text, config.loss, config.decode) == (
        CONFIG.model,
        CONFIG.text,
        CONFIG.loss,
        CONFIG.decode,
    )
    assert config.data == replace(Config().data, unboxed=0.5)
    assert config.train == replace(CONFIG.train, rate=FINE_TUNE["train.rate"], epochs=2.0)


def test_the_embedded_grounder_can_be_started_from() -> None:
    config = start_config(start_folder("embedded"))
    assert config.model.transition == "geometric"
    assert config.loss.targets == "refined"
    assert config.train.rate == FINE_TUNE["train.rate"]


def test_training_starts_with_the_weights_and_the_vocabulary(run: Path, other: World, tmp_path: Path) -> None:
    """At a rate of next to nothing they stay, though other captions have other words."""
    folder = start_folder(str(run))
    tuned = train(*other, tmp_path / "tuned", start_config(folder, texts=["train.rate=1e-12"]), start=folder)
    before, after = load_file(folder / "model.safetensors"), last_weights(tuned)
    assert before.keys() == after.keys()
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=1e-6)
    words = [json.loads((each / "text.json").read_text()) for each in (folder, start_folder(str(tuned)))]
    assert words[0] == words[1]


def test_it_begins_better_than_anew(run: Path, other: World, tmp_path: Path) -> None:
    """The first loss of a fine-tuned model is below that of a new one, since both worlds name colours alike."""
    folder = start_folder(str(run))
    tuned = train(*other, tmp_path / "tuned", start_config(folder, texts=["train.epochs=1"]), start=folder)
    new = train(*other, tmp_path / "new", CONFIG)
    losses = [next(line["loss"] for line in read_metrics(each) if "loss" in line) for each in (tuned, new)]
    assert losses[0] < losses[1] / 2


def test_another_start_is_another_run(run: Path, other: World, tmp_path: Path) -> None:
    """And the very same one is resumed, or left alone when it is finished."""
    folder = start_folder(str(run))
    config = start_config(folder, texts=["train.epochs=1"])
    tuned = train(*other, tmp_path / "tuned", config, start=folder)
    assert train(*other, tuned, config, start=folder) == tuned
    second = start_folder(str(tuned))
    with pytest.raises(DataError, match="a run with another start; choose another folder"):
        train(*other, tuned, config, start=second)


def test_the_grounder_keeps_its_shape(run: Path) -> None:
    folder = start_folder(str(run))
    with pytest.raises(DataError, match=r"model\.lstm: the grounder to start from has 8, not 9; leave it out"):
        start_config(folder, texts=["model.lstm=9"])
    with pytest.raises(DataError, match=r"text\.frozen: the grounder to start from has False, not True"):
        start_config(folder, texts=["text.frozen=true"])


def test_features_of_another_kind_are_refused(run: Path, tmp_path: Path) -> None:
    """And leave no run behind."""
    from phrasechain.core.schema import Regions
    from phrasechain.store.reader import FeatureStore
    from phrasechain.store.shard import StoreInfo
    from phrasechain.store.writer import StoreWriter

    data, store = write_world(tmp_path / "world", images=12)
    wide = tmp_path / "wide"
    with StoreWriter(wide, StoreInfo(9, "float32", "tiles", "ab" * 32)) as writer:
        opened = FeatureStore.open(store)
        for number in range(12):
            found: Regions = opened[str(1000 + number)]
            features = torch.nn.functional.pad(torch.from_numpy(found.features.copy()), (0, 1)).numpy()
            writer.add(replace(found, features=features))
        writer.finish()
    folder = start_folder(str(run))
    with pytest.raises(DataError, match="has 9 features a region by 'tiles', the grounder to start from needs 8"):
        train(data, wide, tmp_path / "run", start_config(folder), start=folder)
    assert not (tmp_path / "run").exists()


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> object:
    monkeypatch.setattr(sys, "argv", ["phrasechain", "train", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def test_the_command(
    run: Path, other: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--fit-on train`` learns from dev too and keeps the last checkpoint; ``--start`` has no preset."""
    out, common = tmp_path / "run", ["--data", other[0], "--features", other[1], "--start", run]
    assert not command(monkeypatch, *common, "--out", out, "--fit-on", "train", "--set", "train.epochs=2")
    config, state = json.loads((out / "config.json").read_text()), read_run_state(out)
    assert (config["data"]["fit"], config["train"]["keep"]) == ("train", "last")
    assert state is not None
    assert state.best == state.last
    assert command(monkeypatch, *common, "--out", tmp_path / "no", "--preset", "small") == 2
    assert "leave --preset and --recipe out" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
    assert command(monkeypatch, *common[:4], "--start", tmp_path / "nowhere", "--out", tmp_path / "no") == 2
    assert "no such folder" in capsys.readouterr().err


def test_all_of_train_is_learnt_from_only_without_a_choice(world: World, tmp_path: Path) -> None:
    """The best checkpoint cannot be chosen by images that were learnt from; the last one can be kept."""
    config = tiny_config("data.fit=train", "train.epochs=1")
    with pytest.raises(DataError, match=r"or train\.keep to last"):
        train(*world, tmp_path / "run", config)
    run = train(*world, tmp_path / "run", tiny_config("data.fit=train", "train.epochs=3", "train.keep=last"))
    state = read_run_state(run)
    assert state is not None
    assert state.best == state.last
