"""A folder gives back the model that was put into it; whatever else is in one is refused in a line."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from phrasechain.core.errors import DataError
from phrasechain.model.checkpoint import (
    BUILDERS,
    CHECKPOINT_FORMAT,
    FeatureSource,
    ModelInfo,
    RunState,
    find_checkpoint,
    load_checkpoint,
    read_run_state,
    require_same_regions,
    save_checkpoint,
)
from phrasechain.model.config import Model
from phrasechain.model.model import GroundingModel
from phrasechain.store.reader import FeatureStore
from phrasechain.text.base import TextEncoder
from phrasechain.text.words import WordEncoder
from tiny_batches import tiny_batch
from tiny_grounding import write_world

MODEL = Model(lstm=4, rank=6, joint=5, transition_hidden=3)
CARD = ModelInfo(MODEL, FeatureSource(4, "tiles", "ab" * 32), "smoothing", 7, 0.5, {"train": {"seed": 1}})


def make_model() -> GroundingModel:
    torch.manual_seed(0)
    encoder = WordEncoder(["a", "man", "né", "🐕"], 3, buckets=5)
    return GroundingModel(encoder, 4, **MODEL.options()).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = make_model()
    save_checkpoint(tmp_path / "model", model, model.state_dict(), CARD)
    return tmp_path / "model"


def test_a_model_comes_back(folder: Path) -> None:
    found, model = load_checkpoint(folder), make_model()
    assert found.card == CARD
    assert not found.model.training
    batch = tiny_batch()
    with torch.no_grad():
        mine, theirs = model(batch), found.model(batch)
    assert torch.equal(mine.emissions, theirs.emissions)
    assert torch.equal(mine.transitions, theirs.transitions)
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json", "text.json"}
    assert json.loads((folder / "text.json").read_text())["settings"]["words"] == ["a", "man", "né", "🐕"]


def edit(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def refused(folder: Path, match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        load_checkpoint(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_another_version_is_refused(folder: Path) -> None:
    edit(folder / "config.json", format="phrasechain model 99")
    refused(folder, r"config\.json: not of this version \('phrasechain model 99', not 'phrasechain model 1'\)")
    edit(folder / "config.json", format=CHECKPOINT_FORMAT, model={"rank": 6})
    refused(folder, r"config\.json: has no model\.lstm, .*: written by another version")


def test_files_that_are_broken_or_missing(folder: Path) -> None:
    for name, content, match in (
        ("config.json", b"{", r"config\.json: broken"),
        ("config.json", b"[]", r"config\.json: broken: not a JSON object"),
        ("config.json", b"[" * 100_000, r"config\.json: broken"),
        ("text.json", b"\xff", r"text\.json: byte 1 is not UTF-8"),
        ("text.json", b'{"encoder": "wrods"}', r"text\.json: no text encoder named 'wrods'"),
        ("text.json", b'{"encoder": "words", "settings": {"x": 1}}', r"text\.json: the settings .* do not fit"),
        ("text.json", b'{"encoder": "words", "settings": 3}', r"text\.json: "),
        ("text.json", b'{"encoder": "words", "settings": {"words": 3, "dimension": 3}}', r"text\.json: "),
        ("model.safetensors", b"", r"model\.safetensors: broken"),
        ("model.safetensors", b"\0" * 100, r"model\.safetensors: broken"),
        ("model.safetensors", (folder / "model.safetensors").read_bytes()[:-4], r"model\.safetensors: broken"),
    ):
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        refused(folder, match)
        (folder / name).write_bytes(kept)
    for name in ("config.json", "text.json"):
        kept = (folder / name).read_bytes()
        (folder / name).unlink()
        refused(folder, f"{name}: cannot be read: No such file")
        (folder / name).write_bytes(kept)
    load_checkpoint(folder)


def test_values_that_are_broken(folder: Path) -> None:
    card = json.loads((folder / "config.json").read_text())
    for values, match in (
        ({"regions": {"dimension": 4}}, r"config\.json: broken"),
        ({"regions": None}, r"config\.json: broken"),
        ({"step": "x"}, r"config\.json: broken"),
        ({"model": None}, "'model' is not there"),
        ({"model": card["model"] | {"objectness": True}}, r"config\.json: model\.objectness=True was removed"),
        ({"model": card["model"] | {"normalise": "l2"}}, r"config\.json: no normalisation of .* named 'l2'"),
        ({"model": card["model"] | {"context": "R"}}, r"config\.json: no context named 'R'"),
    ):
        edit(folder / "config.json", **values)
        refused(folder, match)
        (folder / "config.json").write_text(json.dumps(card))


def test_sizes_that_do_not_fit_take_no_memory(folder: Path) -> None:
    """A config that claims a model of 17 GB is compared with the weights before it is built."""
    card = json.loads((folder / "config.json").read_text())
    edit(folder / "config.json", model=card["model"] | {"rank": 65536, "joint": 65536})
    refused(folder, r"does not fit its config\.json: pairs\.heads\.weight has shape \(5, 5\), not \(5, 65536\)")


def test_weights_that_do_not_fit(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    for change, match in (
        ({"more": torch.zeros(1)}, r"more has shape \(1,\), not none"),
        ({"pairs.p.bias": torch.zeros(9)}, r"pairs\.p\.bias has shape \(9,\), not \(5,\)"),
        ({"pairs.p.bias": torch.full((5,), torch.nan)}, r"broken checkpoint: pairs\.p\.bias is not finite"),
    ):
        save_file(weights | change, file, {"format": CHECKPOINT_FORMAT})
        refused(folder, match)
    del weights["pairs.p.bias"]
    save_file(weights, file, {"format": CHECKPOINT_FORMAT})
    refused(folder, r"pairs\.p\.bias has shape none, not \(5,\)")
    save_file(weights, file)
    refused(folder, r"not a checkpoint of this version \(no format at all, not phrasechain model 1\)")


def test_builders_are_given_by_kind(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())["model"]
    edit(folder / "config.json", model=values | {"kind": "theirs"})
    refused(folder, r"config\.json: no kind of model named 'theirs'; there are: phrasechain")
    asked = []

    def build(info: ModelInfo, encoder: TextEncoder) -> GroundingModel:
        asked.append((info.kind, encoder.dimension))
        return BUILDERS["phrasechain"](info, encoder)

    found = load_checkpoint(folder, {"theirs": build})
    assert asked == [("theirs", 3)]
    assert found.card.kind == "theirs"


def test_names_of_earlier_versions(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())["model"]
    old = {"bag": values.pop("bag_of_words"), "members": values.pop("ensemble"), "objectness": False}
    edit(folder / "config.json", model=values | old)
    assert load_checkpoint(folder).card == CARD


def test_reading_draws_nothing(folder: Path) -> None:
    before = torch.get_rng_state()
    load_checkpoint(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "no such folder; give a run or a checkpoint")
    refused(tmp_path, r"neither a checkpoint nor a run that has one: no model\.safetensors, no checkpoints\.json in it")


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    model = make_model()
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path / "model", model, model.state_dict(), CARD)
    assert list(tmp_path.iterdir()) == []


def test_the_best_checkpoint_of_a_run(tmp_path: Path) -> None:
    model = make_model()
    for step in (2, 3):
        save_checkpoint(tmp_path / f"step-0{step}", model, model.state_dict(), replace(CARD, step=step))
    assert read_run_state(tmp_path) is None
    (tmp_path / "checkpoints.json").write_text('{"last": "step-03", "best": "step-02", "finished": false}')
    assert read_run_state(tmp_path) == RunState("step-03", "step-02", is_finished=False)
    assert find_checkpoint(tmp_path) == tmp_path / "step-02"
    assert load_checkpoint(tmp_path).card.step == 2


def test_a_checkpoint_of_an_earlier_version(tmp_path: Path) -> None:
    """With keys that have other names by now; one that needs a removed part is refused."""
    model = make_model()
    save_checkpoint(tmp_path / "model", model, model.state_dict(), CARD)
    file = tmp_path / "model" / "config.json"
    found = json.loads(file.read_text())
    found["model"]["bag"] = found["model"].pop("bag_of_words")
    found["model"]["members"] = found["model"].pop("ensemble")
    found["model"]["objectness"] = False
    file.write_text(json.dumps(found))
    assert load_checkpoint(tmp_path / "model").card.model == MODEL
    found["model"]["objectness"] = True
    file.write_text(json.dumps(found))
    refused(
        tmp_path / "model", r"config\.json: model\.objectness=True was removed from phrasechain; only False is left"
    )


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"last": "x", "best": "x", "finished": true}', '{"last": "step-1", "best": 3, "finished": 1}'],
)
def test_a_broken_run_state(tmp_path: Path, content: str) -> None:
    (tmp_path / "checkpoints.json").write_text(content)
    with pytest.raises(DataError, match=r"checkpoints\.json: broken"):
        read_run_state(tmp_path)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (FeatureSource(9, "tiles", "ab" * 32), "8 features a region, the model 9"),
        (FeatureSource(8, "tiles", "cd" * 32), "weights abababababab…, the model was trained with cdcdcdcdcdcd…"),
        (FeatureSource(8, "tiles", None), "weights abababababab…, the model was trained with unknown"),
        (FeatureSource(8, "other", "ab" * 32), "features of 'tiles', the model was trained with those of 'other'"),
    ],
)
def test_other_features_are_refused(tmp_path: Path, source: FeatureSource, match: str) -> None:
    store = FeatureStore.open(write_world(tmp_path, images=1)[1])
    require_same_regions(replace(CARD, regions=FeatureSource.of(store)), store, tmp_path)
    with pytest.raises(DataError, match=f"store: has {match} .*; extract the features with the same network"):
        require_same_regions(replace(CARD, regions=source), store, tmp_path)
