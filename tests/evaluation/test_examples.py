"""The pictures of a report: which captions are shown, and the page that shows them."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from phrasechain.cli import app
from phrasechain.evaluation.evaluate import MatchedFiles, Protocol, match_files
from phrasechain.evaluation.examples import PICTURES, example_pictures
from phrasechain.evaluation.predictions import Prediction, write_predictions

IMAGES, SIDE = 40, 100
CAPTION = "a dog and a cat"
SPANS = ((0, 5), (10, 15))


def shifted(by: float) -> tuple[float, float, float, float]:
    """A box of 40 pixels that has moved away from (10, 10, 50, 50): the IoU falls from 1 to 0 as ``by`` grows to 40."""
    return 10 + by, 10, 50 + by, 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Image n has two phrases; one file moves its boxes by n pixels, the other does so for every third image alone."""
    (tmp_path / "photos").mkdir()
    lines, ours, theirs = [], [], []
    for number in range(IMAGES):
        name = f"photos/{number:02}.png"
        Image.fromarray(np.full((SIDE, SIDE, 3), 5 * number, np.uint8)).save(tmp_path / name)
        phrases = [{"start": start, "end": end, "boxes": [shifted(0)]} for start, end in SPANS]
        captions = [{"text": CAPTION, "phrases": phrases}]
        lines.append({"image": name, "width": SIDE, "height": SIDE, "split": "test", "captions": captions})
        for start, end in SPANS:
            ours.append(Prediction(f"{number:02}", 0, start, end, shifted(number)))
            theirs.append(Prediction(f"{number:02}", 0, start, end, shifted(number if number % 3 else 0)))
    (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    write_predictions(tmp_path / "ours.jsonl", ours)
    write_predictions(tmp_path / "theirs.jsonl", theirs)
    return tmp_path


def files_of(folder: Path, against: bool) -> MatchedFiles:
    other = folder / "theirs.jsonl" if against else None
    return match_files(folder / "ours.jsonl", folder / "data.jsonl", "test", Protocol(), other)


def numbers(folder: Path, against: bool) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for picture in example_pictures(files_of(folder, against)):
        found.setdefault(picture.group, []).append(int(picture.image))
    return found


def test_the_worst_the_best_and_those_that_differ(folder: Path) -> None:
    """IoU ≥ 0.5 up to a shift of 13: from 14 on every third image is right in one file and wrong in the other."""
    assert numbers(folder, against=False) == {"worst": list(range(39, 27, -1)), "best": list(range(12))}
    found = numbers(folder, against=True)
    assert found["worst"] == list(range(39, 31, -1))
    assert found["best"] == list(range(8))
    assert found["different"] == [30, 27, 24, 21, 18, 15]  # those above are among the worst
    assert PICTURES == 24


def test_what_is_said_below_a_picture(folder: Path) -> None:
    pictures = example_pictures(files_of(folder, against=True))
    best = next(picture for picture in pictures if picture.image == "02")
    assert best.lines == tuple(f"{phrase}: IoU 0.90 right, the other 0.90 right" for phrase in ("a dog", "a cat"))
    last = next(picture for picture in pictures if picture.image == "30")
    assert last.lines[0] == "a dog: IoU 0.14 wrong, the other 1.00 right"
    with Image.open(io.BytesIO(best.jpeg)) as single, Image.open(io.BytesIO(last.jpeg)) as pair:
        assert single.width <= 480
        assert single.width < pair.width <= 900


def test_photos_that_cannot_be_shown_are_left_out(folder: Path) -> None:
    (folder / "photos" / "39.png").unlink()
    (folder / "photos" / "38.png").write_bytes(b"no photo")
    Image.new("RGB", (30, 20)).save(folder / "photos" / "37.png")
    assert numbers(folder, against=False)["worst"] == list(range(36, 24, -1))
    for photo in (folder / "photos").iterdir():
        photo.unlink()
    assert example_pictures(files_of(folder, against=True)) == []


def test_captions_without_a_prediction_are_not_drawn(folder: Path) -> None:
    lines = (folder / "ours.jsonl").read_text().splitlines(keepends=True)
    (folder / "ours.jsonl").write_text("".join(lines[1:]))
    assert numbers(folder, against=False)["best"][0] == 1


@pytest.mark.parametrize("against", [True, False])
def test_the_page_explains_and_shows(folder: Path, against: bool) -> None:
    command = ["evaluate", "ours.jsonl", "--data", "data.jsonl", "--html", "out.html", "--resamples", "5"]
    command = [str(folder / word) if "." in word else word for word in command]
    command += ["--against", str(folder / "theirs.jsonl")] if against else []
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.exception
    page = (folder / "out.html").read_text()
    encoded = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    assert len(encoded) == (22 if against else 24)
    for data in encoded:
        Image.open(io.BytesIO(base64.b64decode(data))).load()
    assert "<h2>What the figures mean</h2>" in page
    for name in ("accuracy at IoU", "mean IoU", "pointing game", "rivals in the caption", "errors", "interval"):
        assert f"<dt>{name}</dt>" in page
    assert ("<dt>p</dt>" in page) == ("Where the two files differ" in page) == against
    assert "<dt>ranked regions</dt>" not in page  # which the file does not have
    assert "http" not in page
