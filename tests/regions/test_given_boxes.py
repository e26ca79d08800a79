"""Boxes from a JSON file: read exactly, or refused with the file and the image."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phrasechain.core.errors import DataError
from phrasechain.core.schema import COORDINATE_LIMIT
from phrasechain.regions import given_boxes
from phrasechain.regions.given_boxes import read_given_boxes

SIDES = st.tuples(
    *[st.floats(-COORDINATE_LIMIT, COORDINATE_LIMIT, width=32) | st.integers(-COORDINATE_LIMIT, COORDINATE_LIMIT)] * 2
).map(sorted)
BOXES = st.tuples(SIDES, SIDES).map(lambda sides: [sides[0][0], sides[1][0], sides[0][1], sides[1][1]])
NAMES = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20)


def written(folder: Path, text: str, name: str = "boxes.json") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@given(st.dictionaries(NAMES, st.lists(BOXES, min_size=1, max_size=5), min_size=1, max_size=5))
def test_both_forms_give_what_was_written(tmp_path_factory: pytest.TempPathFactory, boxes: dict[str, list]) -> None:
    folder = tmp_path_factory.mktemp("boxes")
    lines = "\n".join(json.dumps({"image": image, "boxes": values}) for image, values in boxes.items())
    for path in (written(folder, json.dumps(boxes, indent=1)), written(folder, lines, "boxes.jsonl")):
        found = read_given_boxes(path)
        assert list(found) == list(boxes)
        for image, values in boxes.items():
            np.testing.assert_array_equal(found[image], np.array(values, np.float32))
            assert found[image].dtype == np.float32


@pytest.mark.parametrize("name", ["boxes.json", "boxes.jsonl"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("[]", "image '7': its value is not a list of 1 to 10,000 boxes"),
        ('{"a": 1}', "image '7': its value is not a list"),
        ("[" + "[0,0,1,1]," * 10_000 + "[0,0,1,1]]", "image '7': its value is not a list of 1 to 10,000 boxes"),
        ("[[0, 0, 1]]", "image '7': a \"box\" is not"),
        ("[[0, 0, 1, true]]", "image '7': a \"box\" is not"),
        ('[[0, 0, 1, "1"]]', "image '7': a \"box\" is not"),
        ("[0, 0, 1, 1]", "image '7': a \"box\" is not"),
        ("[[0, 0, 1, 1], [5, 0, 4, 1]]", r"image '7': the box \[5, 0, 4, 1\] ends before it starts"),
        ("[[0, 0, 1, 1000001]]", "image '7': a box is not within ±1,000,000 pixels"),
        ("[[0, 0, 1, 1e400]]", "image '7': a box is not within"),
        (f"[[0, 0, 1, 1{'0' * 400}]]", "image '7': a number has too many digits"),
        ("[[0, 0, 1, NaN]]", "NaN is not a number"),
        ("[[0, 0, 1, Infinity]]", "Infinity is not a number"),
    ],
)
def test_boxes_that_are_refused(tmp_path: Path, name: str, values: str, message: str) -> None:
    text = f'{{"7": {values}}}' if name == "boxes.json" else f'{{"image": "7", "boxes": {values}}}'
    with pytest.raises(DataError, match=rf"^.*{name}(:1)?: {message}") as error:
        read_given_boxes(written(tmp_path, text, name))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.json",
            '{"7": [[0,0,1,1]],\n "8": [[0,0,1,1]], "7": [[0,0,1,1]]}',
            r"a\.json: the key '7' appears twice",
        ),
        ("a.json", '{"7": [[0,0,1,1]],\n 8}', r"a\.json: broken JSON: .* at line 2, column 2"),
        ("a.json", "[[0,0,1,1]]", r"a\.json: not a JSON object such as"),
        ("a.json", "", r"a\.json: broken JSON"),
        ("a.json", "{}", r"a\.json: contains no boxes"),
        ("a.json", '{"": [[0,0,1,1]]}', r"a\.json: an image name must be"),
        ("a.json", "[" * 100_000, r"a\.json: broken JSON: .* nested too deeply"),
        ("a.jsonl", "\n\n", r"a\.jsonl: contains no boxes"),
        (
            "a.jsonl",
            '{"image": "7", "boxes": [[0,0,1,1]]}\n' * 2,
            r"a\.jsonl:2: a second list of boxes for the image '7'",
        ),
        ("a.jsonl", '{"image": 7, "boxes": [[0,0,1,1]]}', r"a\.jsonl:1: an image name must be"),
        ("a.jsonl", '{"7": [[0,0,1,1]]}', r'a\.jsonl:1: not \{"image"'),
        (
            "a.jsonl",
            '{"image": "7", "image": "7", "boxes": [[0,0,1,1]]}',
            r"a\.jsonl:1: the key 'image' appears twice",
        ),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read_given_boxes(written(tmp_path, text, name))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["none.json", "none.jsonl"])
def test_a_missing_file_and_a_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"{name}: cannot be read: No such file"):
        read_given_boxes(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=rf"{name}: cannot be read: Is a directory"):
        read_given_boxes(tmp_path / name)


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_boxes, "LARGEST", 30)
    monkeypatch.setattr(given_boxes, "MAX_IMAGES", 1)
    with pytest.raises(DataError, match="more than 1 images"):
        read_given_boxes(written(tmp_path, '{"1":[[0,0,1,1]],"2":[]}'))
    with pytest.raises(DataError, match="larger than 30 bytes"):
        read_given_boxes(written(tmp_path, '{"1":[[0,0,1,1]],"2":[[0,0,1,1]]}'))


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path, '\ufeff{"1": [[0, 0, 1, 1]]}')
    assert read_given_boxes(path)["1"].tolist() == [[0, 0, 1, 1]]
