"""The authors' boxes, denominators and verdicts from a checkpoint in their format, against a slow reading of it all.

Their evaluation takes the images one after the other, every caption of an image in a row of its own, with or without
phrases; their ELMo carries its state from row to row.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from authors_checkpoint import SlowAuthors, make_state, optimised
from authors_checkpoint import write as write_checkpoint
from official_layout import Object, write_image
from phrasechain.cli import app
from phrasechain.core.schema import Regions
from phrasechain.data.dataset import load_examples
from phrasechain.data.flickr30k import AUTHORS
from phrasechain.evaluation.predict import count_right
from phrasechain.evaluation.predictions import read_predictions
from phrasechain.model.import_authors import read_authors
from phrasechain.store.reader import FeatureStore
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter

WIDTH, HEIGHT, K = 100, 80, 3
BOXES = np.array([[0, 0, 40, 50], [30, 20, 90, 79], [10, 35, 50, 60]], np.float32)
#: Captions with two, no, one and again two phrases, of different lengths; an image whose captions have none.
CAPTIONS = {
    "1": (
        "[/EN#1/people A man] stands beside [/EN#2/people a man] .",
        "Nothing is to be seen in this very long caption without a phrase , which pads the others .",
        "[/EN#2/people Men] and [/EN#3/people women] wait .",
    ),
    "2": ("An image without a phrase .", "Two captions of it , and more words ."),
    "3": (
        "[/EN#1/other Red] is [/EN#3/other the colour] of [/EN#2/other this thing] here .",
        "One more caption without any .",
        "[/EN#2/animals A dog] barks .",
    ),
}
#: The second object's box belongs to 2 and 3, of which their code knows 2 alone.
OBJECTS: list[Object] = [(["1"], [(1, 1, 38, 51)], {}), (["2", "3"], [(31, 21, 91, 79)], {})]
GOLD = {"1": (1, 1, 38, 51), "2": (31, 21, 91, 79)}  # as annotated


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, Path]:
    data, rng = tmp_path / "data", np.random.default_rng(0)
    with StoreWriter(tmp_path / "store", StoreInfo(4, "float32", "bottom-up-attention")) as writer:
        for image, captions in CAPTIONS.items():
            write_image(data, image, "".join(f"{caption}\n" for caption in captions), OBJECTS)
            writer.add(Regions(image, WIDTH, HEIGHT, BOXES, rng.normal(size=(K, 4)).astype(np.float32)))
        writer.finish()
    (data / "test.txt").write_text("".join(f"{image}\n" for image in CAPTIONS))
    return data, tmp_path / "store"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    state = make_state(1)
    return write_checkpoint(tmp_path, state, optimizer_state_dict=optimised(state, chain=True, gamma=10.0))


class SlowEvaluation:
    """Their evaluation of the images in turn: the box of every phrase that their reading keeps."""

    def __init__(self, state: dict[str, Tensor], checkpoint: Path, data: Path, store: FeatureStore) -> None:
        self.state, self.store = state, store
        self.encoder = read_authors(checkpoint).text.encoder
        self.examples = load_examples(data, "test", compatibility=AUTHORS)

    def boxes(self) -> Iterator[tuple[tuple[str, int, int, int], list[float]]]:
        for example in self.examples:
            with torch.no_grad():
                rows = self.encoder([caption.tokens for caption in example.captions])  # (captions, L, e)
            found = self.store[example.image]
            spatial = [[x0 / WIDTH, y0 / HEIGHT, x1 / WIDTH, y1 / HEIGHT] for x0, y0, x1, y1 in BOXES.tolist()]
            spatial = [[*box, (box[2] - box[0]) * (box[3] - box[1])] for box in spatial]
            regions = torch.cat([torch.from_numpy(found.features.astype(np.float32)), torch.tensor(spatial)], 1)
            for caption, tokens in zip(example.captions, rows, strict=True):
                phrases = [phrase for phrase in caption.phrases if phrase.boxes]
                spans = [(phrase.first_token, phrase.end_token) for phrase in phrases]
                slow = SlowAuthors(self.state, tokens, spans, regions)
                for t, region in enumerate(best_path(slow, len(spans))):
                    key = (example.image, caption.index, phrases[t].start, phrases[t].end)
                    yield key, moved(BOXES[region].tolist(), slow.pair(t, region)[1:].tolist())


def best_path(slow: SlowAuthors, steps: int) -> tuple[int, ...]:
    def score(path: tuple[int, ...]) -> float:
        total = sum(float(slow.pair(t, region)[0]) for t, region in enumerate(path))
        return total + sum(slow.transition(t, path[t], path[t + 1], parts=1) for t in range(steps - 1))

    return max(itertools.product(range(K), repeat=steps), key=score)


def moved(box: list[float], offsets: list[float]) -> list[float]:
    """A region with its offsets, clipped to the image."""
    sides = [box[2] - box[0], box[3] - box[1]]
    centre = [box[0] + sides[0] / 2 + offsets[0] * sides[0], box[1] + sides[1] / 2 + offsets[1] * sides[1]]
    half = [side * np.exp(offset) / 2 for side, offset in zip(sides, offsets[2:], strict=True)]
    corners = [centre[0] - half[0], centre[1] - half[1], centre[0] + half[0], centre[1] + half[1]]
    return [min(max(value, 0.0), limit) for value, limit in zip(corners, (WIDTH, HEIGHT) * 2, strict=True)]


def slow_iou(gold: tuple[float, ...], box: list[float]) -> float:
    w = min(gold[2], box[2]) - max(gold[0], box[0])
    h = min(gold[3], box[3]) - max(gold[1], box[1])
    if w <= 0 or h <= 0:
        return 0.0
    both = (gold[2] - gold[0]) * (gold[3] - gold[1]) + (box[2] - box[0]) * (box[3] - box[1])
    return w * h / (both - w * h)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_an_imported_checkpoint_gives_their_boxes_denominators_and_verdicts(
    world: tuple[Path, Path], checkpoint: Path, tmp_path: Path
) -> None:
    data, store = world
    run("import-authors", checkpoint, "--features", store, "--out", tmp_path / "ours")
    run("evaluate", tmp_path / "ours", "--data", data, "--features", store, "--reading", "authors", "--resamples", 5)
    folder = tmp_path / "ours" / "test-gold-viterbi-authors"
    found = {prediction.key: prediction.box for prediction in read_predictions(folder / "predictions.jsonl")}
    slow = SlowEvaluation(make_state(1), checkpoint, data, FeatureStore.open(store))
    wanted = dict(slow.boxes())
    assert list(found) == list(wanted)
    assert len(wanted) == 6  # of the 8 phrases with a box
    for key, box in wanted.items():
        assert found[key] == pytest.approx(box, abs=2e-3)

    entities = {
        (example.image, caption.index, phrase.start, phrase.end): phrase.entity
        for example in slow.examples
        for caption in example.captions
        for phrase in caption.phrases
    }
    right = 0
    for key, box in wanted.items():
        x0, y0, x1, y1 = GOLD[str(entities[key])]
        right += slow_iou((x0, y0, x1 + 1, y1 + 1), box) >= 0.5
    report = json.loads((folder / "report.json").read_text())
    accuracy = report["sections"][1]["rows"][0]["mean"]
    assert (accuracy["sum"], accuracy["total"]) == (right, 6)
    assert (report["protocol"]["reading"], report["protocol"]["convention"]) == ("authors", "authors")
    model, examples = read_authors(checkpoint), load_examples(data, "test", compatibility=AUTHORS)
    assert count_right(model, examples, FeatureStore.open(store))[1].tolist() == [right, 6]  # as training scores itself


@pytest.mark.parametrize(
    ("options", "right", "total"),
    [
        ((), 0, 3),
        (("--reading", "authors"), 1, 2),
        (("--reading", "authors", "--convention", "half_open"), 0, 2),
        (("--convention", "authors"), 1, 3),
    ],
)
def test_reading_and_pixels_are_two_options(tmp_path: Path, options: tuple[str, ...], right: int, total: int) -> None:
    """A box that has IoU ≥ 0.5 with (11, 11, 21, 21), theirs, but not with (10, 10, 20, 20), ours."""
    objects: list[Object] = [(["1"], [(11, 11, 20, 20)], {}), (["2", "3"], [(31, 31, 40, 40)], {})]
    caption = "[/EN#1/other One] , [/EN#2/other two] and [/EN#3/other three] .\n"
    write_image(tmp_path / "data", "1", caption, objects)
    (tmp_path / "data" / "test.txt").write_text("1\n")
    line = {"image": "1", "caption": 0, "start": 0, "end": 3, "box": [16, 11, 21, 21]}
    (tmp_path / "boxes.jsonl").write_text(json.dumps(line))
    run("evaluate", tmp_path / "boxes.jsonl", "--data", tmp_path / "data", *options, "--json", tmp_path / "report.json")
    accuracy = json.loads((tmp_path / "report.json").read_text())["sections"][0]["rows"][0]["mean"]
    assert (accuracy["sum"], accuracy["total"]) == (right, total)


def test_an_unknown_reading_is_refused(tmp_path: Path, world: tuple[Path, Path]) -> None:
    (tmp_path / "boxes.jsonl").write_text("{}")
    arguments = ["evaluate", str(tmp_path / "boxes.jsonl"), "--data", str(world[0]), "--reading", "autors"]
    assert "no reading of the data named 'autors'" in str(CliRunner().invoke(app, arguments).exception)
