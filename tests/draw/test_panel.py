"""The panel: its font size, and where the boxes of a photo lie on it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from phrasechain.draw.panel import MIN_SIDE, Panel, choose_font_size

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
