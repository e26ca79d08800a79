"""Boxes and chips on a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from PIL import ImageDraw

from phrasechain.draw.colours import Colour, Style
from phrasechain.draw.font import advance, font
from phrasechain.draw.places import Rectangle, Size

_CASING_ALPHA = 130  # of 255


def draw_frame(draw: ImageDraw.ImageDraw, box: Rectangle, width: int, style: Style) -> None:
    """A frame just inside the box, with a casing of the style's ink: one of the two stands out on any photo."""
    edge = max(1, width // 3)
    x0, y0, x1, y1 = box
    dash, gap = (width * part for part in style.line)
    casing = (x0 - edge, y0 - edge, x1 + edge, y1 + edge), width + 2 * edge, dash + 2 * edge, max(0, gap - 2 * edge)
    for part in _frame(*casing):
        _fill(draw, part, (*style.ink, _CASING_ALPHA))
    for part in _frame(box, width, dash, gap):
        _fill(draw, part, style.colour)


def nested(boxes: Sequence[Rectangle], step: int) -> list[Rectangle]:
    """Boxes that (nearly) coincide, one inside the other, so that each frame is seen."""
    corners = np.array(boxes, int).reshape(-1, 4)
    close = (np.abs(corners[:, None] - corners[None]) < step).all(-1)  # (P, P)
    before = np.tril(close, -1).sum(1)
    room = ((corners[:, 2:] - corners[:, :2]).min(1) - 1) // 3
    inset = np.minimum(before * step, room)[:, None] * [1, 1, -1, -1]
    return [(x0, y0, x1, y1) for x0, y0, x1, y1 in (corners + inset).tolist()]


def chip_size(text: str, font_size: int) -> Size:
    """The size of a text with the filled ground that it is read on."""
    ascent, descent = font(font_size).getmetrics()
    return advance(text, font_size) + 2 * chip_margin(font_size), ascent + descent + 2 * (font_size // 10)


def chip_margin(font_size: int) -> int:
    """Pixels between a chip's end and its text."""
    return max(2, round(font_size * 0.3))


def draw_chip(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, font_size: int, style: Style) -> None:
    """A text on a ground of its phrase's colour, framed in the phrase's line if that has gaps."""
    (x, y), (width, height) = place, chip_size(text, font_size)
    draw.rounded_rectangle((x, y, x + width - 1, y + height - 1), font_size // 5, fill=style.colour)
    if style.line[1]:
        thin = max(1, font_size // 12)
        for part in _frame((x, y, x + width, y + height), thin, thin * style.line[0], thin * style.line[1]):
            _fill(draw, part, style.ink)
    draw_text(draw, (x + chip_margin(font_size), y), text, font_size, style.ink)


def draw_text(draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, font_size: int, colour: Colour) -> None:
    """A text as high as it stands on a chip whose top is at the same place."""
    x, y = place
    draw.text((x, y + font_size // 10 + font(font_size).getmetrics()[0]), text, colour, font(font_size), "ls")


def _frame(box: Rectangle, width: int, dash: int, gap: int) -> Iterator[Rectangle]:
    """The four sides of a frame, cut into dashes that start at its corners; no part covers another."""
    x0, y0, x1, y1 = box
    top, left = min(y0 + width, y1), min(x0 + width, x1)
    bottom, right = max(y1 - width, top), max(x1 - width, left)
    for start, end in _dashes(x0, x1, dash, gap):
        yield start, y0, end, top
        yield start, bottom, end, y1
    for start, end in _dashes(y0, y1, dash, gap):
        yield x0, max(start, top), left, min(end, bottom)
        yield right, max(start, top), x1, min(end, bottom)


def _dashes(low: int, high: int, dash: int, gap: int) -> Iterator[tuple[int, int]]:
    if gap == 0:
        yield low, high
    else:
        yield from ((start, min(start + dash, high)) for start in range(low, high, dash + gap))


def _fill(draw: ImageDraw.ImageDraw, part: Rectangle, colour: tuple[int, ...]) -> None:
    x0, y0, x1, y1 = part
    if x0 < x1 and y0 < y1:
        draw.rectangle((x0, y0, x1 - 1, y1 - 1), fill=colour)
