"""Which photos are meant, under which ids, and how they are shared out."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_layout import write_image
from phrasechain.core.errors import DataError
from phrasechain.data.photos import ShardNumber, find_photos, parse_shard


def touch(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def fails(words: str, *sources: Path) -> None:
    with pytest.raises(DataError, match=words) as caught:
        find_photos(sources)
    assert "\n" not in str(caught.value)


def test_a_folder_gives_what_looks_like_a_photo_in_order(tmp_path: Path) -> None:
    touch(tmp_path, "b.JPG", "a.png", "notes.txt", "._a.png", ".git/c.jpg", "z/d.webp", "y/x/e.tiff", "no-suffix")
    found, _ = find_photos([tmp_path])
    assert list(found) == ["a", "b", "e", "d"]
    assert found["e"] == tmp_path / "y" / "x" / "e.tiff"


def test_files_come_as_they_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "b.jpg", "a", "c.d.jpg")
    assert list(find_photos([tmp_path / "b.jpg", tmp_path / "a", tmp_path / "c.d.jpg"])[0]) == ["b", "a", "c.d"]


def test_an_official_dataset_gives_its_images(tmp_path: Path) -> None:
    write_image(tmp_path, "10", "[/EN#1/people A man] .\n", photo=(10, 10))
    touch(tmp_path, "poster.jpg")
    assert find_photos([tmp_path]) == ({"10": tmp_path / "images" / "10.jpg"}, [])


def test_a_dataset_of_lines_gives_its_own_ids(tmp_path: Path) -> None:
    lines = [
        {"image": "p/one.jpg", "id": "first", "width": 9, "height": 9, "captions": []},
        {"image": "p/two.jpg", "width": 9, "height": 9, "captions": []},
    ]
    touch(tmp_path, "p/one.jpg", "p/two.jpg")
    file = tmp_path / "d.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    both = {"first": tmp_path / "p/one.jpg", "two": tmp_path / "p/two.jpg"}
    assert find_photos([file]) == (both, [])
    file.write_text("\n".join([json.dumps(lines[0]), "[]", json.dumps(lines[1])]))
    found, problems = find_photos([file])
    assert found == both
    assert [problem.split(": ")[0] for problem in problems] == [f"{file}:2"]
    file.write_text("[]\n[]\n")
    fails(r"d\.jsonl:1: ", file)


def test_one_file_twice_is_one_photo_and_two_files_of_one_id_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "p/a.jpg", "q/a.png")
    assert list(find_photos([tmp_path / "p", tmp_path / "p" / "a.jpg", tmp_path / "q" / ".." / "p"])[0]) == ["a"]
    fails(r"q/a\.png: its image id 'a' is also that of .*p/a\.jpg; rename one", tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    touch(tmp_path, "empty/notes.txt")
    fails("empty: no photos there", tmp_path / "empty")
    fails("none: no such file or folder", tmp_path / "none")


def test_the_limit_comes_before_the_shard(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{n:02d}.jpg" for n in range(30)))
    parts = [set(find_photos([tmp_path], 10, ShardNumber(number, 3))[0]) for number in (1, 2, 3)]
    assert sorted(image for part in parts for image in part) == [f"{n:02d}" for n in range(10)]


@given(images=st.lists(st.text(), unique=True), count=st.integers(1, 20))
def test_every_image_is_in_one_shard_whatever_else_there_is(images: list[str], count: int) -> None:
    parts = [ShardNumber(number, count) for number in range(1, count + 1)]
    assert all(sum(part.holds(image) for part in parts) == 1 for image in images)


def test_shards_are_about_equal() -> None:
    sizes = [sum(ShardNumber(number, 4).holds(str(image)) for image in range(10_000)) for number in (1, 2, 3, 4)]
    assert min(sizes) > 2300


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "a/b", "1/4/2", "-1/4", "1/ 4", ""])
def test_shards_that_are_none(text: str) -> None:
    with pytest.raises(DataError, match="a shard is i/n with i from 1 to n"):
        parse_shard(text)
