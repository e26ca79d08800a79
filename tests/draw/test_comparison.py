"""Two groundings side by side."""

import pytest
from PIL import Image

from groundings import grounding
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Grounding
from phrasechain.draw import draw_comparison
from phrasechain.draw.colours import PALETTE
from phrasechain.draw.comparison import differing
from phrasechain.draw.panel import choose_font_size
from phrasechain.draw.picture import caption_below

CAPTION = "A dog chases a ball on a lawn"
NAMES = ("independent", "joint")


def photo(width: int = 400, height: int = 300) -> Image.Image:
    return Image.new("RGB", (width, height), (100, 100, 100))


def pair(image: Image.Image) -> tuple[Grounding, Grounding]:
    """The dog is the same, the ball has moved, the lawn has an IoU of exactly one half."""
    same = ("A dog", (50.0, 80.0, 150.0, 200.0))
    first = grounding(image, CAPTION, same, ("a ball", (220, 90, 300, 140)), ("a lawn", (200, 200, 300, 280)))
    second = grounding(image, CAPTION, same, ("a ball", (320, 20, 380, 80)), ("a lawn", (200, 200, 300, 240)))
    return first, second


def line_width(image: Image.Image, y: int, xs: range, colour: tuple[int, ...]) -> int:
    return sum(image.getpixel((x, y)) == colour for x in xs)


def test_phrases_differ_below_an_iou_of_one_half() -> None:
    first, second = pair(photo())
    assert differing(first, second) == {1}
    assert differing(first, first) == set()
    empty = grounding(photo(), CAPTION)
    assert differing(empty, empty) == set()


def test_two_pictures_stand_beside_each_other_and_what_differs_has_wider_lines_in_both() -> None:
    image = photo()
    found = draw_comparison(image, *pair(image), NAMES)
    gap = found.width - 800
    assert 0 < gap < 40
    top = next(y for y in range(found.height) if found.getpixel((399, y)) == (100, 100, 100))
    right = 400 + gap
    agreed = [line_width(found, top + 110, range(x + 40, x + 60), PALETTE[0]) for x in (0, right)]
    differ = [
        line_width(found, top + 110, range(210, 235), PALETTE[1]),
        line_width(found, top + 50, range(right + 310, right + 335), PALETTE[1]),
    ]
    assert agreed == [2, 2]
    assert differ == [4, 4]


def test_what_is_wrong_is_dashed_and_nothing_else() -> None:
    """The ninth phrase would be dashed by its place."""
    image, caption = photo(), " ".join(f"word{number}" for number in range(9))
    nine = grounding(image, caption, *((f"word{n}", (20.0 + 40 * n, 80.0, 50.0 + 40 * n, 250.0)) for n in range(9)))
    found = draw_comparison(image, nine, nine, NAMES, wrong=({0}, {8}))
    top = next(y for y in range(found.height) if found.getpixel((399, y)) == (100, 100, 100))

    def gaps(left: int, place: int) -> bool:
        """Whether the left side of a box, away from its label, has gaps."""
        x = left + 20 + 40 * place
        return any(found.getpixel((x, y)) != PALETTE[place % 8] for y in range(top + 120, top + 220))

    right = found.width - 400
    assert [gaps(0, place) for place in (0, 1, 8)] == [True, False, False]
    assert [gaps(right, place) for place in (0, 1, 8)] == [False, False, True]


def test_the_one_caption_stars_what_differs() -> None:
    image = photo()
    first, second = pair(image)
    found = draw_comparison(image, first, second, NAMES)
    expected = caption_below(first, found.width, choose_font_size(400, 300), 12, {1: "*"})
    assert expected.tobytes() in found.tobytes()  # rows as wide as the picture


def test_wide_photos_stand_one_above_the_other() -> None:
    image = photo(800, 300)
    found = draw_comparison(image, *pair(image), NAMES)
    assert found.width == 800
    assert found.height > 600


def test_only_groundings_of_the_same_phrases_are_compared() -> None:
    image = photo()
    first, _ = pair(image)
    other = grounding(image, CAPTION, ("A dog", (0, 0, 9, 9)))
    with pytest.raises(DataError, match="same caption and phrases"):
        draw_comparison(image, first, other, NAMES)
    with pytest.raises(DataError, match="the grounding was made on 400 × 300"):
        draw_comparison(photo(300, 400), first, first, NAMES)
