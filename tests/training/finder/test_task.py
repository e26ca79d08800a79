"""A tiny run on made-up captions: it learns, it is the same after a kill, and it refuses what it must."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from official_layout import write_image
from paths import importing
from phrasechain import cli
from phrasechain.core.errors import DataError
from phrasechain.core.settings import make_settings
from phrasechain.data.dataset import is_dev
from phrasechain.data.markup import parse_caption
from phrasechain.phrases.finder import PhraseFinder
from phrasechain.training.finder.settings import FinderSettings
from phrasechain.training.finder.task import held_out, score, train_finder
from phrasechain.training.log import read_metrics

TEXTS = (
    "model.word_dimension=8",
    "model.buckets=32",
    "model.ngram_dimension=8",
    "model.hidden=12",
    "model.dropout=0.1",
    "data.rare_word=1",
    "data.paragraphs=0.2",
    "train.epochs=6",
    "train.batch=8",
    "train.rate=0.03",
    "train.ema=0.9",
    "train.save_every=10",
)


def settings_of(*texts: str) -> FinderSettings:
    return make_settings(FinderSettings(), texts=[*TEXTS, *texts])


SETTINGS = settings_of()


def made_up(count: int) -> str:
    rng = np.random.default_rng(0)
    people, things = ["A man", "The old woman", "Two kids"], ["a ball", "the red box", "hats"]
    lines = []
    for number in range(count):
        who, what = people[rng.integers(3)], things[rng.integers(3)]
        verb = ("sees", "holds")[rng.integers(2)]
        lines.append(f"{1000 + number // 2}\t{number % 2}\t[/EN#1/people {who}] {verb} [/EN#2/other {what}] .\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sentences.tsv"
    path.write_text(made_up(120))
    return path


@pytest.fixture(scope="module")
def finished(sentences: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_finder(sentences, tmp_path_factory.mktemp("runs") / "whole", settings=SETTINGS)


def test_a_run_learns_and_leaves_weights_and_notes(finished: Path) -> None:
    lines = read_metrics(finished.parent)
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == SETTINGS.train.epochs * 10  # 80 captions are learnt from
    assert sum(losses[-5:]) < sum(losses[:5]) / 5
    scores = [line for line in lines if "written F1" in line]
    assert len(scores) == SETTINGS.train.epochs
    assert scores[-1]["captions"] == 40
    for name in ("stored F1", "stored category", "written F1", "written category"):
        assert scores[-1][name] > 95
    assert json.loads((finished.parent / "config.json").read_text())["train"]["seed"] == 0
    phrases = PhraseFinder.from_pretrained(finished).find("The old woman holds hats")
    assert [(phrase.text, phrase.category) for phrase in phrases] == [("The old woman", "people"), ("hats", "other")]


def test_a_finished_run_is_left_alone(finished: Path, sentences: Path) -> None:
    before = finished.stat().st_mtime_ns
    assert train_finder(sentences, finished.parent, settings=SETTINGS) == finished
    assert finished.stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_killed_run_ends_as_if_it_had_not_been(finished: Path, sentences: Path, tmp_path: Path) -> None:
    """A process is really killed after its second checkpoint; the next one ends with the same bytes."""
    run = tmp_path / "killed"
    program = (
        "import sys; from pathlib import Path; from phrasechain.training.finder.task import train_finder;"
        f"from {Path(__file__).stem} import SETTINGS; train_finder(*map(Path, sys.argv[1:]), settings=SETTINGS)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(sentences), str(run)], env=importing(__file__)
    ) as process:
        while not (run / "step-00000020").exists():
            with suppress(subprocess.TimeoutExpired):
                assert process.wait(0.01) is None, "the run ended before its second checkpoint"
        os.kill(process.pid, signal.SIGKILL)
    assert not (run / "finder.safetensors").exists()
    again = train_finder(sentences, run, settings=SETTINGS)
    assert again.read_bytes() == finished.read_bytes()
    lines = [[{**line, "seconds": 0} for line in read_metrics(each)] for each in (run, finished.parent)]
    assert lines[0] == lines[1]


def test_another_run_is_refused(finished: Path, sentences: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a run with another model\.hidden, train\.seed; choose another folder"):
        train_finder(sentences, finished.parent, settings=settings_of("train.seed=1", "model.hidden=9"))
    other = tmp_path / "other.tsv"
    other.write_text(made_up(118))
    with pytest.raises(DataError, match="a run with another held out, captions; choose another folder"):
        train_finder(other, finished.parent, settings=SETTINGS)


def test_what_cannot_be_trained_is_refused(sentences: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 captions are too few"):
        train_finder(sentences, tmp_path / "run", settings=settings_of("data.limit=2"))
    with pytest.raises(DataError, match=r"absent\.txt: cannot be read"):
        train_finder(sentences, tmp_path / "run", vectors=tmp_path / "absent.txt", settings=SETTINGS)
    assert not (tmp_path / "run").exists()


def test_the_command_trains_as_the_function_does(
    sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("man 1 0 0\nzebra 0 1 0\n")
    out, options = tmp_path / "run", {"--epochs": "1", "--seed": "3", "--limit": "24", "--vectors": str(vectors)}
    (tmp_path / "mine.toml").write_text("[model]\nhidden = 16\nbuckets = 99\n")
    options |= {"--config": str(tmp_path / "mine.toml"), "--set": "model.buckets=64", "--preset": "default"}
    arguments = [word for option in options.items() for word in option]
    monkeypatch.setattr(
        sys, "argv", ["phrasechain", "train-finder", "--sentences", str(sentences), "--out", str(out), *arguments]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert capsys.readouterr().out == f"{out / 'finder.safetensors'}\n"
    config = json.loads((out / "config.json").read_text())
    expected = make_settings(
        FinderSettings(),
        texts=["train.epochs=1", "train.seed=3", "data.limit=24", "model.hidden=16", "model.buckets=64"],
    )
    assert {name: config[name] for name in ("model", "data", "train")} == asdict(expected)
    assert "zebra" in PhraseFinder.load(out / "finder.safetensors").words


def test_given_vectors_join_the_vocabulary(sentences: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("man 1 0 0\nzebra 0 1 0\nball 0 0 1\n")
    settings = settings_of("train.epochs=1")
    words = PhraseFinder.load(train_finder(sentences, tmp_path / "run", vectors=vectors, settings=settings)).words
    assert "zebra" in words
    assert len(set(words)) == len(words)


# ---- what is held out ----


def test_reserved_images_are_held_out_and_others_by_their_id() -> None:
    images = [str(number) for number in range(100)]
    reserved = {"3", "5", "absent"}
    chosen = held_out(images, reserved, 20)
    assert len(chosen) == 20
    assert chosen >= {"3", "5"}
    assert "absent" not in chosen
    assert held_out(reversed(images), reserved, 20) == chosen
    assert held_out(images, reserved, 10) < chosen
    assert len(held_out(images)) == 33
    assert held_out(images, images) == set(images)


def test_val_and_dev_of_a_dataset_are_never_learnt_from(
    sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    ids = [str(number) for number in range(1000, 1012)]
    for image in ids:
        write_image(data, image, "[/EN#1/other A box] here .\n", photo=(10, 10))
    (data / "val.txt").write_text("".join(f"{image}\n" for image in ids[8:]))
    (data / "train.txt").write_text("".join(f"{image}\n" for image in ids[:8]))
    from phrasechain.training.finder.task import _reserved

    assert _reserved(data) == {*ids[8:], *filter(is_dev, ids[:8])}
    assert len(_reserved(data)) > 4


# ---- scores ----


def test_scores_by_hand() -> None:
    """Two captions: of 4 gold phrases that can be seen, 3 of 4 guessed spans are right, and 2 of these by type."""
    captions = [
        parse_caption("[/EN#1/people A man] 's [/EN#2/clothing/other hat] ."),
        parse_caption("[/EN#1/people He] saw [/EN#0/notvisual it] by [/EN#2/scene the sea] ."),
    ]
    guesses = {
        ("A", "man", "'s", "hat", "."): [3, 4, 0, 15, 0],
        ("He", "saw", "it", "by", "the", "sea", "."): [1, 0, 17, 0, 13, 0, 0],
    }

    class Fixed(PhraseFinder):
        def label(self, captions):  # type: ignore[no-untyped-def]
            return [guesses[tuple(caption)] for caption in captions]

    torch.manual_seed(0)
    found = score(Fixed(("a",), word_dimension=1, buckets=1, ngram_dimension=1, hidden=1), captions)
    assert found["stored F1"] == found["written F1"] == pytest.approx(100 * 3 / 4)
    assert found["stored category"] == found["written category"] == pytest.approx(100 * 2 / 3)
