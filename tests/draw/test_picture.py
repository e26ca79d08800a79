"""Whole pictures, looked at by their pixels."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops

from groundings import grounding
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Alternative, GroundedPhrase, Grounding
from phrasechain.draw import draw_grounding, picture
from phrasechain.draw.colours import PALETTE, Colour
from phrasechain.draw.frames import chip_size
from phrasechain.draw.panel import Panel

GREY = (100, 100, 100)
CAPTION = "A dog chases a red ball"


def photo(width: int = 400, height: int = 300) -> Image.Image:
    return Image.new("RGB", (width, height), GREY)


def colours(image: Image.Image) -> dict[object, int]:
    return {colour: count for count, colour in image.getcolors(maxcolors=1 << 24) or []}


def test_boxes_are_where_they_should_be_and_the_rest_of_the_photo_is_untouched() -> None:
    image = photo()
    found = draw_grounding(
        image, grounding(image, CAPTION, ("A dog", (50, 60, 150, 200)), ("a red ball", (220, 90, 300, 140)))
    )
    assert [found.getpixel((50, y)) for y in (60, 130, 199)] == [PALETTE[0]] * 3
    assert [found.getpixel((x, 139)) for x in (220, 260, 299)] == [PALETTE[1]] * 3
    for inside_or_far in ((60, 70, 140, 190), (230, 100, 290, 130), (0, 0, 45, 300), (310, 0, 400, 300)):
        assert found.crop(inside_or_far).getcolors() == [
            ((inside_or_far[2] - inside_or_far[0]) * (inside_or_far[3] - inside_or_far[1]), GREY)
        ]
    assert image.getcolors() == [(400 * 300, GREY)]


def test_labels_stand_on_their_boxes_and_the_caption_below_has_the_same_colours() -> None:
    image = photo()
    found = draw_grounding(
        image, grounding(image, CAPTION, ("A dog", (50, 60, 150, 200)), ("a red ball", (220, 90, 300, 140)))
    )
    label = colours(found.crop((52, 44, 70, 58)))
    assert label[PALETTE[0]] > 100
    below = colours(found.crop((0, 300, 400, found.height)))
    assert min(below[PALETTE[0]], below[PALETTE[1]]) > 300
    assert below[(255, 255, 255)] > sum(below.values()) / 2


def test_a_caption_without_phrases_stands_below_the_plain_photo() -> None:
    image = photo()
    found = draw_grounding(image, grounding(image, "It rains"))
    assert found.crop((0, 0, 400, 300)).tobytes() == image.tobytes()
    assert found.height > 300
    assert draw_grounding(image, grounding(image, "It rains"), max_lines=0).size == image.size


def labels_of(image: Image.Image, made: Grounding, **options: bool) -> list[str]:
    return [tag.texts[0] for tag in picture.phrase_tags(Panel(image), made.phrases, **options)]


def test_labels_say_the_phrase_shortened_and_its_probability() -> None:
    image = photo()
    long = "a man who has been waiting for the bus"
    made = grounding(image, f"{long} and\na\tdog", (long, (0, 0, 9, 9)), ("a\tdog", (0, 0, 90, 90)))
    assert labels_of(image, made) == ["a man who has been waiting…", "a dog"]
    assert labels_of(image, made, probabilities=True)[1] == "a dog 80%"
    short = picture.phrase_tags(Panel(image), made.phrases)[0].texts
    assert [len(text) for text in short] == sorted((len(text) for text in short), reverse=True)
    assert short[-1] == "1"
    small = photo(200, 200)
    fullest = labels_of(small, replace(made, width=200, height=200), probabilities=True)[0]
    assert fullest.endswith("… 80%")
    assert chip_size(fullest, Panel(small).font_size)[0] <= 200


def test_a_label_of_signs_that_cannot_be_seen_is_an_ellipsis() -> None:
    image = photo()
    assert labels_of(image, grounding(image, "a \u200d", ("\u200d", (0, 0, 9, 9)))) == ["…"]


def test_where_there_is_no_room_numbers_and_then_nothing_stand_for_labels() -> None:
    image = photo(200, 200)
    names = [f"thing {number}" for number in range(40)]
    made = grounding(image, " ".join(names), *((name, (0.0, 0.0, 30.0, 20.0)) for name in names))
    panel = Panel(image)
    numbered = picture.draw_tags(panel, picture.phrase_tags(panel, made.phrases))
    assert 0 < len(numbered) < 40
    drawn = draw_grounding(image, made, max_lines=100)
    below = drawn.crop((0, 200, 200, drawn.height))
    marks = {number: str(number + 1) for number in numbered}
    assert below.tobytes() == picture.caption_below(made, 200, panel.font_size, 100, marks).tobytes()
    assert all(colours(below)[colour] > 100 for colour in PALETTE)


@pytest.mark.parametrize(("side", "texts"), [(800, 0), (260, 1), (200, 2)])
def test_many_labels_say_less_so_that_the_photo_is_seen(side: int, texts: int) -> None:
    image = photo(side, side)
    names = [f"a long name of thing {number}" for number in range(16)]
    boxes = [(x * side / 4, y * side / 4, (x + 1) * side / 4, (y + 1) * side / 4) for x in range(4) for y in range(4)]
    made = grounding(image, " ".join(names), *zip(names, boxes, strict=True))
    panel = Panel(image)
    tags = picture.phrase_tags(panel, made.phrases)
    sizes = [[chip_size(text, tag.font_size) for text in tag.texts] for tag in tags]
    assert picture._first_choices(sizes, image.size) == [texts] * 16
    numbered = picture.draw_tags(panel, tags)
    assert (len(numbered) == 16) == (texts == 2)
    chips = sum(width * height for width, height in (choices[texts] for choices in sizes))
    assert chips <= 0.4 * side * side


def test_alternatives_are_thin_dashed_and_only_as_many_as_asked_for() -> None:
    image = photo()
    others = (Alternative((200, 100, 390, 290), 0.15), Alternative((20, 220, 190, 290), 0.05))
    made = grounding(image, "A dog", ("A dog", (50, 60, 150, 200)), others=others)
    plain, one, both = (draw_grounding(image, made, alternatives=count) for count in (0, 1, 9))
    side = [one.getpixel((200, y)) for y in range(120, 280)]
    assert 0.2 < side.count(PALETTE[0]) / len(side) < 0.8
    assert [one.getpixel((201, y)) for y in range(120, 280)].count(PALETTE[0]) == 0
    assert ImageChops.difference(plain, one).getbbox()[0] >= 100  # type: ignore[index]
    assert ImageChops.difference(one, both).getbbox()[2] <= 200  # type: ignore[index]


def test_small_boxes_are_drawn_over_large_ones() -> None:
    image = photo()
    for order in (1, -1):
        found = [("A dog", (50.0, 60.0, 150.0, 200.0)), ("a red ball", (100.0, 100.0, 350.0, 250.0))][::order]
        caption = " ".join(text for text, _ in found)
        small = PALETTE[0] if order == 1 else PALETTE[1]
        drawn = draw_grounding(image, grounding(image, caption, *found))
        assert drawn.getpixel((149, 100)) == small  # where the right side of one and the top of the other cross


def test_an_earlier_phrase_with_the_same_box_is_still_seen() -> None:
    image = photo()
    box = (50.0, 60.0, 350.0, 250.0)
    found = draw_grounding(image, grounding(image, "A man, he", ("A man", box), ("he", box)))
    column: list[Colour] = [found.getpixel((200, y)) for y in range(300)]  # type: ignore[misc]
    assert column.count(PALETTE[0]) == column.count(PALETTE[1]) == 4


signs = st.one_of(st.sampled_from("ab  \n"), st.characters(exclude_categories=()))
ends = st.floats(-500, 500)


@settings(max_examples=40)
@given(
    st.integers(1, 300), st.integers(1, 300), st.lists(st.tuples(st.text(signs, min_size=1), *[ends] * 4), max_size=12)
)
def test_anything_can_be_drawn(width: int, height: int, found: list[tuple[str, float, float, float, float]]) -> None:
    image = Image.new("RGBA", (width, height))
    caption = "".join(text for text, *_ in found)
    phrases, start = [], 0
    for text, x0, y0, x1, y1 in found:
        other = Alternative((y0, x1, y1, x0), 0.0)
        phrases.append(GroundedPhrase(text, start, start + len(text), "other", (x0, y0, x1, y1), 1.0, (other,)))
        start += len(text)
    made = Grounding(None, width, height, caption, "small", "viterbi", tuple(phrases))
    drawn = draw_grounding(image, made, probabilities=True, alternatives=1)
    assert drawn.mode == "RGB"
    assert drawn.width == max(200, width)
    assert drawn.height >= max(height, 48)


@pytest.mark.parametrize("size", [(1, 1), (2000, 2), (2, 2000), (3000, 1500)])
def test_extreme_sizes_and_captions_give_a_picture(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size)
    caption = "A dog " + "x" * 5000 + " word" * 10_000
    drawn = draw_grounding(image, grounding(image, caption, ("A dog", (0, 0, *size))))
    assert drawn.width == max(200, size[0])
    assert 200 <= drawn.height < 4 * max(500, *size)
    assert colours(drawn)[PALETTE[0]] > 100


def test_what_cannot_be_drawn_is_said() -> None:
    image = photo()
    made = grounding(image, CAPTION, ("A dog", (50, 60, 150, 200)))
    with pytest.raises(DataError, match=r"300 × 400 pixels, but .* 400 × 300; .* turned as it is displayed"):
        draw_grounding(photo(300, 400), made)
    with pytest.raises(DataError, match=r"nothing to draw: photo\.jpg: missing"):
        draw_grounding(image, replace(made, error="photo.jpg: missing"))
    for box in ((float("nan"), 0, 1, 1), (0, 0, float("inf"), 1)):
        with pytest.raises(DataError, match="a box of 'A dog' is not finite"):
            draw_grounding(image, grounding(image, CAPTION, ("A dog", box)))
