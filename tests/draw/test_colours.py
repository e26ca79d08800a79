"""Colours against the published palette and contrast ratios worked out elsewhere."""

import pytest

from phrasechain.draw.colours import BLACK, PALETTE, READABLE, WHITE, contrast, style


def test_the_palette_is_okabe_and_ito_s() -> None:
    published = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}
    assert {"#{:02X}{:02X}{:02X}".format(*colour) for colour in PALETTE} == published


def test_contrast_ratios_are_those_of_the_guidelines() -> None:
    assert contrast(BLACK, WHITE) == contrast(WHITE, BLACK) == pytest.approx(21)
    assert contrast(WHITE, (119, 119, 119)) == pytest.approx(4.48, abs=0.005)  # the well-known grey that just fails
    assert contrast((255, 0, 0), WHITE) == pytest.approx(3.998, abs=0.001)


def test_ink_can_be_read_on_every_colour_and_is_white_where_that_suffices() -> None:
    for index in range(8):
        found = style(index)
        assert contrast(found.ink, found.colour) >= READABLE
        assert (found.ink == WHITE) == (contrast(WHITE, found.colour) >= READABLE)
    assert {style(index).ink for index in range(8)} == {BLACK, WHITE}


def test_24_phrases_look_different_and_the_next_ones_start_again() -> None:
    assert len({style(index) for index in range(24)}) == 24
    assert style(8).colour == style(0).colour
    assert style(24) == style(0)
