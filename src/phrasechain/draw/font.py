"""Text in the font that comes with Pillow: ASCII and a few signs; what it lacks is a box."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from typing import cast

from PIL import ImageFont

ELLIPSIS = "…"
_UNSEEN = ("Cf", "Mn", "Me")  # joiners, marks of direction, accents that follow their letter


@lru_cache(maxsize=32)
def font(size: int) -> ImageFont.FreeTypeFont:
    """The font of Pillow at so many pixels."""
    return cast(ImageFont.FreeTypeFont, ImageFont.load_default(size))


@lru_cache(maxsize=4096)
def advance(text: str, size: int) -> int:
    """How many pixels wide a short text is; the font has no kerning, so widths of letters add up."""
    return round(font(size).getlength(text))


@lru_cache(maxsize=4096)
def shown(char: str) -> str:
    """What stands for one code point: the font knows neither accents nor dashes, and controls must not be drawn.

    >>> [shown(char) for char in ("é", "–", "½", chr(9), chr(0x200D), "中")]
    ['e', '-', '1⁄2', ' ', '', '中']
    """
    category = unicodedata.category(char)
    if char.isspace() or category == "Cc":
        return " "
    if category in _UNSEEN:
        return ""
    if category == "Pd":
        return "-"
    plain = "".join(part for part in unicodedata.normalize("NFKD", char) if not unicodedata.combining(part))
    return plain if plain.replace("⁄", "/").isascii() else char


def shown_line(text: str) -> str:
    """A text as one line, without spaces at its ends or beside each other."""
    return " ".join("".join(map(shown, text)).split())


def shortened(text: str, size: int, room: int) -> str:
    """The text, or as much of its beginning as fits into ``room`` pixels with an ellipsis."""
    text = text[: room + 1]  # no letter is narrower than a pixel
    ends = list(accumulate(advance(char, size) for char in text))
    if not ends or ends[-1] <= room:
        return text
    return text[: bisect_right(ends, room - advance(ELLIPSIS, size))].rstrip() + ELLIPSIS
