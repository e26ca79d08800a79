"""Captions files say which photo is meant; every pair has a picture's name of its own."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phrasechain.core.errors import DataError
from phrasechain.grounding.captions import CaptionedPhoto, is_grounded_picture, pairs_of_photos, read_captions

texts = st.text(max_size=8)
phrases = st.none() | st.lists(texts | st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3).map(tuple)
pairs = st.builds(CaptionedPhoto, texts, st.sampled_from(["a.jpg", "b/a.jpg", "A.png"]).map(Path), texts, phrases)


@given(st.lists(pairs, max_size=20))
def test_pictures_have_names_of_their_own(some: list[CaptionedPhoto]) -> None:
    asked = {(pair.image, pair.caption, pair.phrases, pair.path.stem) for pair in some}
    assert len({pair.picture for pair in some}) == len(asked)


def test_a_name_does_not_tell_the_line_and_fits_a_disk() -> None:
    long = Path("b") / ("ü" * 120 + ".jpg")
    one, other = (CaptionedPhoto("a", long, "a dog", None, where) for where in ("x:1", "y:2"))
    assert one == other
    assert one.picture == other.picture
    assert len(one.picture.encode()) < 200
    assert Path(one.picture).name == one.picture


def lay(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_images_are_looked_for_in_folders_in_turn(tmp_path: Path) -> None:
    lay(tmp_path, "one/a.jpg", "two/a.jpg", "two/b/c.jpg", "d.jpg")
    file = tmp_path / "captions.jsonl"
    names = ["a.jpg", "b/c.jpg", str(tmp_path / "d.jpg"), "../d.jpg", "d.jpg", "x\0y", "n" * 5000]
    file.write_text("".join(json.dumps({"image": name, "caption": "a dog"}) + "\n" for name in names))
    found, problems = read_captions(file, [str(tmp_path / "one"), str(tmp_path / "two")])
    assert [str(pair.path.relative_to(tmp_path)) for pair in found] == [
        "one/a.jpg",
        "two/b/c.jpg",
        "d.jpg",
        "one/../d.jpg",
    ]
    assert [pair.image for pair in found] == names[:4]
    assert [pair.where for pair in found] == [f"{file}:{number}" for number in (1, 2, 3, 4)]
    assert [problem.split(": ")[0] for problem in problems] == [f"{file}:{number}" for number in (5, 6, 7)]
    found, problems = read_captions(file)
    assert [pair.image for pair in found] == [names[2], "d.jpg"]
    assert len(problems) == 5


def test_photos_and_folders_together(tmp_path: Path) -> None:
    lay(tmp_path, "one/a.jpg", "two/b.jpg")
    file = tmp_path / "captions.tsv"
    file.write_text("a.jpg\ta dog\nb.jpg\ta dog\nc.jpg\ta dog\n", encoding="utf-8-sig")
    places = [str(tmp_path / "one"), str(tmp_path / "two" / "b.jpg")]
    assert [pair.image for pair in read_captions(file, places)[0]] == ["a.jpg", "b.jpg"]
    assert len(read_captions(file, places)[1]) == 1
    assert read_captions(file, places[1:])[1] == []


@pytest.mark.parametrize("phrase", ["[[0], 5]", '{"a": 1}', "[0]", "[0, 1, 2]", "[0, 1.5]", "[true, 5]", "null", "3"])
def test_what_is_no_phrase_is_told_with_its_line(tmp_path: Path, phrase: str) -> None:
    lay(tmp_path, "a.jpg")
    file = tmp_path / "captions.jsonl"
    good = '{"image": "a.jpg", "caption": "a dog", "phrases": ["dog", [0, 5]]}'
    file.write_text(f"{good}\n{good.replace('[0, 5]', phrase)}\n")
    pairs, problems = read_captions(file)
    assert [pair.phrases for pair in pairs] == [("dog", (0, 5))]
    assert len(problems) == 1
    assert f"{file}:2: " in problems[0]
    assert "is no phrase; give a text, or [start, end]" in problems[0]


def test_folders_of_photos(tmp_path: Path) -> None:
    lay(tmp_path, "b.jpg", "a.png", "note.txt", "below/c.webp", "out/a.1234.png", ".hidden.jpg")
    found, left_out = pairs_of_photos([str(tmp_path)], "a dog", ["dog"], tmp_path / "out")
    assert [str(pair.path.relative_to(tmp_path)) for pair in found] == ["a.png", "b.jpg", "below/c.webp"]
    assert {pair.phrases for pair in found} == {("dog",)}
    assert left_out == []
    with pytest.raises(DataError, match="the photos are there"):
        pairs_of_photos([str(tmp_path)], "a dog", None, tmp_path / "below" / "..")


def test_pictures_that_grounding_wrote_are_no_photos(tmp_path: Path) -> None:
    pair = CaptionedPhoto("a.jpg", Path("a.jpg"), "a dog")
    lay(tmp_path, "a.jpg", "a.grounded.png", "old/groundings.jsonl", f"old/{pair.picture}", "old/b.png")
    lay(tmp_path, "other/IMG.1234567890.png", f"other/{pair.picture}")  # no groundings.jsonl beside them
    found, left_out = pairs_of_photos([str(tmp_path)], "a dog")
    names = ["a.jpg", "old/b.png", *sorted(["other/IMG.1234567890.png", f"other/{pair.picture}"])]
    assert [str(pair.path.relative_to(tmp_path)) for pair in found] == names
    assert left_out == [tmp_path / "a.grounded.png", tmp_path / "old" / pair.picture]
    named, left_out = pairs_of_photos([str(tmp_path / "a.grounded.png")], "a dog")
    assert [pair.path.name for pair in named] == ["a.grounded.png"]
    assert left_out == []
    (tmp_path / "old" / "b.png").unlink()
    with pytest.raises(DataError, match="old: no photos there but pictures that grounding wrote; name those"):
        pairs_of_photos([str(tmp_path / "old")], "a dog")


@given(pairs)
def test_every_picture_is_known_again(tmp_path_factory: pytest.TempPathFactory, pair: CaptionedPhoto) -> None:
    folder = tmp_path_factory.getbasetemp() / "groundings"
    lay(folder, "groundings.jsonl")
    assert is_grounded_picture(folder / pair.picture)
    assert not is_grounded_picture(folder.parent / pair.picture)
