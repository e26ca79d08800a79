"""Sizes as displayed, and one line for every image that cannot be used."""

from pathlib import Path

import pytest
from PIL import Image

from phrasechain.core.errors import DataError
from phrasechain.core.images import check_image, image_size


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize(("orientation", "size"), [(None, (30, 20)), (1, (30, 20)), (3, (30, 20)), (6, (20, 30))])
def test_the_size_is_as_displayed(tmp_path: Path, suffix: str, orientation: int | None, size: tuple[int, int]) -> None:
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    path = tmp_path / f"a.{suffix}"
    Image.new("RGB", (30, 20)).save(path, exif=exif)
    assert image_size(path) == size
    assert check_image(path) == size


def test_a_cut_photo_is_broken_though_its_header_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    assert image_size(path) == (64, 64)
    with pytest.raises(DataError, match=r"a.jpg: cannot be read: .*truncated"):
        check_image(path)


@pytest.mark.parametrize("content", [b"", b"<svg/>", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n" + b"\0" * 30])
def test_what_is_no_image_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.jpg: ") as error:
        image_size(path)
    assert "\n" not in str(error.value)


def test_a_missing_photo_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing"):
        image_size(tmp_path / "none.jpg")
    with pytest.raises(DataError, match="cannot be read"):
        image_size(tmp_path)


def test_too_many_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("1", (18_000, 10_000)).save(path)
    with pytest.raises(DataError, match=r"a\.png: more than 178,956,970 pixels; make it smaller"):
        image_size(path)
