"""Photos into a store: whole or in parts, interrupted or killed, with broken ones among them."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phrasechain import cli
from phrasechain.core.images import image_size
from phrasechain.data.photos import find_photos
from phrasechain.regions import extract
from phrasechain.regions.extractor import RegionExtractor
from phrasechain.regions.pixels import read_photo
from phrasechain.regions.weights import load_network
from phrasechain.store.reader import FeatureStore
from phrasechain.store.writer import merge_stores
from tiny_regions import DIMENSION, write_photo, write_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for n in range(12):
        write_photo(folder / f"{n:02d}.png", seed=n)
    return folder


@pytest.fixture(scope="module")
def whole(photos: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """The store of an extraction that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "store"
    extract.extract(find_photos([photos])[0], out, RegionExtractor.from_pretrained(weights), count=10)
    return FeatureStore.open(out)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> object:
    monkeypatch.setattr(sys, "argv", ["phrasechain", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as end:
        return end.code or 0
    return 0


def assert_same_content(one: FeatureStore, other: FeatureStore) -> None:
    assert one.info == other.info
    assert set(one.ids) == set(other.ids)
    for image in one:
        np.testing.assert_array_equal(one[image].boxes, other[image].boxes)
        np.testing.assert_array_equal(one[image].features, other[image].features)
        np.testing.assert_array_equal(one[image].objectness, other[image].objectness)
        assert (one[image].width, one[image].height) == (other[image].width, other[image].height)


def test_the_store_holds_what_the_extractor_says(whole: FeatureStore, photos: Path, weights: Path) -> None:
    extractor = RegionExtractor.from_pretrained(weights)
    assert whole.ids == tuple(f"{n:02d}" for n in range(12))
    assert whole.info == extractor.info
    assert whole.info.weights_sha256 == load_network(weights).sha256
    assert (whole.info.extractor, whole.info.dimension) == ("phrasechain", DIMENSION)
    for image in whole:
        wanted = extractor.regions(image, read_photo(photos / f"{image}.png", extractor.size), 10)
        np.testing.assert_allclose(whole[image].boxes, wanted.boxes, atol=1e-3)
        np.testing.assert_allclose(whole[image].features.astype(float), wanted.features.astype(float), atol=1e-2)
        assert (whole[image].width, whole[image].height) == (48, 32)


def test_the_command_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    photos: Path,
    weights: Path,
    whole: FeatureStore,
) -> None:
    command = ("extract", photos, "--out", tmp_path / "s", "--weights", weights, "--regions", "10")
    assert run(monkeypatch, *command, "--limit", "5", "--workers", "1") == 0
    assert FeatureStore.open(tmp_path / "s").ids == whole.ids[:5]
    capsys.readouterr()
    assert run(monkeypatch, *command, "--workers", "3") == 0
    assert [line.split()[-2] for line in capsys.readouterr().out.splitlines() if "│" in line] == ["7", "5", "0"]
    assert_same_content(FeatureStore.open(tmp_path / "s"), whole)


def test_parts_merge_to_the_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, photos: Path, weights: Path, whole: FeatureStore
) -> None:
    parts = [tmp_path / f"part{number}" for number in (1, 2, 3)]
    for number, part in enumerate(parts, 1):
        options = ("--weights", weights, "--regions", "10", "--shard", f"{number}/3")
        assert run(monkeypatch, "extract", photos, "--out", part, *options) == 0
    assert all(0 < len(FeatureStore.open(part)) < 12 for part in parts)
    assert run(monkeypatch, "merge-stores", *parts, "--out", tmp_path / "merged") == 0
    assert_same_content(FeatureStore.open(tmp_path / "merged"), whole)


def test_a_part_without_photos_is_a_finished_store_that_merges(
    tmp_path: Path, whole: FeatureStore, weights: Path
) -> None:
    extractor = RegionExtractor.from_pretrained(weights)
    report = extract.extract({}, tmp_path / "s", extractor)
    assert (report.written, report.problems, len(FeatureStore.open(tmp_path / "s"))) == (0, [], 0)
    assert merge_stores([whole.path, tmp_path / "s"], tmp_path / "merged") == 12


def test_broken_photos_are_listed_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, weights: Path
) -> None:
    folder = tmp_path / "p"
    write_photo(folder / "a.png")
    write_photo(folder / "z.png", seed=1)
    (folder / "b.jpg").write_bytes(b"no photo")
    (folder / "c.jpg").touch()
    Image.effect_noise((64, 64), 50).save(folder / "d.jpg")
    (folder / "d.jpg").write_bytes((folder / "d.jpg").read_bytes()[:-100])
    Image.new("1", (18_000, 10_000)).save(folder / "e.png")
    (folder / "f.png").symlink_to("nowhere")
    write_photo(folder / "g\nh.png")
    command = ("extract", folder, "--out", tmp_path / "s", "--weights", weights)
    for _ in range(2):
        assert run(monkeypatch, *command) == 1
        lines = capsys.readouterr().err.splitlines()
        assert [line.split("/p/")[1][:5] for line in lines] == ["b.jpg", "c.jpg", "d.jpg", "e.png", "f.png", "g\\nh."]
        assert all(line.startswith("skipped ") for line in lines)
        assert FeatureStore.open(tmp_path / "s").ids == ("a", "z")


def test_a_part_of_nothing_but_broken_photos_merges_like_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, weights: Path
) -> None:
    (tmp_path / "b.jpg").write_bytes(b"no photo")
    write_photo(tmp_path / "a.png")
    parts = []
    for name, status in (("b.jpg", 1), ("a.png", 0)):
        parts.append(tmp_path / f"of {name}")
        assert run(monkeypatch, "extract", tmp_path / name, "--out", parts[-1], "--weights", weights) == status
    assert run(monkeypatch, "merge-stores", *parts, "--out", tmp_path / "s") == 0
    assert FeatureStore.open(tmp_path / "s").ids == ("a",)


def test_lines_of_a_dataset_that_cannot_be_used_are_listed_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path, weights: Path
) -> None:
    lines = [json.dumps({"image": str(photos / name), "captions": []}) for name in ("00.png", "none.png", "01.png")]
    (tmp_path / "d.jsonl").write_text("\n".join([*lines, '{"image": ', lines[0]]))
    command = ("extract", tmp_path / "d.jsonl", "--out", tmp_path / "s", "--weights", weights)
    assert run(monkeypatch, *command) == 1
    out, err = capsys.readouterr()
    assert [line.split(": ")[0] for line in err.splitlines()] == [f"skipped {tmp_path}/d.jsonl:{n}" for n in (2, 4, 5)]
    assert [line.split("│")[2].strip() for line in out.splitlines() if line.startswith("│")] == ["2", "0", "3"]
    assert FeatureStore.open(tmp_path / "s").ids == ("00", "01")
    (tmp_path / "d.jsonl").write_text("\n".join([lines[0], lines[1].replace("none", "02"), lines[2]]))
    assert run(monkeypatch, *command) == 0
    assert FeatureStore.open(tmp_path / "s").ids == ("00", "01", "02")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{photos}/empty"], "no photos there"),
        (["{photos}/none.jpg"], "no such file or folder"),
        (["{photos}", "--weights", "{photos}/00.png"], "broken region network"),
        (["{photos}", "--weights", "{photos}/none"], "cannot be read: No such file"),
        (["{photos}", "--shard", "4/3"], "a shard is i/n"),
        (["{photos}", "--runtime", "tensorrt"], "no runtime named 'tensorrt'; there are: torch, onnx"),
        (["{photos}", "--boxes", "a.json", "--proposals", "hf:b"], "choose one"),
        (["{photos}", "--boxes", "{photos}/none.json"], "none.json: "),
        (["{photos}", "--out", "{photos}"], "a non-empty folder that is not a region store"),
    ],
)
def test_what_cannot_run_is_one_line_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    photos: Path,
    weights: Path,
    arguments: list[str],
    words: str,
) -> None:
    (photos / "empty").mkdir(exist_ok=True)
    given = [argument.format(photos=photos) for argument in arguments]
    assert run(monkeypatch, "extract", "--out", tmp_path / "s", "--weights", weights, *given) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("seed", "dimension", "words"), [(1, DIMENSION, "weights_sha256"), (0, 9, "dimension 8, not 9")]
)
def test_a_store_of_other_weights_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    photos: Path,
    whole: FeatureStore,
    seed: int,
    dimension: int,
    words: str,
) -> None:
    other = write_weights(tmp_path / "w", seed, dimension)
    assert run(monkeypatch, "extract", photos, "--out", whole.path, "--weights", other) == 2
    assert words in capsys.readouterr().err
    whole.verify()


def test_given_boxes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    photos: Path,
    weights: Path,
    whole: FeatureStore,
) -> None:
    boxes = {"00": whole["00"].boxes[:3].tolist(), "01.png": [[0, 0, 48, 32]]}
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    command = ("extract", photos, "--out", tmp_path / "s", "--weights", weights, "--limit", "3")
    assert run(monkeypatch, *command, "--boxes", tmp_path / "boxes.json") == 1
    assert "02.png: " in (error := capsys.readouterr().err)
    assert "has no boxes for it, neither as '02' nor as '02.png'" in error
    store = FeatureStore.open(tmp_path / "s")
    digest = hashlib.sha256((tmp_path / "boxes.json").read_bytes()).hexdigest()
    assert store.info.extractor == f"phrasechain, boxes of boxes.json ({digest[:12]})"
    np.testing.assert_allclose(store["00"].boxes, whole["00"].boxes[:3], atol=1e-4)
    np.testing.assert_allclose(store["00"].features.astype(float), whole["00"].features[:3].astype(float), atol=2e-2)
    assert store["01"].boxes.tolist() == [[0, 0, 48, 32]]
    assert run(monkeypatch, *command) == 2  # these boxes and our own do not mix
    assert "the store has extractor" in capsys.readouterr().err


class CornerDetector:
    """Finds the upper left pixels, and nothing on a photo of one of them."""

    def boxes(self, photo: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
        found = np.array([[0, 0, n, n] for n in range(1, image_size(photo)[0])][:count], np.float32)
        return found.reshape(-1, 4), np.ones(len(found), np.float32)


def test_boxes_of_a_detector(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, weights: Path
) -> None:
    monkeypatch.setattr(extract, "load_detector", {"hf:corners": CornerDetector()}.__getitem__)
    write_photo(tmp_path / "p" / "a.png")
    write_photo(tmp_path / "p" / "b.png", size=(1, 1))
    command = ("extract", tmp_path / "p", "--out", tmp_path / "s", "--weights", weights, "--regions", "3")
    assert run(monkeypatch, *command, "--proposals", "hf:corners") == 1
    assert "b.png: hf:corners finds nothing on it" in capsys.readouterr().err
    store = FeatureStore.open(tmp_path / "s")
    assert store.info.extractor == "phrasechain, boxes of hf:corners"
    np.testing.assert_allclose(store["a"].boxes, [[0, 0, n, n] for n in (1, 2, 3)], atol=1e-4)


EVERY_PHOTO_A_SHARD = (
    "from phrasechain.regions import extract; from phrasechain import cli; extract.FLUSH_SECONDS = 0; cli.main()"
)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a pipe to stop the command at")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_disturbed_in_the_middle_it_loses_nothing_that_was_done(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    photos: Path,
    weights: Path,
    whole: FeatureStore,
    sent: signal.Signals,
) -> None:
    folder, out = tmp_path / "photos", tmp_path / "s"
    shutil.copytree(photos, folder)
    pipe = folder / "05.png"  # the command waits there for somebody to write
    pipe.unlink()
    os.mkfifo(pipe)
    options = ["--out", out, "--weights", weights, "--regions", "10"]
    process = subprocess.Popen(
        [sys.executable, "-c", EVERY_PHOTO_A_SHARD, "extract", folder, *options, "--workers", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    while not (out / "shards.jsonl").exists() or (out / "shards.jsonl").read_bytes().count(b"\n") < 5:
        assert process.poll() is None, "the command ended by itself"
    process.send_signal(sent)
    if sent == signal.SIGINT:
        pipe.open("wb").close()
    _, error = process.communicate()
    assert process.returncode == (130 if sent == signal.SIGINT else -sent)
    assert error == ("phrasechain: interrupted\n" if sent == signal.SIGINT else "")

    kept = FeatureStore.open(out, partial=True)
    kept.verify()
    assert kept.ids == whole.ids[:5]
    assert not kept.is_finished
    pipe.unlink()
    shutil.copy(photos / pipe.name, pipe)
    assert run(monkeypatch, "extract", folder, *options) == 0
    assert FeatureStore.open(out).ids == whole.ids
    assert_same_content(FeatureStore.open(out), whole)
