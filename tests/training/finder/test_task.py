"""A tiny run on made-up captions: it learns, it is the same after a kill, and it refuses what it must."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from official_layout import write_image
from phrasechain import cli
from phrasechain.cli import finder
from phrasechain.core.errors import DataError
from phrasechain.data.dataset import is_dev
from phrasechain.data.markup import parse_caption
from phrasechain.phrases.finder import PhraseFinder
from phrasechain.training.finder.sentences import TaggedSentence
from phrasechain.training.finder.task import CHECKPOINT, Recipe, _Batches, held_out, score, train_finder
from phrasechain.training.run_folder import read_metrics

RECIPE = Recipe(
    *(8, 32, 8, 12),  # word dimension, buckets, n-gram dimension, hidden
    dropout=0.1,
    rare_word=1,
    paragraphs=0.2,
    epochs=6,
    batch=8,
    rate=0.03,
    average=0.9,
    checkpoint_steps=10,
)


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
    return train_finder(sentences, tmp_path_factory.mktemp("runs") / "whole", recipe=RECIPE)


def test_a_run_learns_and_leaves_weights_and_notes(finished: Path) -> None:
    lines = read_metrics(finished.parent)
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) == RECIPE.epochs * 10  # 80 captions are learnt from
    assert sum(losses[-5:]) < sum(losses[:5]) / 5
    scores = [line for line in lines if "written F1" in line]
    assert len(scores) == RECIPE.epochs
    assert scores[-1]["captions"] == 40
    for name in ("stored F1", "stored category", "written F1", "written category"):
        assert scores[-1][name] > 95
    assert json.loads((finished.parent / "config.json").read_text())["seed"] == RECIPE.seed
    phrases = PhraseFinder.from_pretrained(finished).find("The old woman holds hats")
    assert [(phrase.text, phrase.category) for phrase in phrases] == [("The old woman", "people"), ("hats", "other")]


def test_a_finished_run_is_left_alone(finished: Path, sentences: Path) -> None:
    before = finished.stat().st_mtime_ns
    assert train_finder(sentences, finished.parent, recipe=RECIPE) == finished
    assert finished.stat().st_mtime_ns == before


def test_a_killed_run_ends_as_if_it_had_not_been(finished: Path, sentences: Path, tmp_path: Path) -> None:
    """A process is really killed after its second checkpoint; the next one goes on to the same bytes."""
    run = tmp_path / "killed"
    program = (
        "import sys, json; from pathlib import Path; from phrasechain.training.finder import task as t;"
        "t.train_finder(Path(sys.argv[1]), Path(sys.argv[2]), recipe=t.Recipe(**json.loads(sys.argv[3])))"
    )
    command = [sys.executable, "-c", program, str(sentences), str(run), json.dumps(asdict(RECIPE))]
    with subprocess.Popen(command) as process:
        while _checkpoint_step(run) < 20:
            assert process.poll() is None, "the run ended before its second checkpoint"
        os.kill(process.pid, signal.SIGKILL)
    assert not (run / "finder.safetensors").exists()
    again = train_finder(sentences, run, recipe=RECIPE)
    assert again.read_bytes() == finished.read_bytes()
    assert read_metrics(run) == read_metrics(finished.parent)


def _checkpoint_step(run: Path) -> int:
    if not (run / CHECKPOINT).exists():
        return 0
    with safe_open(run / CHECKPOINT, "pt") as file:
        return int(file.metadata()["step"])


def test_another_run_is_refused(finished: Path, sentences: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a run with another hidden, seed; choose another folder"):
        train_finder(sentences, finished.parent, recipe=replace(RECIPE, seed=1, hidden=9))
    other = tmp_path / "other.tsv"
    other.write_text(made_up(118))
    with pytest.raises(DataError, match="a run with another held out, captions; choose another folder"):
        train_finder(other, finished.parent, recipe=RECIPE)


def test_a_broken_checkpoint_is_named(finished: Path, sentences: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((finished.parent / "config.json").read_bytes())
    for content in (b"\x00" * 40, (finished.parent / CHECKPOINT).read_bytes()[:-100]):
        (tmp_path / CHECKPOINT).write_bytes(content)
        with pytest.raises(DataError, match=r"checkpoint\.safetensors: broken checkpoint: .*remove it to begin anew"):
            train_finder(sentences, tmp_path, recipe=RECIPE)


def test_what_cannot_be_trained_is_refused(sentences: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2 captions are too few"):
        train_finder(sentences, tmp_path / "run", recipe=RECIPE, limit=2)
    with pytest.raises(DataError, match="at least 1"):
        train_finder(sentences, tmp_path / "run", recipe=replace(RECIPE, layers=0))
    with pytest.raises(DataError, match="from 0 to below 1"):
        train_finder(sentences, tmp_path / "run", recipe=replace(RECIPE, dropout=1.0))
    with pytest.raises(DataError, match=r"absent\.txt: cannot be read"):
        train_finder(sentences, tmp_path / "run", vectors=tmp_path / "absent.txt", recipe=RECIPE)
    assert not (tmp_path / "run").exists()


def test_the_command_trains_as_the_function_does(
    sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("man 1 0 0\nzebra 0 1 0\n")
    out, options = tmp_path / "run", {"--epochs": "1", "--seed": "3", "--limit": "24", "--vectors": str(vectors)}
    arguments = [word for option in options.items() for word in option]
    monkeypatch.setattr(
        sys, "argv", ["phrasechain", "train-finder", "--sentences", str(sentences), "--out", str(out), *arguments]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert capsys.readouterr().out == f"{out / 'finder.safetensors'}\n"
    config = json.loads((out / "config.json").read_text())
    expected = asdict(replace(Recipe(), epochs=1, seed=3))
    assert {name: config[name] for name in expected} == expected
    assert config["limit"] == 24
    assert "zebra" in PhraseFinder.load(out / "finder.safetensors").words


def test_the_command_has_the_epochs_of_the_recipe() -> None:
    assert signature(finder.train_finder).parameters["epochs"].default == Recipe().epochs


def test_given_vectors_join_the_vocabulary(sentences: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("man 1 0 0\nzebra 0 1 0\nball 0 0 1\n")
    recipe = replace(RECIPE, epochs=1)
    words = PhraseFinder.load(train_finder(sentences, tmp_path / "run", vectors=vectors, recipe=recipe)).words
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


# ---- batches and scores ----


def test_every_epoch_has_every_caption_once_and_alike_ones_together() -> None:
    sentences = [
        (TaggedSentence((f"w{number}",) * (1 + number % 7), (0,) * (1 + number % 7)),) for number in range(100)
    ]
    batches = _Batches(sentences, replace(RECIPE, unlike=0.0, paragraphs=0.0))
    orders = []
    for epoch in range(2):
        steps = [batches[epoch * batches.per_epoch + place] for place in range(batches.per_epoch)]
        seen = [sentence.tokens[0].lower() for step in steps for sentence in step]
        assert sorted(seen) == sorted(f"w{number}" for number in range(100))
        assert sum(len({len(sentence.tokens) for sentence in step}) for step in steps) <= 2 * len(steps)
        orders.append(seen)
    assert orders[0] != orders[1]
    assert batches[3] == _Batches(sentences, batches.recipe)[3]


def test_some_batches_are_paragraphs() -> None:
    sentences = [(TaggedSentence(("a",), (0,)),)] * 800
    batches = _Batches(sentences, replace(RECIPE, unlike=0.0))
    joined = [{len(sentence.tokens) for sentence in batches[step]} for step in range(batches.per_epoch)]
    assert {frozenset(sizes) for sizes in joined} == {frozenset({1}), frozenset({4})}
    assert 8 <= joined.count({4}) <= 34


def test_some_captions_are_changed() -> None:
    sentence = TaggedSentence(("A", "man", "runs", "."), (1, 2, 0, 0))
    batches = _Batches([(sentence,)] * 800, replace(RECIPE, unlike=0.25, paragraphs=0.0))
    found = [one for step in range(batches.per_epoch) for one in batches[step]]
    usual = sum(" ".join(one.tokens).lower() in ("a man runs .", "a man runs") for one in found)
    assert abs(usual / 800 - 0.75) < 0.05


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
