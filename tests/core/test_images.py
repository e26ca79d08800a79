"""Sizes as displayed, and one line for every image that cannot be used."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image, ImageFile, features

from phrasechain.core.errors import DataError
from phrasechain.core.images import PhotoFile, check_image, decoder_bytes, image_size, opened


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


@pytest.mark.parametrize(
    ("name", "mode", "size"),
    [("a.webp", "L", (5000, 4000)), ("a.png", "RGB", (9400, 9400)), ("a.tif", "L", (8000, 6000))],
)
def test_what_its_decoder_would_fill_the_memory_with_is_refused(
    tmp_path: Path, name: str, mode: str, size: tuple[int, int]
) -> None:
    path = tmp_path / name
    Image.new(mode, size).save(path)
    with pytest.raises(DataError, match=rf"{name}: {size[0]:,} × {size[1]:,} pixels of \w+, which take \d+ MB"):
        image_size(path)


@pytest.mark.parametrize(("options", "bytes_per_pixel"), [({}, 0.4), ({"progressive": True}, 6.6)])
def test_a_jpeg_is_made_smaller_as_it_is_decoded_unless_it_is_progressive(
    tmp_path: Path, options: dict[str, bool], bytes_per_pixel: float
) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "a.jpg", **options)
    with Image.open(tmp_path / "a.jpg") as image:
        assert decoder_bytes(image) == pytest.approx(bytes_per_pixel)


def test_a_side_of_a_million_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("1", (1_100_000, 1)).save(path)
    with pytest.raises(DataError, match=r"a\.png: 1,100,000 × 1 pixels, more than 1,048,576 on a side"):
        image_size(path)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow does not decode AVIF")
def test_avif_is_read_where_pillow_decodes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.avif"
    Image.new("RGB", (30, 20)).save(path)
    assert check_image(path) == (30, 20)
    monkeypatch.setattr(features, "check", lambda name: False)
    with pytest.raises(DataError, match=r"a\.avif: an AVIF photo, which this Pillow does not decode"):
        check_image(path)


def test_heic_is_read_by_pillow_heif_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 40)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(DataError, match=r"a\.heic: a HEIC photo, which needs another decoder: pip install pillow-heif"):
        check_image(path)
    with pytest.raises(DataError, match=r"a\.heic: a HEIC photo"), opened(PhotoFile.read(path)):
        pass

    class Decoded(ImageFile.ImageFile):
        format = "HEIF"

        def _open(self) -> None:
            self._size, self._mode, self.tile = (30, 20), "L", []
            self.im = Image.core.new("L", (30, 20))

    opener = SimpleNamespace(register_heif_opener=lambda: Image.register_open("HEIF", Decoded))
    monkeypatch.setitem(sys.modules, "pillow_heif", opener)
    try:
        assert image_size(path) == (30, 20)
    finally:
        Image.OPEN.pop("HEIF"), Image.ID.remove("HEIF")
