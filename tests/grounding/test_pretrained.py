"""A grounder's folder: written, read again, from the hub and to it, and whatever does not fit is refused in a line."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file

from phrasechain import cli
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions
from phrasechain.grounding.export import export
from phrasechain.grounding.grounder import Grounder
from phrasechain.grounding.pretrained import compact, load_pretrained, read_calibrations, save_pretrained
from phrasechain.model.confidence import Calibration, Logistic
from phrasechain.model.decode import DECODERS
from phrasechain.phrases.finder import PhraseFinder
from tiny_grounder import CAPTION, PHRASES, assert_same, make_model, write_finder, write_grounder
from tiny_grounding import tiny_config, write_world
from tiny_regions import DIMENSION, write_photo, write_weights

FILES = {"model.safetensors", "config.json", "text.json", "calibration.json"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grounder(tmp_path_factory.mktemp("written") / "model")


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(written, tmp_path / "model"))


def refused(match: str, *names: Any, **options: Any) -> None:
    with pytest.raises(DataError, match=match) as caught:
        Grounder.from_pretrained(*names, device="cpu", **options)
    assert "\n" not in str(caught.value)


def test_a_folder_comes_back(written: Path, tmp_path: Path) -> None:
    grounder = Grounder.from_pretrained(written, device="cpu")
    calibrations = {method: Calibration((1.0, 0.1 * place, -0.2), 0.3) for place, method in enumerate(DECODERS)}
    mine = Grounder(replace(grounder.parts, calibrations=calibrations, model_card="# a card\n"), "cpu")
    out, photo = tmp_path / "a" / "b", write_photo(tmp_path / "photo.png")
    mine.save_pretrained(out)
    assert {file.name for file in out.iterdir()} == {
        *FILES,
        "regions.safetensors",
        "finder.safetensors",
        "MODEL_CARD.md",
    }
    back = Grounder.from_pretrained(str(out), device="cpu")
    assert back.parts.calibrations == calibrations
    assert back.parts.model_card == "# a card\n"
    assert back.name == back.ground(photo, CAPTION, PHRASES).model == str(out)
    for method in DECODERS:
        found, wanted = (each.ground(photo, CAPTION, PHRASES, method) for each in (back, mine))
        assert [phrase.text for phrase in found.phrases] == list(PHRASES)
        for one, other in zip(found.phrases, wanted.phrases, strict=True):  # float16 is not float32
            assert one.probability == pytest.approx(other.probability, abs=0.02)
    back.save_pretrained(tmp_path / "again")
    for name in ("model.safetensors", "calibration.json", "finder.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()
    assert_same(
        Grounder.from_pretrained(tmp_path / "again", device="cpu").ground(photo, CAPTION), back.ground(photo, CAPTION)
    )


def test_a_folder_is_replaced_but_for_what_is_not_ours(written: Path, tmp_path: Path) -> None:
    parts, out = load_pretrained(written), tmp_path / "out"
    out.mkdir()
    (out / "NOTES.txt").write_text("mine")
    with pytest.raises(DataError, match="out: is not empty; choose another folder, or replace its grounder with force"):
        save_pretrained(out, parts)
    save_pretrained(out, parts, force=True)
    embedded = replace(parts, regions_file=None, finder_file=None)
    save_pretrained(out, embedded, force=True)
    assert {file.name for file in out.iterdir()} == {*FILES, "NOTES.txt"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(DataError, match="it is no folder"):
        save_pretrained(out / "NOTES.txt", parts)
    with pytest.raises(DataError, match="cannot be written: "):
        save_pretrained(out / "NOTES.txt" / "x", parts)


def test_weights_are_halved_where_that_keeps_them() -> None:
    model = make_model()
    with torch.no_grad():
        model.pairs.p.bias[0] = 1e6
    found = compact(model)
    assert found["pairs.p.bias"].dtype == torch.float32
    assert found["pairs.p.weight"].dtype == torch.float16
    assert found.keys() == model.state_dict().keys()


def test_a_run_and_its_checkpoint_will_do(written: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copytree(written, run / "step-00000003")
    (run / "checkpoints.json").write_text(
        json.dumps({"last": "step-00000003", "best": "step-00000003", "finished": True})
    )
    (run / "config.json").write_text("{}")
    grounder = Grounder.from_pretrained(run, device="cpu")
    assert grounder.parts.calibration("viterbi") == Calibration()
    assert grounder.name == str(run)


def test_other_regions_are_refused(folder: Path, tmp_path: Path) -> None:
    other = write_weights(tmp_path / "other.safetensors", seed=5)
    refused(r"trained on the regions of another network \(\w{12}…, not \w{12}…\)", folder, regions=other)
    card = json.loads((folder / "config.json").read_text())
    card["regions"]["weights_sha256"] = 5
    (folder / "config.json").write_text(json.dumps(card))
    refused(r"config\.json: broken: the names in 'regions' are no texts", folder)
    card["regions"]["weights_sha256"] = "5"
    (folder / "config.json").write_text(json.dumps(card))
    refused("another network", folder)
    (folder / "regions.safetensors").unlink()
    refused("put the file of that one beside it as regions.safetensors", folder)  # the embedded one is another
    card = json.loads((folder / "config.json").read_text())
    card["regions"]["extractor"] = "bottom-up-attention"
    (folder / "config.json").write_text(json.dumps(card))
    refused("of 'bottom-up-attention', which cannot be found in a new photo", folder)


def test_another_finder_may_be_given(written: Path, tmp_path: Path) -> None:
    other = write_finder(tmp_path / "other.safetensors", seed=4)
    grounder = Grounder.from_pretrained(written, device="cpu", finder=other)
    assert grounder.parts.finder.find(CAPTION) == PhraseFinder.from_pretrained(other).find(CAPTION)
    grounder.save_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / "finder.safetensors").read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"{", "broken"),
        (b"[]", "broken"),
        (b'{"format": "x", "evidence": []}', "not of this version"),
        (b"[" * 100_000, "broken"),
        (b"\xff", "byte 1 is not UTF-8"),
    ],
)
def test_broken_calibrations(folder: Path, content: bytes, match: str) -> None:
    (folder / "calibration.json").write_bytes(content)
    refused(rf"calibration\.json: .*{match}", folder)


def test_calibrations_with_presence(written: Path, tmp_path: Path) -> None:
    mine = {"consensus": Calibration((1.0, 0.1, -0.2, 0.3), 0.4, Logistic((0.0, 0.1, 0.2, 0.9), -0.5), 0.6)}
    save_pretrained(tmp_path / "out", replace(load_pretrained(written), calibrations=mine))
    file = tmp_path / "out" / "calibration.json"
    assert read_calibrations(file) == mine
    text = file.read_text()
    for old, new in (('"threshold": 0.6', '"threshold": 1.6'), ('"logit of presence"', '"another"'), ("0.9", "1e99")):
        assert old in text
        file.write_text(text.replace(old, new))
        with pytest.raises(DataError, match=r"calibration\.json: broken"):
            read_calibrations(file)


def test_calibrations_that_are_no_numbers(written: Path, tmp_path: Path) -> None:
    save_pretrained(tmp_path / "out", replace(load_pretrained(written), calibrations={"viterbi": Calibration()}))
    file = tmp_path / "out" / "calibration.json"
    whole = json.loads(file.read_text())
    assert read_calibrations(file) == {"viterbi": Calibration()}
    for values in (
        {"weights": [1, 2], "constant": 0},
        {"weights": [1, 2, "x"], "constant": 0},
        {"weights": [1, 2, 3]},
        3,
    ):
        file.write_text(json.dumps(whole | {"decoders": {"viterbi": values}}))
        with pytest.raises(DataError, match=r"calibration\.json: broken"):
            read_calibrations(file)
    for weight in (float("nan"), float("inf")):
        file.write_text(json.dumps(whole | {"decoders": {"viterbi": {"weights": [1, 2, weight], "constant": 0}}}))
        with pytest.raises(DataError, match=r"calibration\.json: (NaN|Infinity) is not a number"):
            read_calibrations(file)
    for weight in (-1e300, 1_000_001):
        file.write_text(json.dumps(whole | {"decoders": {"viterbi": {"weights": [1, 2, weight], "constant": 0}}}))
        with pytest.raises(DataError, match="3 weights and a constant, within ±1,000,000"):
            read_calibrations(file)


def test_names_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused("no such folder; give a run, a grounder's folder, or a hub id", tmp_path / "none")
    refused("no such folder; give a run", "none")
    (tmp_path / "empty").mkdir()
    refused("neither a checkpoint nor a run", "empty")


# ---- the hub, without a network ----


class FakeHub:
    """What ``huggingface_hub`` does, with folders for repositories."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked = root, []  # type: ignore[var-annotated]

    def snapshot_download(self, repo_id: str, **options: Any) -> str:
        self.asked.append((repo_id, options))
        if not (self.root / repo_id).exists():
            raise huggingface_hub.errors.LocalEntryNotFoundError("offline,\nand nothing was kept")
        return str(self.root / repo_id)

    def api(self, **options: Any) -> Any:
        self.asked.append(("api", options))
        return SimpleNamespace(create_repo=self.create_repo, upload_folder=self.upload_folder)

    def create_repo(self, repo_id: str, **options: Any) -> None:
        self.asked.append((repo_id, options))
        if repo_id.startswith("other/"):
            raise PermissionError("403: not yours")
        (self.root / repo_id).mkdir(parents=True, exist_ok=options["exist_ok"])

    def upload_folder(self, repo_id: str, folder_path: Path, **options: Any) -> Any:
        self.asked.append((repo_id, options))
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", fake.api)
    return fake


def test_to_the_hub_and_back(written: Path, hub: FakeHub, tmp_path: Path) -> None:
    grounder = Grounder.from_pretrained(written, device="cpu")
    assert grounder.push_to_hub("me/dogs", private=True, token="t") == "https://hub/me/dogs/commit/1"
    assert hub.asked[0] == ("api", {"token": "t", "library_name": "phrasechain"})
    assert hub.asked[1] == ("me/dogs", {"private": True, "exist_ok": True})
    page = (hub.root / "me/dogs/README.md").read_text()
    assert page.startswith("---\nlibrary_name: phrasechain\n")
    assert 'Grounder.from_pretrained("me/dogs")' in page
    back = Grounder.from_pretrained("me/dogs", device="cpu", revision="v1", cache_dir=tmp_path / "kept")
    name, options = hub.asked[-1]
    assert (name, options["revision"], options["cache_dir"]) == ("me/dogs", "v1", tmp_path / "kept")
    assert set(options["allow_patterns"]) == {*FILES, "regions.safetensors", "finder.safetensors", "MODEL_CARD.md"}
    photo = write_photo(tmp_path / "photo.png")
    assert back.ground(photo, CAPTION).model == "me/dogs"


def test_what_the_hub_refuses(written: Path, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused("^me/none: no such folder, and the hub does not have it: offline, and nothing was kept$", "me/none")
    (hub.root / "me" / "cats").mkdir(parents=True)
    refused("me/cats: on the hub, but not a grounder of phrasechain", "me/cats")
    with pytest.raises(DataError, match="other/dogs: cannot be uploaded: 403: not yours"):
        Grounder.from_pretrained(written, device="cpu").push_to_hub("other/dogs")


# ---- export ----


def test_export_from_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A run on the features of a region network becomes a grounder with the decoder that is best on dev."""
    from phrasechain.regions.extractor import RegionExtractor
    from phrasechain.store.reader import FeatureStore
    from phrasechain.store.writer import StoreWriter
    from phrasechain.training.grounder.task import train

    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))
    data, plain = write_world(tmp_path / "world", images=18)
    weights = write_weights(tmp_path / "w.safetensors", dimension=DIMENSION)
    store = FeatureStore.open(plain)
    with StoreWriter(tmp_path / "store", RegionExtractor.from_pretrained(weights).info) as writer:
        for number in range(18):
            found: Regions = store[str(1000 + number)]
            writer.add(replace(found, objectness=torch.ones(len(found.boxes)).numpy()))
        writer.finish()
    config = tiny_config("train.epochs=2", "text.cache=")
    run = train(data, tmp_path / "store", tmp_path / "run", config)
    out, finder = tmp_path / "out", write_finder(tmp_path / "f.safetensors")
    found = export(run, data, tmp_path / "store", out, regions=weights, finder=finder)
    assert set(found) == set(DECODERS)
    best = max(each.accuracy for each in found.values())
    grounder = Grounder.from_pretrained(out, device="cpu")
    assert found[grounder.parts.card.decode].accuracy == best
    assert grounder.parts.calibrations == {method: each.calibration for method, each in found.items()}
    assert load_file(out / "model.safetensors")["pairs.u.weight"].dtype == torch.float16
    assert {*FILES, "regions.safetensors", "finder.safetensors"} == {file.name for file in out.iterdir()}
    common = ["--data", data, "--features", tmp_path / "store", "--out", tmp_path / "again"]
    common += ["--regions", weights, "--finder", finder]
    monkeypatch.setattr(sys, "argv", ["phrasechain", "export", str(run), *map(str, common), "--decode", "smoothing"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert "calibration error" in capsys.readouterr().out
    assert Grounder.from_pretrained(tmp_path / "again", device="cpu").parts.card.decode == "smoothing"
    carried = export(
        run, data, tmp_path / "store", tmp_path / "more", split="fit", regions=weights, finder=finder, calibration=out
    )
    assert {method: each.calibration for method, each in carried.items()} == grounder.parts.calibrations
    assert {each.phrases for each in carried.values()} != {each.phrases for each in found.values()}
    assert (tmp_path / "more" / "calibration.json").exists()
    with pytest.raises(DataError, match="has no calibration of viterbi; give the folder of an exported grounder"):
        export(run, data, tmp_path / "store", tmp_path / "no", calibration=tmp_path)
    with pytest.raises(DataError, match="no decoder named"):
        export(run, data, tmp_path / "store", tmp_path / "new", decode="x")
    with pytest.raises(DataError, match="trained on the regions of another network"):
        export(run, data, tmp_path / "store", tmp_path / "new")
    with pytest.raises(DataError, match="extract the features with the same network"):
        export(run, data, plain, tmp_path / "new", regions=weights)


def test_no_path_of_the_machine_is_kept(tmp_path: Path) -> None:
    from phrasechain.grounding.export import _without_paths

    kept = _without_paths(
        {"text": {"vectors": "/home/me/glove.txt", "model": "a/b", "dimension": 3}, "train": {"seed": 1}}
    )
    assert kept == {"text": {"vectors": "glove.txt", "model": "a/b", "dimension": 3}, "train": {"seed": 1}}
    assert _without_paths(None) == {}
