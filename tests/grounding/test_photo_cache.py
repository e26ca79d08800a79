"""Photos from memory and photos that are encoded once: the same answers as those of files."""

import io
from pathlib import Path

import pytest
import torch

from phrasechain.core.errors import DataError
from phrasechain.core.parallel import one_thread
from phrasechain.grounding.grounder import Grounder
from tiny_grounder import CAPTION, PHRASES, assert_same, tiny_grounder
from tiny_regions import write_photo


@pytest.fixture(scope="module")
def grounder(tmp_path_factory: pytest.TempPathFactory) -> Grounder:
    return tiny_grounder(tmp_path_factory.mktemp("grounder") / "model")


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photo(tmp_path_factory.mktemp("photos") / "photo.png", seed=7, size=(90, 60))


def test_bytes_and_open_files_are_photos(grounder: Grounder, photo: Path) -> None:
    wanted, data = grounder.ground(photo, CAPTION, PHRASES), photo.read_bytes()
    with photo.open("rb") as file:
        for source in (data, bytearray(data), memoryview(data), io.BytesIO(data), file):
            found = grounder.ground(source, CAPTION, PHRASES)
            assert_same(found, wanted)
            assert found.path is None
            assert found.draw().size == wanted.draw().size
    (many,) = grounder.ground_many([(data, CAPTION, PHRASES)])
    assert_same(many, wanted)
    assert many.draw().size == wanted.draw().size, "there is no file to read again"


def test_bytes_that_cannot_be_used_are_one_line(grounder: Grounder, photo: Path) -> None:
    closed = photo.open("rb")
    closed.close()
    for source, message in (
        (b"no image", "the given picture: not an image of a known format"),
        (photo.read_bytes()[:200], "the given picture: "),
        (io.BytesIO(), "not an image"),
        (io.StringIO("text"), "text, not bytes; open the picture with mode 'rb'"),
        (closed, "the given picture: cannot be read"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            grounder.ground(source, CAPTION)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


def test_an_encoded_photo_is_not_looked_at_again(
    grounder: Grounder, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = grounder.ground(photo, CAPTION, PHRASES)
    fresh = Grounder(grounder.parts, "cpu", photos=0)
    encoded = fresh.encode(photo)
    monkeypatch.setattr(type(grounder.parts.extractor), "regions", None)
    assert_same(fresh.ground(encoded, CAPTION, PHRASES), wanted)
    (many,) = fresh.ground_many([(encoded, CAPTION, PHRASES)])
    assert (many.path, many.draw().size) == (str(photo), wanted.draw().size)
    light = fresh.ground(encoded.without_photo(), CAPTION, PHRASES)
    assert_same(light, wanted)
    with pytest.raises(DataError, match="nothing to draw: the photo is not known"):
        light.draw()


def test_small_operators_run_on_one_thread(grounder: Grounder, photo: Path) -> None:
    seen: list[int] = []
    hook = grounder.model.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        grounder.ground(photo, CAPTION, PHRASES)
        assert (seen, torch.get_num_threads()) == ([1], 2)
        with pytest.raises(DataError), one_thread():
            raise DataError("x")
        assert torch.get_num_threads() == 2
    finally:
        hook.remove()
        torch.set_num_threads(before)
