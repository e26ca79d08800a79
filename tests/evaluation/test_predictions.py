"""The exchange file: what is written is read back, and what is wrong is named with its line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paths import ROOT
from phrasechain.core.errors import DataError
from phrasechain.core.json_lines import LINE_LIMIT
from phrasechain.evaluation.predictions import Prediction, read_predictions, write_predictions

GOOD = {"image": "7", "caption": 0, "start": 0, "end": 5, "box": [1, 2, 3.5, 4], "regions": []}
REGIONS = [{"box": [0, 0, 1, 1], "probability": 0.5}, {"box": [0, 0, 2, 2], "probability": 0.25}]
pixels = st.floats(-1e6, 1e6)
boxes = st.tuples(pixels, pixels, pixels, pixels).map(
    lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
)
predictions = st.builds(
    lambda image, numbers, box, regions: Prediction(
        image,
        *numbers,
        box,
        np.array([region for region, _ in regions]).reshape(-1, 4),
        np.sort([probability for _, probability in regions])[::-1],
    ),
    st.text(st.characters()),
    st.tuples(*[st.integers(0, 1000)] * 3),
    boxes,
    st.lists(st.tuples(boxes, st.floats(0, 1)), max_size=4),
)


def written(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def as_lists(prediction: Prediction) -> list[Any]:
    return [*prediction.key, prediction.box, prediction.region_boxes.tolist(), prediction.probabilities.tolist()]


@settings(deadline=None)
@given(st.lists(predictions, max_size=4))
def test_reading_gives_back_exactly_what_was_written(tmp_path_factory: Any, items: list[Prediction]) -> None:
    path = tmp_path_factory.mktemp("predictions") / "p.jsonl"
    write_predictions(path, items)
    assert [as_lists(found) for found in read_predictions(path)] == [as_lists(item) for item in items]
    assert [entry.name for entry in path.parent.iterdir()] == ["p.jsonl"]


def test_the_writer_keeps_the_first_regions(tmp_path: Path) -> None:
    ranked = Prediction("7", 0, 0, 5, (0, 0, 1, 1), np.arange(12.0).repeat(4).reshape(12, 4), np.linspace(1, 0, 12))
    for top, count in ((10, 10), (3, 3), (None, 12)):
        write_predictions(tmp_path / "p.jsonl", [ranked], top=top)
        (found,) = read_predictions(tmp_path / "p.jsonl")
        assert found.region_boxes[:, 0].tolist() == list(range(count))


def test_the_example_of_the_documentation_is_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    (tmp_path / "p.jsonl").write_text(page.split("```json\n")[1].split("```")[0], encoding="utf-8")
    (found,) = read_predictions(tmp_path / "p.jsonl")
    assert found.key == ("1000092795", 0, 0, 15)
    assert found.probabilities.tolist() == [0.71, 0.2]


def test_line_ends_empty_lines_and_further_keys_are_fine(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", GOOD | {"regions": REGIONS, "system": "ours"})
    path.write_bytes(b"\xef\xbb\xbf\r\n" + path.read_bytes().replace(b"\n", b"\r\n") + b"\n  \n")
    (found,) = read_predictions(path)
    assert found.key == ("7", 0, 0, 5)
    assert found.box == (1, 2, 3.5, 4)
    assert found.region_boxes.tolist() == [[0, 0, 1, 1], [0, 0, 2, 2]]
    assert found.probabilities.tolist() == [0.5, 0.25]
    assert found.line == 2


def test_regions_may_be_left_out(tmp_path: Path) -> None:
    (found,) = read_predictions(written(tmp_path / "p.jsonl", {k: v for k, v in GOOD.items() if k != "regions"}))
    assert found.region_boxes.shape == (0, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": 7}, '"image" is not a text'),
        ({"image": "7" * 513}, '"image" is not a text of at most 512'),
        ({"caption": True}, '"caption" is not a whole number'),
        ({"start": -1}, '"start" is not a whole number of 0 or more'),
        ({"end": 2.0}, '"end" is not a whole number'),
        ({"end": 10**30}, '"end" is not a whole number'),
        ({"box": None}, "four numbers"),
        ({"box": [1, 2, 3]}, "four numbers"),
        ({"box": ["1", 2, 3, 4]}, "four numbers"),
        ({"box": [True, 2, 3, 4]}, "four numbers"),
        ({"box": [0, 0, 10**400, 4]}, "too many digits"),
        ({"box": [0, 0, 1e7, 4]}, "within ±1,000,000 pixels"),
        ({"box": [10, 20, 5, 30]}, r"the box \[10, 20, 5, 30\] ends before it starts"),
        ({"regions": {}}, '"regions" is not a list'),
        ({"regions": [1]}, '"regions" is not a list of objects'),
        ({"regions": [{"box": [0, 0, 1, 1]}]}, '"probability" is not a number'),
        ({"regions": [{"box": [0, 0, 1, 1], "probability": 1.5}]}, "between 0 and 1"),
        ({"regions": [{"probability": 1}]}, "four numbers"),
        ({"regions": REGIONS[::-1]}, "order of falling probability"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "p.jsonl", GOOD, GOOD | change)
    with pytest.raises(DataError, match=f"p.jsonl:2: .*{message}"):
        list(read_predictions(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]", "not a JSON object"),
        (b'{"image": "7"', "broken JSON: .* column 14"),
        (b'{"box": [NaN, 0, 1, 1]}', "NaN is not a number"),
        (b'{"box": [1e999, 0, 1, 1], "image": "7", "caption": 0, "start": 0, "end": 1}', "within"),
        (b'{"image": "\xff"}', "byte 12 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5000, "too many digits"),
        (b" " * LINE_LIMIT + b"1", "longer than"),
    ],
)
def test_broken_lines_are_errors_not_tracebacks(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n" + line + b"\n")
    with pytest.raises(DataError, match=f"p.jsonl:2: .*{message}"):
        list(read_predictions(path))


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_arbitrary_bytes_and_cut_files_give_predictions_or_a_clear_error(
    tmp_path_factory: Any, noise: bytes, cut: int
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "p.jsonl"
    whole = json.dumps(GOOD | {"regions": REGIONS}).encode() + b"\n"
    path.write_bytes((whole + whole)[:cut] + noise)
    keys, message = [], ""
    try:
        keys = [prediction.key for prediction in read_predictions(path)]
    except DataError as error:
        message = str(error)
    assert set(keys) <= {("7", 0, 0, 5)}
    assert not message or message.startswith(f"{path}:")
    assert "\n" not in message


def test_a_folder_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder; give a predictions file"):
        list(read_predictions(tmp_path))
    with pytest.raises(DataError, match=r"none\.jsonl: cannot be read: No such file"):
        list(read_predictions(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"p\.jsonl: cannot be written: No such file"):
        write_predictions(tmp_path / "none" / "p.jsonl", [])


def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", GOOD)
    before = path.read_bytes()

    def broken() -> Any:
        yield Prediction("7", 0, 0, 5, (0, 0, 1, 1))
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_predictions(path, broken())
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.jsonl"]
