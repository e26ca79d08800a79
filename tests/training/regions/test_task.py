"""A tiny run on made-up photos: it learns, it is the same after a kill, and it refuses what it must."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from official_layout import write_image
from paths import importing
from phrasechain.core.errors import DataError
from phrasechain.core.settings import make_settings
from phrasechain.data.class_boxes import is_kept_apart, read_class_boxes
from phrasechain.data.dataset import load_examples
from phrasechain.training.log import read_metrics
from phrasechain.training.loop import Trainer
from phrasechain.training.regions.data import read_data
from phrasechain.training.regions.model import LOSS_WEIGHTS
from phrasechain.training.regions.settings import RegionSettings
from phrasechain.training.regions.task import RegionTask, late_ema_decay, train_regions
from phrasechain.training.regions.trunk_weights import fold_published
from phrasechain.training.task import one_cycle
from published import random_weights
from tiny_photos import write_dataset

TEXTS = (
    "network.dimension=8",
    "network.size=64",
    "network.anchors=2",
    "data.rare_word=1",
    "train.head_epochs=1",
    "train.epochs=2",
    "train.batch=4",
    "train.save_every=3",
)


def settings_of(*texts: str) -> RegionSettings:
    return make_settings(RegionSettings(), texts=[*TEXTS, *texts])


SETTINGS = settings_of()
FINE_TUNE = settings_of("train.ema=0.9995", "train.rate=5e-4")


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
    return train_regions(data, tmp_path_factory.mktemp("runs") / "whole", start, SETTINGS)


def test_a_run_leaves_weights_notes_and_curves(finished: Path) -> None:
    lines = read_metrics(finished.parent)
    assert [line["step"] for line in lines if "score" in line] == list(range(1, 11))
    assert sum("accuracy" in line for line in lines) == 2
    losses = [line["loss"] for line in lines if "loss" in line]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert (finished.parent / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((finished.parent / "config.json").read_text())["train"]["seed"] == 0


def test_a_finished_run_is_left_alone(finished: Path, data: Path, start: Path) -> None:
    before = finished.stat().st_mtime_ns
    assert train_regions(data, finished.parent, start, SETTINGS) == finished
    assert finished.stat().st_mtime_ns == before


def test_a_finished_run_of_an_earlier_version_is_left_alone(
    finished: Path, data: Path, start: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.parent, run)
    old = json.loads((run / "config.json").read_text())
    del old["data"]["partial_weight"], old["data"]["unmarked_rivals"], old["boxes"]
    (run / "config.json").write_text(json.dumps(old))
    before = (run / finished.name).stat().st_mtime_ns
    assert train_regions(data, run, start, SETTINGS) == run / finished.name
    assert (run / finished.name).stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_killed_run_ends_as_if_it_had_not_been(finished: Path, data: Path, start: Path, tmp_path: Path) -> None:
    """A process is really killed after its second checkpoint; the next one ends with the same weights."""
    run = tmp_path / "killed"
    program = (
        "import sys; from pathlib import Path; from phrasechain.training.regions.task import train_regions;"
        f"from {Path(__file__).stem} import SETTINGS; train_regions(*map(Path, sys.argv[1:]), SETTINGS)"
    )
    command = [sys.executable, "-c", program, *map(str, (data, run, start))]
    with subprocess.Popen(command, env=importing(__file__)) as process:
        while not (run / "step-00000006").exists():  # the trunk has been learning since step 5
            with suppress(subprocess.TimeoutExpired):
                assert process.wait(0.01) is None, "the run ended before its second checkpoint"
        os.kill(process.pid, signal.SIGKILL)
    assert not (run / "regions.safetensors").exists()
    assert train_regions(data, run, start, SETTINGS).read_bytes() == finished.read_bytes()
    steps = [line["step"] for line in read_metrics(run) if "loss" in line]
    assert steps == list(range(1, 11))


def test_early_stages_and_depthwise_convolutions_stay_as_they_were_published(finished: Path) -> None:
    learnt, given = load_file(finished), fold_published(random_weights())
    kept = {name for name, weight in given.items() if torch.equal(learnt[f"trunk.{name}"], weight.half())}
    assert {name for name in given if ".filter." in name or name.startswith(("stem.", "early."))} <= kept
    assert "late.0.1.expand.weight" not in kept


def test_the_trunk_has_no_drop_path_until_it_learns(finished: Path, data: Path, start: Path, tmp_path: Path) -> None:
    """So that the heads learn from the maps of the trunk as it is: only later steps depend on the rate."""
    train_regions(data, tmp_path / "run", start, settings_of("train.drop_path=0.9"))
    losses = [
        [line["loss"] for line in read_metrics(run) if "loss" in line] for run in (finished.parent, tmp_path / "run")
    ]
    assert [one == other for one, other in zip(*losses, strict=True)] == [True] * 5 + [False] * 5


def test_all_of_train_can_be_learnt_from(data: Path, start: Path, tmp_path: Path) -> None:
    """By the name of the split: an epoch has the photos of fit and dev."""
    train_regions(data, tmp_path / "run", start, settings_of("data.fit=train", "train.epochs=1"))
    steps = [line["step"] for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert len(steps) == len(load_examples(data, "train")) // 4 > len(load_examples(data, "fit")) // 4
    with pytest.raises(DataError, match="no split named 'fitt'"):
        train_regions(data, tmp_path / "no", start, settings_of("data.fit=fitt"))


def test_other_settings_are_refused(finished: Path, data: Path, start: Path) -> None:
    with pytest.raises(DataError, match=r"another network\.dimension, train\.seed; choose another folder"):
        train_regions(data, finished.parent, start, settings_of("train.seed=1", "network.dimension=9"))


def test_weights_that_are_none_are_refused(data: Path, tmp_path: Path) -> None:
    """And the run folder is not begun, so that the corrected command can have it."""
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
            train_regions(data, run, wrong, SETTINGS)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        train_regions(data, run, tmp_path / "absent.pth", SETTINGS)
    assert not run.exists()


def test_a_broken_photo_is_named(data: Path, start: Path, tmp_path: Path) -> None:
    other = tmp_path / "data"
    shutil.copytree(data, other)
    photos = list((other / "images").iterdir())
    for photo in photos:
        photo.write_bytes(b"no photo")
    with pytest.raises(DataError, match=r"\.jpg: not an image of a known format") as caught:
        train_regions(other, tmp_path / "run", start, SETTINGS)
    assert "\n" not in str(caught.value)
    photos[0].unlink()
    with pytest.raises(DataError, match=f"image {photos[0].stem}: there is no photo of it"):
        train_regions(other, tmp_path / "run", start, SETTINGS)


def test_what_cannot_be_trained_is_refused(data: Path, start: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    write_image(empty, "1000", "[/EN#1/other A box] here .\n", photo=(10, 10))
    (empty / "train.txt").write_text("1000\n")
    with pytest.raises(DataError, match="there is nothing to learn from"):
        train_regions(empty, tmp_path / "run", start, SETTINGS)
    wrong = replace(SETTINGS, network=replace(SETTINGS.network, size=65))
    with pytest.raises(DataError, match="multiple of 32, not 65"):
        train_regions(data, tmp_path / "run", start, wrong)
    assert not (tmp_path / "run").exists()


def test_an_epoch_is_left_for_all_layers(data: Path, start: Path, tmp_path: Path) -> None:
    """However many are asked for the heads alone."""
    settings = settings_of("train.head_epochs=9", "train.epochs=1")
    learnt = load_file(train_regions(data, tmp_path / "run", start, settings))
    assert not torch.equal(
        learnt["trunk.late.0.1.expand.weight"], fold_published(random_weights())["late.0.1.expand.weight"].half()
    )


# --- fine-tuning --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fine_tuned(finished: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_regions(data, tmp_path_factory.mktemp("runs") / "fine-tuned", finished, FINE_TUNE)


def test_a_network_is_fine_tuned(finished: Path, fine_tuned: Path) -> None:
    """In all layers, but for the frozen ones; its shape stays, and its EMA is the result."""
    before, after = load_file(finished), load_file(fine_tuned)
    assert before.keys() == after.keys()
    assert torch.equal(before["sides"], after["sides"])
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert {name for name in before if ".filter." in name or name.startswith(("trunk.stem.", "trunk.early."))} <= kept
    assert not kept & {"trunk.late.0.1.expand.weight", "describe.feature.weight", "propose.0.say.weight"}
    state = load_file(fine_tuned.parent / "step-00000010" / "training.safetensors")
    name = "network/region_head/feature/weight"
    assert not torch.equal(state[f"ema.module.{name}"], state[f"model.{name}"])
    assert torch.equal(after["describe.feature.weight"], state[f"ema.module.{name}"].half())


def test_words_learn_before_a_network_that_has_none(finished: Path, data: Path, tmp_path: Path) -> None:
    """In the first epoch the network to start from keeps all its weights; then it learns at its share of the rates."""
    kept, take_step = load_file(finished), Trainer.take_step
    seen: list[bool] = []
    rates: list[list[float]] = []

    def watched(trainer: Trainer[Any], parts: Any) -> dict[str, float]:
        figures = take_step(trainer, parts)
        assert isinstance(trainer.task, RegionTask)
        head = trainer.task.model.network.region_head.feature.weight
        seen.append(torch.equal(head.detach().half(), kept["describe.feature.weight"]))
        rates.append([group["lr"] for group in trainer.optimizer.param_groups[:2]])
        return figures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", watched)
        train_regions(data, tmp_path / "again", finished, settings_of("train.fine_tune=0.25"))
    assert seen == [True] * 5 + [False] * 5
    cycles = [one_cycle(done, 0.05, 0.01) for done in (9.5 / 10, 4.5 / 5)]  # of the last step, each from its own start
    assert rates[-1] == pytest.approx([2e-3 * cycles[0], 0.25 * 2e-3 * cycles[1]])


def test_a_network_keeps_its_shape(finished: Path, data: Path, tmp_path: Path) -> None:
    train_regions(
        data, tmp_path / "run", finished, make_settings(RegionSettings(), texts=["train.epochs=1", "data.limit=6"])
    )
    assert json.loads((tmp_path / "run" / "config.json").read_text())["network"]["size"] == 64
    with pytest.raises(DataError, match=r"network\.size: the network to start from has 64, not 448; leave it out"):
        train_regions(data, tmp_path / "other", finished, make_settings(RegionSettings(), texts=["network.size=448"]))
    assert not (tmp_path / "other").exists()


def test_later_weights_count_more_in_the_ema(finished: Path, data: Path, tmp_path: Path) -> None:
    """In proportion to their step."""
    take_step, seen = Trainer.take_step, []

    def watched(trainer: Trainer[Any], parts: Any) -> dict[str, float]:
        figures = take_step(trainer, parts)
        assert isinstance(trainer.task, RegionTask)
        seen.append(trainer.task.model.network.region_head.feature.weight.detach().clone())
        return figures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", watched)
        weights = train_regions(data, tmp_path / "run", finished, FINE_TUNE)
    shares = torch.arange(1.0, 11) + 1  # the weights that it starts from have a share of 1
    start = load_file(finished)["describe.feature.weight"].float()
    known = start + sum(share * weight for share, weight in zip(shares, seen, strict=True))
    expected = known / (1 + shares.sum())
    torch.testing.assert_close(load_file(weights)["describe.feature.weight"].float(), expected, rtol=2e-3, atol=1e-4)


def test_the_ema_begins_when_all_layers_learn() -> None:
    assert [late_ema_decay(0.9, 3, step) for step in range(1, 7)] == pytest.approx([0, 0, 0, 1 / 3, 1 / 2, 3 / 5])
    assert late_ema_decay(0.9, 0, 1000) == 0.9


def test_fine_tuning_that_was_stopped_ends_with_the_same_bytes(
    finished: Path, fine_tuned: Path, data: Path, tmp_path: Path
) -> None:
    take_step = Trainer.take_step

    def broken(trainer: Trainer[Any], parts: Any) -> dict[str, float]:
        if trainer.step == 8:
            raise KeyboardInterrupt
        return take_step(trainer, parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", broken)
        with pytest.raises(KeyboardInterrupt):
            train_regions(data, tmp_path / "run", finished, FINE_TUNE)
    assert train_regions(data, tmp_path / "run", finished, FINE_TUNE).read_bytes() == fine_tuned.read_bytes()


def test_a_network_that_is_none_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"no network")
    with pytest.raises(DataError, match=r"x\.safetensors: broken region network") as caught:
        train_regions(data, tmp_path / "run", tmp_path / "x.safetensors", FINE_TUNE)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


# --- boxes of classes ---------------------------------------------------------------------------------------------


@pytest.fixture
def boxes(data: Path, tmp_path: Path) -> Path:
    """Twenty photos with dogs or cats, some with a caption."""
    photo = next((data / "images").iterdir())
    lines = []
    for number in range(20):
        shutil.copy(photo, tmp_path / f"p{number}.jpg")
        things = [["dog", 10, 10, 60, 60]] if number % 2 else [["cat", 0, 0, 50, 70], ["cat", 50, 0, 99, 70]]
        captions = {"captions": ["A brown puppy sits in the grass."]} if number % 4 == 1 else {}
        lines.append({"image": f"p{number}.jpg", "width": 100, "height": 80, "boxes": things} | captions)
    path = tmp_path / "boxes.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_photos_with_class_boxes_join_the_others(data: Path, boxes: Path) -> None:
    """And their words the vocabulary."""
    fit, photos = load_examples(data, "fit"), read_class_boxes(boxes)
    found = read_data(fit, photos, rare_word=1)
    assert len(found.photos) == len(found.targets) == len(fit) + 20
    assert all((target.absent is None) == (number < len(fit)) for number, target in enumerate(found.targets))
    assert {"puppy", "brown", "dog", "cats", "<animals>"} <= set(found.vocabulary.words)


def test_a_run_learns_from_boxes_of_classes_too(data: Path, start: Path, boxes: Path, tmp_path: Path) -> None:
    """Photos that are kept apart are not even looked at, and other boxes are another run."""
    apart = [number for number in range(20) if is_kept_apart(f"p{number}")]
    assert apart
    for number in apart:
        (tmp_path / f"p{number}.jpg").unlink()
    settings = settings_of("data.partial_weight=0.5")
    weights = train_regions(data, tmp_path / "run", start, settings, boxes)
    lines = [line for line in read_metrics(weights.parent) if "score" in line]
    assert len(lines) == 2 * ((len(load_examples(data, "fit")) + 20 - len(apart)) // 4)
    assert all(isfinite(line[name]) for line in lines for name in LOSS_WEIGHTS)
    with pytest.raises(DataError, match="another boxes; choose another folder"):
        train_regions(data, tmp_path / "run", start, settings)
