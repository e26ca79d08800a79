"""Frames and chips, pixel by pixel."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageChops, ImageDraw

from phrasechain.draw.colours import Style, style
from phrasechain.draw.frames import _frame, chip_size, draw_chip, draw_frame, nested

GROUND = (90, 90, 90)


def drawn(box: tuple[int, int, int, int], width: int, style: Style) -> Image.Image:
    image = Image.new("RGB", (60, 50), GROUND)
    draw_frame(ImageDraw.Draw(image, "RGBA"), box, width, style)
    return image


def test_a_frame_is_just_inside_its_box_with_a_casing_on_both_sides() -> None:
    image = drawn((10, 12, 40, 44), 2, style(1))
    row = [image.getpixel((x, 30)) for x in range(60)]
    inside = [x for x, pixel in enumerate(row) if pixel == style(1).colour]
    assert inside == [10, 11, 38, 39]
    casing = [x for x, pixel in enumerate(row) if pixel not in (style(1).colour, GROUND)]
    assert casing == [9, 12, 37, 40]
    assert len({row[x] for x in casing}) == 1  # nothing is veiled twice


def test_a_dashed_frame_has_gaps_through_which_the_photo_is_seen() -> None:
    image = drawn((10, 12, 58, 44), 2, style(9))
    row = [image.getpixel((x, 12)) for x in range(10, 58)]
    assert [x for x, pixel in enumerate(row) if pixel == style(9).colour] == [x for x in range(48) if x % 18 < 12]
    assert GROUND in row


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 20), st.integers(1, 8), st.integers(0, 8))
def test_no_pixel_of_a_frame_is_drawn_twice_and_a_full_one_is_the_border(
    width: int, across: int, down: int, dash: int, gap: int
) -> None:
    parts = _frame((3, 5, 3 + across, 5 + down), width, dash, gap)
    count = Counter((x, y) for x0, y0, x1, y1 in parts for x in range(x0, x1) for y in range(y0, y1))
    border = {
        (x, y)
        for x in range(3, 3 + across)
        for y in range(5, 5 + down)
        if min(x - 3, 2 + across - x, y - 5, 4 + down - y) < width
    }
    assert all(times == 1 for times in count.values())
    assert count.keys() == border if gap == 0 else count.keys() <= border


def test_coinciding_boxes_are_nested_and_keep_a_middle() -> None:
    assert nested([(0, 0, 100, 80), (50, 0, 100, 80), (1, 1, 99, 80)], 4) == [
        (0, 0, 100, 80),
        (50, 0, 100, 80),
        (5, 5, 95, 76),
    ]
    assert nested([(0, 0, 8, 8)] * 9, 4)[-1] == (2, 2, 6, 6)
    assert nested([], 4) == []


@pytest.mark.parametrize("font_size", [12, 14, 37, 108])
@pytest.mark.parametrize("index", [0, 6, 9])
def test_a_chip_fills_its_size_and_its_text_stays_inside(font_size: int, index: int) -> None:
    width, height = chip_size("Ägypten, (jg)|", font_size)
    image = Image.new("RGB", (width + 20, height + 20), GROUND)
    draw_chip(ImageDraw.Draw(image), (10, 10), "Ägypten, (jg)|", font_size, style(index))
    changed = ImageChops.difference(image, Image.new("RGB", image.size, GROUND)).getbbox()
    assert changed == (10, 10, 10 + width, 10 + height)
    counts = {colour: count for count, colour in image.getcolors(maxcolors=image.width * image.height) or []}
    assert counts[style(index).colour] > counts[style(index).ink] > 0
