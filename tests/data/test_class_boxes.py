import json
from pathlib import Path
from typing import Any

import pytest

from phrasechain.core.errors import DataError
from phrasechain.data.class_boxes import ClassBox, ClassPhoto, is_kept_apart, read_class_boxes, single_things

LINE = {"image": "photos/7.jpg", "width": 100, "height": 80, "boxes": [["dog", 1, 2, 30.5, 40]]}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_photos_are_read_with_and_without_captions(tmp_path: Path) -> None:
    other = LINE | {"image": "8.webp", "captions": ["A dog."], "source": "val2017", "boxes": [["cup", 3, 3, 3, 9]]}
    first, second = read_class_boxes(write(tmp_path / "boxes.jsonl", LINE, other))
    assert (first.image, first.path, first.captions) == ("7", tmp_path / "photos" / "7.jpg", ())
    assert (first.width, first.height) == (100, 80)
    assert first.boxes == (ClassBox("dog", (1.0, 2.0, 30.5, 40.0)),)
    assert (second.captions, second.boxes) == (("A dog.",), ())  # a box without an area is none


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": ""}, '"image" is not the path'),
        ({"width": 0}, '"width" and "height"'),
        ({"boxes": [[1, 2, 3, 4]]}, r"\[class, x0, y0, x1, y1\]"),
        ({"boxes": [["dog", 1, 2, "3", 4]]}, "four numbers"),
        ({"boxes": [["dog", 9, 2, 3, 4]]}, "ends before it starts"),
        ({"boxes": [["", 1, 2, 3, 4]]}, "a class is not"),
        ({"captions": "A dog."}, '"captions" is not'),
        ({"boxs": []}, r"no key named 'boxs'.*did you mean 'boxes'"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "boxes.jsonl", LINE, LINE | {"image": "8.jpg"} | change)
    with pytest.raises(DataError, match=rf"boxes\.jsonl:2: .*{message}"):
        read_class_boxes(path)


def test_a_photo_stands_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a second photo named '7'"):
        read_class_boxes(write(tmp_path / "boxes.jsonl", LINE, LINE))


def test_one_photo_in_sixteen_is_kept_apart_by_its_name_alone() -> None:
    apart = [number for number in range(8000) if is_kept_apart(str(number))]
    assert 450 < len(apart) < 550
    assert apart[:4] == [29, 47, 66, 72]  # this never changes


def test_single_things() -> None:
    boxes = [("dog", 0, 0, 10, 10), ("cat", 0, 0, 50, 50), ("dog", 0, 0, 60, 60), ("car", 0, 0, 5, 5)]
    things = tuple(ClassBox(name, tuple(map(float, box))) for name, *box in boxes)  # type: ignore[arg-type]
    photo = ClassPhoto("x", Path("x.jpg"), 100, 100, things, ())
    assert [each.name for each in single_things(photo, 0.01)] == ["cat"]
    assert [each.name for each in single_things(photo, 0.0)] == ["cat", "car"]
