"""Values come from presets, files and settings, in that order; whatever is not one is refused in a line."""

import json
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path

import pytest

from paths import ROOT
from phrasechain.core.errors import DataError
from phrasechain.core.settings import with_texts, with_values
from phrasechain.model.config import (
    PRESETS,
    RECIPE_OF,
    RECIPES,
    Config,
    make_config,
    model_from_dict,
)


def test_the_paper_to_the_letter() -> None:
    """Section "Implementation details" of the paper."""
    config = make_config("paper")
    text = config.text
    assert (text.encoder, text.layers, text.stateful, text.lowercase) == ("elmo", "last", False, False)
    assert (config.model.lstm, config.model.rank, config.model.joint) == (512, 1024, 1024)
    assert (config.model.activation, config.model.init, config.model.dropout) == ("none", "paper", 0.2)
    assert (config.data.fit, config.data.dev) == ("train", "val")
    assert (config.loss.gamma, config.loss.targets) == (10.0, "soft")
    assert (config.loss.divide, config.loss.offsets) == ("captions", "sum")
    train = config.train
    assert (train.optimizer, train.rate, train.beta1, train.beta2) == ("adam", 5e-5, 0.9, 0.98)
    assert (train.schedule, train.weight_decay) == ("constant", 0.0)
    assert (train.steps, train.batch, train.by, train.score_every) == (50_000, 16, "caption", 5_000)
    assert (train.clip, train.clip_by) == (10.0, "norm")


def test_the_authors_code() -> None:
    """The last column of the table of differences, where it is a value of training."""
    config = make_config("authors")
    assert (config.model.activation, config.model.init, config.model.packed) == ("relu", "default", False)
    assert (config.text.layers, config.text.stateful, config.text.lowercase) == ("mean", True, True)
    assert (config.loss.divide, config.loss.offsets, config.loss.least_side) == ("all", "mean", 0.1)
    soft, hard = (with_texts(config, [f"loss.targets={targets}"]).loss.settled() for targets in ("soft", "hard"))
    assert (soft.unlabelled, soft.regress) == ("skip", "all")
    assert (hard.unlabelled, hard.regress) == ("best", "best")
    assert Config().loss.settled() == Config().loss
    assert (config.train.clip_by, config.train.by, config.data.reading) == ("value", "draw", "authors")
    assert config.train.steps == 50_000


def test_small_is_the_size_of_the_embedded_model() -> None:
    config = make_config("small")
    assert config.text.dimension == 100
    model = config.model
    assert (model.lstm, model.rank, model.joint, model.transition_hidden, model.context) == (200, 384, 192, 16, "M")
    assert config.train.optimizer == "adamw"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("recipe", [None, *RECIPES])
def test_every_preset_goes_with_every_recipe(preset: str, recipe: str | None) -> None:
    config = make_config(preset, recipe)
    wanted = make_config("corrected", recipe or RECIPE_OF[preset]).train
    assert (config.train.rate, config.train.steps) == (wanted.rate, wanted.steps)


def test_what_comes_later_wins(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[model]\nlstm = 8\nrank = 9\n[train]\nrate = 1\n[text]\nvectors = 'a=b.txt'\n")
    config = make_config("small", "paper", file, ["model.rank=10", "model.chain=FALSE", "train.steps=1_000"])
    assert (config.model.lstm, config.model.rank, config.model.joint) == (8, 10, 192)
    assert (config.train.rate, config.train.steps, config.model.chain) == (1.0, 1000, False)
    assert isinstance(config.train.rate, float)
    assert make_config(texts=["text.vectors=x=y.txt"]).text.vectors == "x=y.txt"


def test_a_config_does_not_change() -> None:
    config = Config()
    with pytest.raises(FrozenInstanceError):
        config.model.rank = 3  # type: ignore[misc]
    with_texts(config, ["model.rank=3"])
    assert config.model.rank == 1024


@pytest.mark.parametrize("preset", PRESETS)
def test_json_and_back(preset: str) -> None:
    config = make_config(preset)
    assert model_from_dict(json.loads(json.dumps(asdict(config)))["model"], "config.json") == config.model


def test_values_of_another_version_are_refused() -> None:
    values = asdict(Config())["model"]
    del values["rank"]
    with pytest.raises(DataError, match=r"config\.json: has no model\.rank: written by another version"):
        model_from_dict(values, "config.json")
    values |= {"rank": 3, "rang": 4}
    with pytest.raises(DataError, match=r"no key named 'model\.rang'.*did you mean 'model\.rank'"):
        model_from_dict(values, "config.json")
    for wrong in ([], 3, None):
        with pytest.raises(DataError, match="outside a section"):
            model_from_dict(wrong, "config.json")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.rnak=3", r"no key named 'model\.rnak'; there are: model\.lstm, model\.rank.*mean 'model\.rank'"),
        ("modle.rank=3", r"no key named 'modle\.rank'; there are: data\.fit.*did you mean 'model\.rank'"),
        ("modle=3", r"no section named 'modle'; there are: data, text, model, loss, train, decode .*'model'"),
        ("model=3", r"no key named 'model'; there are: model\.lstm"),
        ("model.rank.x=3", r"no key named 'model\.rank\.x'"),
        ("model.rank", r"takes section\.key=value"),
        ("model.rank=3.5", r"model\.rank is a whole number, not '3\.5'"),
        ("model.rank=", r"model\.rank is a whole number, not ''"),
        ("model.rank=0", r"model\.rank is from 1 to 65536, not 0"),
        ("train.rate=fast", r"train\.rate is a number, not 'fast'"),
        ("train.rate=nan", r"train\.rate is a number, not nan"),
        ("train.rate=-1", r"train\.rate is 0 or more, not -1\.0"),
        ("model.chain=1", r"model\.chain is true or false, not '1'"),
        ("model.__class__=3", r"no key named 'model\.__class__'"),
    ],
)
def test_what_is_no_setting(setting: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        make_config(texts=[setting])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank = 3", "'rank' stands outside a section"),
        ("[model]\nrank = true", r"model\.rank is a whole number, not True"),
        ("[model]\nrank = '3'", r"model\.rank is a whole number, not '3'"),
        ("[text]\nencoder = 3", r"text\.encoder is a text, not 3"),
        ("[model]\nrank =", "not TOML"),
        ("[model.rank]\nx = 1", r"model\.rank is a whole number, not \{'x': 1\}"),
    ],
)
def test_what_is_no_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        make_config(file=file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_text_at_all(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        make_config(file=file)
    with pytest.raises(DataError, match="cannot be read"):
        make_config(file=tmp_path / "absent.toml")


def test_names_that_do_not_exist() -> None:
    with pytest.raises(DataError, match=r"no preset named 'papr'; there are: .*did you mean 'paper'"):
        make_config("papr")
    with pytest.raises(DataError, match=r"no recipe named 'fats'; there are: .*did you mean 'fast'"):
        make_config(recipe="fats")


def test_values_are_checked_too() -> None:
    with pytest.raises(DataError, match=r"mine: loss\.gamma is 0 or more"):
        with_values(Config(), {"loss.gamma": -1.0}, "mine")


def test_keys_of_earlier_versions() -> None:
    old = ["model.bag=0.5", "model.members=3", "train.average=0.9", "decode.how=smoothing", "model.objectness=false"]
    new = ["model.bag_of_words=0.5", "model.ensemble=3", "train.ema=0.9", "decode.method=smoothing"]
    assert make_config(texts=old) == make_config(texts=new)
    values = asdict(Config())["model"]
    values["bag"], values["members"] = values.pop("bag_of_words"), values.pop("ensemble")
    assert model_from_dict({**values, "objectness": False}, "config.json") == Config().model
    with pytest.raises(DataError, match=r"--set: model\.objectness=True was removed from phrasechain"):
        make_config(texts=["model.objectness=true"])


def test_presets_and_recipes_are_documented() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in page for name in (*PRESETS, *RECIPES))
