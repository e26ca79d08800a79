"""A colour-blind-safe palette, and the text colour that is readable on each of its colours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

Colour = tuple[int, int, int]

BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)
#: The colours of Okabe and Ito, neighbours far apart.
PALETTE: tuple[Colour, ...] = (
    (0, 114, 178),  # blue
    (230, 159, 0),  # orange
    (0, 158, 115),  # bluish green
    (204, 121, 167),  # reddish purple
    (86, 180, 233),  # sky blue
    (213, 94, 0),  # vermilion
    (240, 228, 66),  # yellow
    (0, 0, 0),  # black
)
#: Dash and gap in widths of the line; the first is a line without gaps. Past the palette's end the next one is taken.
LINES: tuple[tuple[int, int], ...] = ((1, 0), (6, 3), (2, 2))
READABLE = 4.5  # the least contrast of text in the accessibility guidelines of the web (WCAG 2, AA)


@dataclass(frozen=True, slots=True)
class Style:
    """How one phrase looks everywhere in a picture."""

    colour: Colour
    line: tuple[int, int]

    @property
    def ink(self) -> Colour:
        """White where it can be read on the colour, else black: one of the two always can."""
        return WHITE if contrast(WHITE, self.colour) >= READABLE else BLACK


def style(index: int) -> Style:
    """The style of the phrase at this place of its caption: the first 24 differ."""
    turn, place = divmod(index, len(PALETTE))
    return Style(PALETTE[place], LINES[turn % len(LINES)])


#: How a phrase looks whose thing is not found: nobody's colour.
MISSING = Style((222, 222, 222), (1, 0))


@lru_cache(256)
def contrast(first: Colour, second: Colour) -> float:
    """The contrast ratio (l₁ + 0.05)/(l₂ + 0.05) of WCAG 2, from 1 to 21.

    >>> round(contrast((255, 255, 255), (0, 114, 178)), 2)
    5.19
    """
    dark, light = sorted((_luminance(first), _luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Colour) -> float:
    red, green, blue = (_linear(value / 255) for value in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
