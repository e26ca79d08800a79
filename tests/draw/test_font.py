"""Text as the font can show it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phrasechain.draw.font import ELLIPSIS, advance, font, shortened, shown, shown_line


@given(st.text(max_size=40), st.integers(10, 130))
def test_widths_of_letters_add_up(text: str, size: int) -> None:
    visible = "".join(map(shown, text))
    assert advance(visible, size) == font(size).getlength(visible) == sum(advance(char, size) for char in visible)


@given(st.characters(exclude_categories=()))
def test_every_code_point_can_be_drawn_and_takes_room_unless_it_is_left_out(char: str) -> None:
    text = shown(char)
    assert text.isprintable() or text == char
    assert (advance(text, 12) > 0) == (text != "")


def test_what_the_font_lacks_gets_its_plain_letter() -> None:
    assert shown_line("  Señor\tÅse’s\ncafé — “½ litre”\x00\u200e ") == "Senor Ase’s cafe - “1⁄2 litre”"
    assert shown_line("cafe\u0301") == "cafe"
    assert shown_line("שלום 中文 🐕\ufe0f") == "שלום 中文 🐕"


@given(st.text(st.sampled_from("abc WMil."), max_size=300), st.integers(30, 400), st.integers(10, 40))
def test_shortened_text_fits_and_nothing_longer_would(text: str, room: int, size: int) -> None:
    short = shortened(text, size, room)
    assert advance(short, size) <= room
    if short != text:
        kept = short.removesuffix(ELLIPSIS)
        assert short.endswith(ELLIPSIS)
        assert text.startswith(kept)
        more = text[: len(kept) + 1 + len(text[len(kept) :]) - len(text[len(kept) :].lstrip())]  # the next letter too
        assert advance(text, size) > room
        assert advance(more + ELLIPSIS, size) > room


@pytest.mark.parametrize("text", ["", "a"])
def test_what_fits_is_left_as_it_is(text: str) -> None:
    assert shortened(text, 12, 100) == text
