"""Tiny runs: they learn, they are the same after a kill, they keep what they have, and they refuse what they must."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paths import importing
from phrasechain.baselines.registry import BUILDERS
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions
from phrasechain.data.class_boxes import is_kept_apart
from phrasechain.data.dataset import is_dev, load_examples
from phrasechain.evaluation.predict import count_right
from phrasechain.model.checkpoint import RunState, load_checkpoint, read_run_state, write_folder
from phrasechain.model.config import Config
from phrasechain.store.reader import FeatureStore
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter
from phrasechain.training import loop, run_folder
from phrasechain.training.grounder import task as training
from phrasechain.training.grounder.task import train
from phrasechain.training.log import read_metrics
from tiny_grounding import DIMENSION, assert_close, last_weights, tiny_config, write_world

CONFIG = tiny_config("train.epochs=8", "train.save_every=5", "model.dropout=0.1")
World = tuple[Path, Path]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHRASECHAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def no_pictures(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run has drawn its curves; drawing those of all others takes longer than the runs."""
    monkeypatch.setattr(loop, "draw_curves", lambda *arguments: None)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def finished(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(*world, tmp_path_factory.mktemp("runs") / "whole", CONFIG)


def run_state(run: Path) -> RunState:
    state = read_run_state(run)
    assert state is not None
    return state


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """All numbers that a run ends with: the weights, the best ones, and the optimiser's."""
    state = run_state(run)
    files = {
        "last": run / state.last / "model.safetensors",
        "best": run / state.best / "model.safetensors",
        "training": run / state.last / "training.safetensors",
    }
    return {f"{kind} {name}": value for kind, file in files.items() for name, value in load_file(file).items()}


def assert_same(run: Path, other: Path) -> None:
    mine, theirs = tensors(run), tensors(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    kept = [
        [{key: value for key, value in line.items() if key != "seconds"} for line in read_metrics(each)]
        for each in (run, other)
    ]
    assert kept[0] == kept[1]
    assert run_state(run) == run_state(other)


def test_a_run_learns_and_keeps_everything(finished: Path, world: World) -> None:
    lines = read_metrics(finished)
    losses = [line["loss"] for line in lines if "loss" in line]
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])
    scores = {line["step"]: line["dev"] for line in lines if "dev" in line}
    assert max(scores.values()) > 0.8
    state = run_state(finished)
    assert state.is_finished
    folders = {path.name for path in finished.iterdir() if path.is_dir()}
    assert folders == {state.best, state.last}
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    started = json.loads((finished / "environment.jsonl").read_text())
    assert started["torch"] == torch.__version__
    assert started["command"] == sys.argv
    assert json.loads((finished / "config.json").read_text())["model"]["rank"] == 16
    best = load_checkpoint(finished)
    assert best.card.score == max(scores.values()) == scores[best.card.step]
    dev = load_examples(world[0], "dev")
    counts = count_right(best.model, dev, FeatureStore.open(world[1]))
    assert counts[1, 0] / counts[1, 1] == best.card.score


def test_a_finished_run_is_left_alone(finished: Path, world: World) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != ".lock"}
    assert train(*world, finished, CONFIG) == finished
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != ".lock"} == before


def test_a_finished_run_of_an_earlier_version_is_left_alone(finished: Path, world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    old = json.loads((run / "config.json").read_text())
    old["train"]["average"], old["decode"]["how"] = old["train"].pop("ema"), old["decode"].pop("method")
    old["model"] |= {"bag": old["model"].pop("bag_of_words"), "members": old["model"].pop("ensemble")}
    del old["model"]["kind"]
    for objectness in (False, True):
        old["model"]["objectness"] = objectness
        (run / "config.json").write_text(json.dumps(old))
        if objectness:
            refused(world, run, CONFIG, r"config\.json: model\.objectness=True was removed from phrasechain")
        else:
            assert train(*world, run, CONFIG) == run
    assert json.loads((run / "config.json").read_text()) == old


def test_a_killed_run_ends_as_if_it_had_not_been(finished: Path, world: World, tmp_path: Path) -> None:
    """A process is really killed after its second checkpoint; the next one ends with the same weights and log."""
    run = tmp_path / "killed"
    program = (
        "import sys; from pathlib import Path; from phrasechain.training.grounder.task import train;"
        f"from {Path(__file__).stem} import CONFIG; train(*map(Path, sys.argv[1:]), CONFIG)"
    )
    command = [sys.executable, "-c", program, *map(str, (*world, run))]
    with subprocess.Popen(command, env=importing(__file__)) as process:
        while not (run / "step-00000010").exists():
            with suppress(subprocess.TimeoutExpired):
                assert process.wait(0.02) is None, "the run ended before its second checkpoint"
        os.kill(process.pid, signal.SIGKILL)
    assert not run_state(run).is_finished
    (run / ".step-00000015.abcd.tmp").mkdir()  # as if it had been killed while it wrote a checkpoint
    shutil.copytree(run / run_state(run).last, run / "step-00000099")  # or before it pointed to it
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "lo')
    train(*world, run, CONFIG)
    assert_same(run, finished)
    assert len((run / "environment.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(("parts", "ema"), [(1, 0.0), (3, 0.9)])
def test_resuming_is_exact(world: World, tmp_path: Path, parts: int, ema: float) -> None:
    """An interrupt at any save changes nothing, with EMA weights and in parts too."""
    config = replace(CONFIG, train=replace(CONFIG.train, epochs=2.0, accumulate=parts, ema=ema))
    whole = train(*world, tmp_path / "whole", config)
    run = tmp_path / "run"
    for _ in range(3):  # of four saves
        interrupt_after_a_save(world, run, config)
    train(*world, run, config)
    assert_same(run, whole)


def interrupt_after_a_save(world: World, run: Path, config: Config) -> None:
    """Train until one checkpoint is written and the next one would be."""
    saves = [write_folder, interrupted]

    def save(*arguments: object, **options: object) -> None:
        saves.pop(0)(*arguments, **options)  # type: ignore[operator]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "write_folder", save)
        with pytest.raises(KeyboardInterrupt):
            train(*world, run, config)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_parts_and_workers_change_nothing(world: World, tmp_path: Path) -> None:
    exact = tiny_config("train.epochs=1", "train.rate=3e-4", "model.dropout=0", "text.word_dropout=0")
    runs = [
        train(*world, tmp_path / name, replace(exact, train=replace(exact.train, **values)))
        for name, values in (("plain", {}), ("parts", {"accumulate": 3}), ("workers", {"workers": 1}))
    ]
    plain, _, workers = map(tensors, runs)
    assert all(torch.equal(workers[name], tensor) for name, tensor in plain.items())
    assert_close(last_weights(runs[1]), last_weights(runs[0]))


@pytest.mark.parametrize(
    "settings",
    [
        ("train.precision=bf16",),
        ("train.by=draw", "train.steps=9", "data.reading=authors", "train.clip_by=value", "train.schedule=constant"),
        ("model.chain=false", "loss.targets=hard", "loss.unlabelled=authors", "loss.regress=authors"),
        ("model.box_regression=false", "model.context=none", "data.unboxed=1", "loss.unlabelled=marginalise"),
        (
            "model.normalise=standardise",
            "model.transition=geometric",
            "decode.method=smoothing",
            "train.optimizer=adam",
        ),
        (
            "model.bag_of_words=0.3",
            "model.ensemble=2",
            "loss.targets=refined",
            "train.precision=bf16",
            "loss.unlabelled=marginalise",
        ),
        ("data.limit=6", "train.clip=0", "train.encoder_rate=0.1", "loss.divide=captions", "loss.offsets=sum"),
    ],
)
def test_every_way_runs(world: World, tmp_path: Path, settings: tuple[str, ...]) -> None:
    run = train(*world, tmp_path / "run", tiny_config("train.epochs=1", *settings))
    losses = [line["loss"] for line in read_metrics(run) if "loss" in line]
    assert np.isfinite(losses).all()
    assert len(set(losses)) == len(losses) > 1
    load_checkpoint(run)


def test_the_authors_way(shared_folder: Path, world: World, tmp_path: Path) -> None:
    """With a toy ELMo that carries its state from batch to batch, which no checkpoint keeps: resuming is exact."""
    elmo = shared_folder / "elmo-fixtures"
    files = (f"text.options={elmo / 'options.json'}", f"text.weights={elmo / 'lm_weights.hdf5'}")
    config = tiny_config("train.steps=4", "train.score_every=3", "train.save_every=2", *files, preset="authors")
    whole = train(*world, tmp_path / "whole", config)
    interrupt_after_a_save(world, tmp_path / "run", config)
    train(*world, tmp_path / "run", config)
    assert_same(tmp_path / "run", whole)
    assert load_checkpoint(whole).model.text.encoder.settings["stateful"]


def test_a_text_cache_is_written(shared_folder: Path, world: World, tmp_path: Path) -> None:
    """However few captions there are: the next run reads all of their vectors."""
    elmo, cache = shared_folder / "elmo-fixtures", tmp_path / "vectors"
    files = (f"text.options={elmo / 'options.json'}", f"text.weights={elmo / 'lm_weights.hdf5'}")
    config = tiny_config("text.encoder=elmo", f"text.cache={cache}", "train.epochs=1", *files)
    run = train(*world, tmp_path / "first", config)
    written = sorted(path.name for path in cache.iterdir())
    assert len(written) == 1
    again = train(*world, tmp_path / "second", config)
    assert sorted(path.name for path in cache.iterdir()) == written
    assert_same(run, again)


def test_it_stops_when_nothing_gets_better(world: World, tmp_path: Path) -> None:
    config = tiny_config("train.epochs=10", "train.rate=0", "train.patience=2", "train.score_every=3")
    run = train(*world, tmp_path / "run", config)
    assert [line["step"] for line in read_metrics(run) if "dev" in line] == [3, 6, 9]  # a best one, and two no better
    assert run_state(run) == RunState("step-00000009", "step-00000003", is_finished=True)
    assert not (run / "step-00000003" / "training.safetensors").exists()


def test_tensorboard_gets_the_scalars(world: World, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(*world, tmp_path / "run", tiny_config("train.epochs=1"), tensorboard=True)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    lines = [line for line in read_metrics(run) if "loss" in line]
    found = [(event.step, event.value) for event in events.Scalars("loss")]
    assert found == [(line["step"], pytest.approx(line["loss"], rel=1e-6)) for line in lines]


def test_a_run_without_tensorboard_leaves_no_folder(
    finished: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(DataError, match="--tensorboard: it is not installed: pip install"):
        train(*world, tmp_path / "run", CONFIG, tensorboard=True)
    assert not (tmp_path / "run").exists()
    assert train(*world, finished, CONFIG, tensorboard=True) == finished


# --- what is refused ----------------------------------------------------------------------------------------------


def refused(world: World, out: Path, config: Config, match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        train(*world, out, config)
    assert "\n" not in str(caught.value)


def test_another_config_is_refused(finished: Path, world: World) -> None:
    other = tiny_config("train.epochs=8", "train.save_every=5", "model.dropout=0.2", "train.seed=1")
    refused(world, finished, other, r"whole: a run with another model\.dropout, train\.seed; choose another folder")


def test_other_data_is_refused(finished: Path, world: World, tmp_path: Path) -> None:
    """The same ids with other words, or other regions with the same features' network."""
    shutil.copytree(world[0], tmp_path / "data")
    sentences = next((tmp_path / "data" / "Sentences").iterdir())
    sentences.write_text(sentences.read_text().replace("tile", "brick"))
    refused((tmp_path / "data", world[1]), finished, CONFIG, "a run with another annotations; choose")
    store = copy_store(world[1], tmp_path / "store", lambda regions: replace(regions, boxes=regions.boxes * 0.99))
    refused((world[0], store), finished, CONFIG, r"a run with another regions\.boxes; choose")
    info = replace(FeatureStore.open(world[1]).info, weights_sha256="cd" * 32)
    store = copy_store(world[1], tmp_path / "store 2", lambda regions: regions, info)
    refused((world[0], store), finished, CONFIG, r"a run with another regions\.weights_sha256; choose")


def copy_store(source: Path, target: Path, change: object, info: StoreInfo | None = None) -> Path:
    store = FeatureStore.open(source)
    with StoreWriter(target, info or store.info) as writer:
        for image in store:
            changed = change(store[image])  # type: ignore[operator]
            if changed is not None:
                writer.add(changed)
        writer.finish()
    return target


def test_another_version_is_refused(finished: Path, world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"format": "phrasechain run 99"}))
    refused(world, run, CONFIG, "run: made by another command or version of phrasechain; choose another folder")


def test_features_that_do_not_match_are_refused(world: World, tmp_path: Path) -> None:
    """Before the run's folder is made."""
    fit = [image for image in FeatureStore.open(world[1]) if not is_dev(image)]

    def without_two(regions: Regions) -> Regions | None:
        return None if regions.image in fit[:2] else regions

    absent = copy_store(world[1], tmp_path / "absent", without_two)
    refused(
        (world[0], absent),
        tmp_path / "run",
        CONFIG,
        rf"image {fit[0]}: not in the store .* \(and 1 more images\); extract",
    )
    other = copy_store(world[1], tmp_path / "other", lambda regions: replace(regions, width=99))
    refused((world[0], other), tmp_path / "run", CONFIG, "99×80 in the store .* but annotated as 100×80")
    assert not (tmp_path / "run").exists()


def test_features_that_are_not_finite_are_named(world: World, tmp_path: Path) -> None:
    """A damaged file: the step that meets it stops, and what was trained before is kept."""
    store = tmp_path / "store"
    shutil.copytree(world[1], store)
    (shard,) = store.glob("shard-*.safetensors")
    data = bytearray(shard.read_bytes())
    size = int.from_bytes(data[:8], "little")
    start, _ = json.loads(data[8 : 8 + size])["features"]["data_offsets"]
    images = list(FeatureStore.open(store).ids)
    place = next(number for number, image in enumerate(images) if not is_dev(image))
    at = 8 + size + start + place * 6 * DIMENSION * 4
    data[at : at + 4] = np.float32(np.nan).tobytes()
    shard.write_bytes(data)
    config = tiny_config("train.save_every=1", "train.batch=2")
    refused((world[0], store), tmp_path / "run", config, f"image {images[place]}: its region features are not finite")
    losses = [line["loss"] for line in read_metrics(tmp_path / "run")]
    assert np.isfinite(losses).all()
    if losses:
        assert load_checkpoint(tmp_path / "run").card.step == len(losses)


def test_a_loss_that_is_not_finite_is_not_learnt_from(world: World, tmp_path: Path) -> None:
    refused(
        world, tmp_path / "run", tiny_config("train.rate=1e30"), r"step \d+: the loss is not finite; lower train\.rate"
    )


def test_a_full_disk_keeps_what_was_trained(finished: Path, world: World, tmp_path: Path) -> None:
    """The system refuses to write more; with room again the same command ends as if nothing had been."""
    run, saves = tmp_path / "run", [0]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def save(*arguments: object, **options: object) -> None:
        saves[0] += 1
        if saves[0] == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        write_folder(*arguments, **options)  # type: ignore[arg-type]

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_folder, "write_folder", save)
            refused(world, run, CONFIG, r"cannot be written: File too large; make room .* what was trained is kept")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    kept = run_state(run)
    assert {path.name for path in run.iterdir() if path.is_dir()} == {kept.best, kept.last}
    train(*world, run, CONFIG)
    assert_same(run, finished)


def test_a_folder_that_cannot_be_made(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        refused(world, out, CONFIG, r"file.*: cannot be written: there is a file in its place; choose another folder")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_broken_checkpoint_is_named(finished: Path, world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    state = json.loads((run / "checkpoints.json").read_text())
    (run / "checkpoints.json").write_text(json.dumps(state | {"finished": False}))
    (run / state["last"] / "state.json").write_text('{"step": 3}')  # of a run in the middle of training
    refused(world, run, CONFIG, "written by another version of phrasechain; remove the run to restart")
    (run / state["last"] / "state.json").write_text('{"format": "phrasechain training 2"}')
    refused(world, run, CONFIG, "broken checkpoint: its state.json has no step; remove the run to restart")
    shutil.copy(finished / state["last"] / "state.json", run / state["last"])
    (run / state["last"] / "training.safetensors").write_bytes(b"\0" * 40)
    refused(world, run, CONFIG, r"training\.safetensors: broken .*; remove the run to restart")
    (run / "checkpoints.json").write_text('{"last": "../..", "best": "../..", "finished": false}')
    refused(world, run, CONFIG, r"checkpoints\.json: broken")


def test_a_phrase_without_a_word_is_named(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read = training.read_splits

    def emptied(*arguments: object, **options: object) -> object:
        fit, dev = read(*arguments, **options)  # type: ignore[arg-type]
        caption = fit[0].captions[0]
        phrase = replace(caption.phrases[0], end_token=caption.phrases[0].first_token)
        fit[0] = replace(fit[0], captions=(replace(caption, phrases=(phrase,)),))
        return fit, dev

    monkeypatch.setattr(training, "read_splits", emptied)
    refused(
        world, tmp_path / "run", CONFIG, r"image 1\d+, caption 0, characters 0 to \d+: the phrase has no word in it"
    )


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (
            ("train.optimizer=adma",),
            "no optimizer named 'adma'; there are: adam, adamw, adamax, sgd",
        ),
        (("train.schedule=cycle",), "no schedule named 'cycle'; there are: one_cycle, constant"),
        (("loss.targets=softer",), "no targets named 'softer'"),
        (("decode.method=vitrebi",), "no decoder named 'vitrebi'.*'viterbi'"),
        (("text.encoder=wrods",), "no text encoder named 'wrods'.*'words'"),
        (("text.encoder=elmo",), r"needs its files: --set text\.options=PATH"),
        (("text.encoder=transformer",), r"needs a model: --set text\.model=FOLDER"),
        (("model.context=R",), "no context named 'R'"),
        (("data.fit=nothing",), "no split named 'nothing'; there are: train, fit, dev, all"),
        (("data.fit=train",), "'train' and 'dev' have 8 images in common, such as 1000: the best"),
        (("data.unboxed=0.5",), r"loss\.unlabelled=skip leaves out again; set loss\.unlabelled=marginalise too"),
        (("text.vectors=/nowhere.txt",), r"/nowhere\.txt: cannot be read"),
    ],
)
def test_names_that_do_not_exist_are_refused(
    world: World, tmp_path: Path, settings: tuple[str, ...], match: str
) -> None:
    """Before the run's folder is made, so that the corrected command can have it."""
    refused(world, tmp_path / "run", tiny_config(*settings), match)
    assert not (tmp_path / "run").exists()


def test_nothing_to_learn_from(tmp_path: Path, world: World) -> None:
    shutil.copytree(world[0], tmp_path / "data")
    for file in (tmp_path / "data" / "Annotations").iterdir():
        file.write_text(file.read_text().replace("<object>", "<!--").replace("</object>", "-->"))
    refused((tmp_path / "data", world[1]), tmp_path / "run", CONFIG, "no phrase with a box in its split 'fit'")


# --- boxes of classes ---------------------------------------------------------------------------------------------


def test_a_run_learns_from_boxes_of_classes_too(tmp_path: Path) -> None:
    """The last images of a world have boxes of classes alone; two that are kept apart are not even looked at."""
    data, store = write_world(tmp_path)
    ids = (data / "train.txt").read_text().split()
    (data / "train.txt").write_text("\n".join(ids[:20]))
    boxes = tmp_path / "boxes.jsonl"
    lines = [
        {"image": f"{image}.jpg", "width": 100, "height": 80, "boxes": [["dog" if place % 2 else "bus", 3, 3, 45, 35]]}
        for place, image in enumerate(ids[20:])
    ]
    boxes.write_text("".join(json.dumps(line) + "\n" for line in lines))
    wanted = tiny_config("train.epochs=1", "model.absent=true", "loss.unlabelled=marginalise", "data.unboxed=0.5")
    said: list[str] = []
    run = train(data, store, tmp_path / "run", wanted, say=said.append, boxes=boxes)
    learnt = [image for image in ids[20:] if not is_kept_apart(image)]
    assert f"and {len(learnt)} photos with boxes of classes" in said[-1]
    checkpoint = load_checkpoint(run, BUILDERS)
    words = checkpoint.model.text.encoder.words  # type: ignore[attr-defined]
    assert {"dog", "bus"} <= set(words)
    boxes.write_text(boxes.read_text().replace("dog", "cat"))
    with pytest.raises(DataError, match="annotations; choose another folder"):
        train(data, store, run, wanted, boxes=boxes)
