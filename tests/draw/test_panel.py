"""The panel: its font size, and where the boxes of a photo lie on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from phrasechain.draw.panel import MAX_PIXELS, MAX_SIDE, MIN_SIDE, Panel, canvas_size, choose_font_size

ends = st.floats(-1e6, 1e6)


@pytest.mark.parametrize("width", [200, 500, 1000, 2000, 4000])
@pytest.mark.parametrize("ratio", [0.25, 0.75, 1, 4])
def test_letters_are_readable_and_leave_room_for_words(width: int, ratio: float) -> None:
    font_size = choose_font_size(width, round(width * ratio))
    assert font_size >= 12
    assert width / 100 <= font_size <= max(12, width / 20)


@given(st.integers(1, 400), st.integers(1, 400), st.tuples(ends, ends, ends, ends))
def test_any_box_becomes_a_rectangle_inside_that_can_be_framed(
    width: int, height: int, box: tuple[float, float, float, float]
) -> None:
    panel = Panel(Image.new("L", (width, height)))
    x0, y0, x1, y1 = panel.rectangle(box)
    assert 0 <= x0 <= x1 - 4 * panel.line
    assert 0 <= y0 <= y1 - 4 * panel.line
    assert x1 <= panel.picture.width
    assert y1 <= panel.picture.height


def test_a_photo_of_common_size_is_kept_and_its_boxes_are_rounded_outwards() -> None:
    image = Image.effect_noise((300, 200), 80)
    panel = Panel(image)
    assert panel.picture.tobytes() == image.convert("RGB").tobytes()
    assert panel.rectangle((10.6, 20, 99.2, 150.5)) == (10, 20, 100, 151)
    assert panel.rectangle((99.2, 150.5, 10.6, 20)) == (10, 20, 100, 151)  # corners in the other order
    assert panel.rectangle((-50, -1, 900, 900)) == (0, 0, 300, 200)
    assert panel.rectangle((150, 100, 150, 100)) == (146, 96, 154, 104)  # too small to be seen: 4 lines of 2 pixels


def test_a_tiny_photo_is_enlarged_with_its_boxes() -> None:
    image = Image.new("RGB", (50, 40), "red")
    panel = Panel(image)
    assert panel.picture.size == (200, 160)
    assert panel.picture.getcolors() == [(200 * 160, (255, 0, 0))]
    assert panel.rectangle((10, 5, 30, 40)) == (40, 20, 120, 160)
    assert min(Panel(Image.new("RGB", (1, 1))).picture.size) == MIN_SIDE


def test_a_narrow_photo_stands_in_the_middle_with_room_for_labels_beside_it() -> None:
    panel = Panel(Image.new("RGB", (20, 1000), "red"))
    assert panel.picture.size == (200, 1000)
    assert panel.picture.crop((90, 0, 110, 1000)).getcolors() == [(20 * 1000, (255, 0, 0))]
    assert panel.rectangle((0, 100, 20, 300)) == (90, 100, 110, 300)
    low = Panel(Image.new("RGB", (1000, 4), "red"))
    assert low.picture.width == 1000
    assert low.picture.height == 4 * low.font_size


@pytest.mark.parametrize("panels", [1, 2])
@pytest.mark.parametrize("size", [(200_000, 1), (1, 200_000), (65_000, 1), (16_000, 11_000), (4000, 3000), (300, 200)])
def test_the_canvas_is_bounded_and_keeps_the_shape(size: tuple[int, int], panels: int) -> None:
    width, height = canvas_size(*size, panels)
    assert max(width, height) <= MAX_SIDE
    assert width * height * panels <= MAX_PIXELS
    assert width == pytest.approx(size[0] * height / size[1], rel=0.01) or 1 in size
    assert canvas_size(width, height, panels) == (width, height)


def test_boxes_of_a_reduced_photo_lie_where_they_lay_in_the_whole_one() -> None:
    whole = Image.new("RGB", (8000, 6000))
    whole.paste("red", (3000, 1500, 4500, 3000))
    assert canvas_size(*whole.size) == (2667, 2000)
    for image in (whole, whole.reduce(3)):
        panel = Panel(image, whole.size)
        x0, y0, x1, y1 = panel.rectangle((3000, 1500, 4500, 3000))
        assert (x0, y0) == (1000, 500)
        assert x1 == pytest.approx(1500, abs=1)
        assert y1 == pytest.approx(1000, abs=1)
        assert panel.picture.getpixel((x0 + 10, y0 + 10)) == (255, 0, 0) == panel.picture.getpixel((x1 - 10, y1 - 10))
