"""Photos of every kind look as a viewer shows them, and what is no photo is named in one line."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from phrasechain.core.errors import DataError
from phrasechain.core.images import without_warnings
from phrasechain.regions.pixels import read_photo, read_rgb

UPRIGHT = np.array(  # (2, 3, 3): nothing about it is symmetric
    [[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[0, 0, 0], [255, 255, 255], [255, 255, 0]]], np.uint8
)
#: What a camera stores so that each orientation of EXIF displays UPRIGHT.
STORED = {
    None: UPRIGHT,
    0: UPRIGHT,  # not a number that EXIF knows
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.transpose(1, 0, 2),
    6: np.rot90(UPRIGHT),
    7: np.rot90(UPRIGHT, 2).transpose(1, 0, 2),
    8: np.rot90(UPRIGHT, -1),
}


def squashed(array: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(array).resize((size, size), Image.Resampling.BILINEAR))


def saved(folder: Path, image: Image.Image, suffix: str = "png", **options: object) -> Path:
    path = folder / f"photo.{suffix}"
    image.save(path, **options)
    return path


def one_colour(path: Path) -> tuple[int, ...]:
    """The colour of a photo that has only one."""
    pixels = read_photo(path, 4).pixels
    assert (pixels == pixels[0, 0]).all()
    return tuple(pixels[0, 0].tolist())


def ramp(height: int, width: int) -> NDArray[np.uint8]:
    """A smooth picture."""
    y, x = np.mgrid[:height, :width] / np.array([height, width]).reshape(2, 1, 1)
    return (np.stack((x, y, (x + y) / 2), -1) * 255).astype(np.uint8)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 40), st.integers(0, 9))
def test_all_sources_of_the_same_photo_agree(height: int, width: int, size: int, seed: int) -> None:
    array = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    from_array, from_image = read_photo(array, size), read_photo(Image.fromarray(array), size)
    assert (from_array.width, from_array.height) == (width, height)
    np.testing.assert_array_equal(from_array.pixels, from_image.pixels)
    if max(height, width) < 4 * size:  # not reduced before it is resampled
        np.testing.assert_array_equal(from_array.pixels, squashed(array, size))
    assert from_array.pixels.shape == (size, size, 3)
    assert from_array.pixels.flags.writeable
    assert from_array.pixels.flags.c_contiguous
    assert from_array.pixels.flags.owndata


@pytest.mark.parametrize("suffix", ["png", "webp", "tif"])
@pytest.mark.parametrize("turn", STORED)
def test_photos_are_turned_once(tmp_path: Path, suffix: str, turn: int | None) -> None:
    exif = Image.Exif()
    if turn is not None:
        exif[0x0112] = turn
    options = {"lossless": True} if suffix == "webp" else {}
    path = saved(tmp_path, Image.fromarray(np.ascontiguousarray(STORED[turn])), suffix, exif=exif, **options)
    with Image.open(path) as lazy:
        loaded = lazy.copy()
        for source in (path, str(path), lazy, loaded):
            photo = read_photo(source, 12)
            assert (photo.width, photo.height) == (3, 2)
            np.testing.assert_allclose(photo.pixels.astype(int), squashed(UPRIGHT, 12), atol=1)
            np.testing.assert_array_equal(np.asarray(read_rgb(source)), UPRIGHT)


@pytest.mark.parametrize("turn", range(2, 9))
def test_a_large_photo_is_turned_before_it_is_squashed(tmp_path: Path, turn: int) -> None:
    """Whose last row and column stand for fewer pixels than the others once it is reduced."""
    upright = ramp(103, 171)
    back = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    back |= {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM}
    back |= {5: Image.Transpose.TRANSPOSE, 7: Image.Transpose.TRANSVERSE}
    exif = Image.Exif()
    exif[0x0112] = turn
    photo = read_photo(saved(tmp_path, Image.fromarray(upright).transpose(back[turn]), exif=exif), 12)
    assert (photo.width, photo.height) == (171, 103)
    np.testing.assert_allclose(photo.pixels.astype(int), read_photo(upright, 12).pixels, atol=4)


@pytest.mark.parametrize("turn", [turn for turn in STORED if turn])
def test_a_jpeg_is_turned(tmp_path: Path, turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    stored = STORED[turn].repeat(40, 0).repeat(40, 1)
    photo = read_photo(saved(tmp_path, Image.fromarray(stored), "jpg", exif=exif, quality=100, subsampling=0), 6)
    assert (photo.width, photo.height) == (120, 80)
    np.testing.assert_allclose(photo.pixels[1::3, ::2].astype(int), UPRIGHT, atol=40)  # away from the edges


@pytest.mark.parametrize(
    ("image", "suffix", "colour"),
    [
        (Image.new("L", (5, 4), 90), "png", (90, 90, 90)),
        (Image.new("1", (5, 4), 1), "png", (255, 255, 255)),
        (Image.new("1", (5, 4), 0), "tif", (0, 0, 0)),
        (Image.new("LA", (5, 4), (0, 0)), "png", (255, 255, 255)),
        (Image.new("LA", (5, 4), (0, 51)), "png", (204, 204, 204)),
        (Image.new("RGBA", (5, 4), (255, 0, 0, 51)), "png", (255, 204, 204)),
        (Image.new("RGBA", (5, 4), (10, 20, 30, 255)), "webp", (10, 20, 30)),
        (Image.new("RGB", (5, 4), (10, 20, 30)).quantize(4), "png", (10, 20, 30)),
        (Image.new("RGB", (5, 4), (10, 20, 30)).quantize(4), "gif", (10, 20, 30)),
        (Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "tif", (255, 0, 0)),
        (Image.new("I;16", (5, 4), 0x8080), "png", (128, 128, 128)),
        (Image.new("I;16", (5, 4), 65_535), "tif", (255, 255, 255)),
        (Image.new("I;16", (5, 4), 200), "png", (1, 1, 1)),
        (Image.new("I", (5, 4), 0x8080), "ppm", (128, 128, 128)),
        (Image.new("I", (5, 4), 200), "ppm", (1, 1, 1)),  # of 65,535
        (Image.new("I", (5, 4), 200), "tif", (200, 200, 200)),
        (Image.new("I", (5, 4), 0x8080), "tif", (128, 128, 128)),
        (Image.new("F", (5, 4), 0.2), "tif", (51, 51, 51)),
        (Image.new("F", (5, 4), 200.0), "tif", (200, 200, 200)),
        (Image.new("F", (5, 4), -3.0), "tif", (0, 0, 0)),
        (Image.new("YCbCr", (16, 16), (90, 128, 128)), "tif", (90, 90, 90)),
        (Image.new("LAB", (5, 4), (255, 128, 128)), "tif", (255, 255, 255)),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else None,
)
def test_every_mode_has_the_colour_that_a_viewer_shows(
    tmp_path: Path, image: Image.Image, suffix: str, colour: tuple[int, ...]
) -> None:
    options: dict[str, Any] = {"lossless": True} if suffix == "webp" else {}
    if image.mode == "YCbCr":
        options["compression"] = "jpeg"  # as such files have it; Pillow 12 cannot read its own without
    assert one_colour(saved(tmp_path, image, suffix, **options)) == pytest.approx(colour, abs=2)


def test_cmyk_jpegs_are_not_inverted(tmp_path: Path) -> None:
    colour = one_colour(saved(tmp_path, Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "jpg", quality=100))
    assert colour == pytest.approx((255, 0, 0), abs=8)


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_transparent_colour_lies_over_white(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(np.array([[0, 90]], np.uint8)).convert(mode)
    path = saved(tmp_path, image, transparency=(0, 0, 0) if mode == "RGB" else 0)
    assert np.asarray(read_rgb(path))[0].tolist() == [[255, 255, 255], [90, 90, 90]]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (np.array([[0, 0x8080, 65_535]], np.uint16), [0, 128, 255]),
        (np.array([[-100, 0, 100]], np.int32), [0, 128, 255]),
        (np.array([[0, 1 << 30, (1 << 31) - 1]], np.int32), [0, 128, 255]),
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[-1.0, 0.5, 2.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 127.7, 255.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 32_768.0, 65_535.0]], np.float32), [0, 128, 255]),
    ],
)
def test_deep_greys_are_scaled_not_cut(tmp_path: Path, values: NDArray[np.generic], shown: list[int]) -> None:
    path = saved(tmp_path, Image.fromarray(values), "tif")
    assert np.asarray(read_rgb(path))[0, :, 0].tolist() == pytest.approx(shown, abs=1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_floats_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    path = saved(tmp_path, Image.fromarray(np.array([[0.5, value, 0.1]], np.float32)), "tif")
    with pytest.raises(DataError, match=r"photo\.tif: broken image: some of its values are not finite$"):
        read_photo(path, 4)


@pytest.mark.parametrize(("suffix", "options"), [("gif", {}), ("png", {}), ("webp", {"lossless": True}), ("tif", {})])
def test_an_animation_is_its_first_frame(tmp_path: Path, suffix: str, options: dict[str, bool]) -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    path = saved(tmp_path, frames[0], suffix, save_all=True, append_images=frames[1:], **options)
    assert one_colour(path) == (255, 0, 0)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 5000), (5000, 1), (3, 2001), (1537, 801)])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_large_and_long_photos_are_reduced_without_a_trace(
    tmp_path: Path, height: int, width: int, suffix: str
) -> None:
    path = saved(tmp_path, Image.fromarray(ramp(height, width)), suffix)
    photo = read_photo(path, 16)
    assert (photo.width, photo.height) == (width, height)
    np.testing.assert_allclose(photo.pixels.astype(int), squashed(np.asarray(read_rgb(path)), 16), atol=4)


def test_a_fine_pattern_becomes_grey_instead_of_aliasing() -> None:
    board = (np.indices((900, 900)).sum(0) % 2 * 255).astype(np.uint8)
    pixels = read_photo(np.stack([board] * 3, -1), 16).pixels
    np.testing.assert_allclose(pixels.astype(int), 128, atol=2)


def test_a_large_palette_with_transparency_goes_through_in_bands(tmp_path: Path) -> None:
    array = np.zeros((2000, 2000), np.uint8)
    array[1000:] = 1
    image = Image.fromarray(array, "L").convert("P")
    image.putpalette([255, 0, 0, 0, 0, 255])
    pixels = read_photo(saved(tmp_path, image, transparency=1), 10).pixels
    assert (pixels[:4] == [255, 0, 0]).all()
    assert (pixels[6:] == 255).all()


def test_a_given_image_stays_as_it_is(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(ramp(400, 600)), "jpg")
    with Image.open(path) as image:
        read_photo(image, 16)
        assert image.size == (600, 400)
        with Image.open(path) as other:
            assert image.tobytes() == other.tobytes()


def test_a_damaged_orientation_does_not_spoil_the_photo(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.fromarray(UPRIGHT), exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    with without_warnings():
        np.testing.assert_array_equal(read_photo(path, 12).pixels, squashed(UPRIGHT, 12))


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "tif", "bmp"])
@pytest.mark.parametrize("size", [8, 200])
def test_a_cut_file_is_broken(tmp_path: Path, suffix: str, size: int) -> None:
    path = saved(tmp_path, Image.effect_noise((300, 200), 80).convert("RGB"), suffix)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=rf"photo\.{suffix}: ") as error:
        read_photo(path, size)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"<svg/>", b"\xff\xd8\xff", b"P6 0 5 255\n", b"BM" + b"\0" * 60])
def test_what_is_no_image_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.jpg: ") as error:
        read_photo(path, 8)
    assert "\n" not in str(error.value)


def test_a_bomb_a_folder_and_nothing(tmp_path: Path) -> None:
    bomb = saved(tmp_path, Image.new("1", (18_000, 10_000)))
    with without_warnings(), pytest.raises(DataError, match=r"photo\.png: more than 178,956,970 pixels; make it"):
        read_photo(bomb, 8)
    with pytest.raises(DataError, match="cannot be read"):
        read_photo(tmp_path, 8)
    with pytest.raises(DataError, match=r"none\.jpg: missing"):
        read_photo(tmp_path / "none.jpg", 8)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 5), np.uint8), r"shape \(4, 5\) and the type uint8, not H × W × 3, uint8"),
        (np.zeros((3, 4, 5), np.uint8), "not H × W × 3"),
        (np.zeros((4, 5, 4), np.uint8), "not H × W × 3"),
        (np.zeros((4, 5, 3), np.float32), "type float32"),
        (np.full((4, 5, 3), np.nan), "type float64"),
        (np.zeros((0, 5, 3), np.uint8), "5 × 0 pixels"),
        (Image.new("RGB", (0, 5)), "0 × 5 pixels"),
        (b"bytes", "not of the type bytes"),
        (None, "not of the type NoneType"),
    ],
)
def test_what_is_given_must_be_a_photo(array: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_photo(array, 8)  # type: ignore[arg-type]


def test_a_cut_image_that_is_given_has_its_name(tmp_path: Path) -> None:
    path = saved(tmp_path, Image.effect_noise((64, 64), 50), "jpg")
    path.write_bytes(path.read_bytes()[:-100])
    with Image.open(path) as image, pytest.raises(DataError, match=r"photo\.jpg: cannot be read: .*truncated"):
        read_photo(image, 8)
    with Image.open(io.BytesIO(path.read_bytes())) as image, pytest.raises(DataError, match="the given image: cannot"):
        read_photo(image, 8)
