"""The caption on a white strip, wrapped, its phrases on chips of their colours."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile, groupby, islice
from typing import NamedTuple

from PIL import Image, ImageDraw

from phrasechain.draw.colours import MISSING, WHITE, Colour, style
from phrasechain.draw.font import ELLIPSIS, advance, shown
from phrasechain.draw.frames import chip_margin, chip_size, draw_chip, draw_text

TEXT: Colour = (34, 34, 34)
NOT_FOUND = "not found"

CharSpan = tuple[int, int]  # [start, end) in code points of the caption


class Cell(NamedTuple):
    """What is shown for one code point, and the number of the phrase that it belongs to."""

    text: str
    phrase: int | None


def caption_strip(
    caption: str,
    spans: Sequence[CharSpan],
    width: int,
    font_size: int,
    max_lines: int,
    marks: Mapping[int, str],
    missing: Collection[int] = (),
) -> Image.Image:
    """The strip, ``width`` pixels wide, of height 0 if there is nothing to show; ``marks`` go before phrases.

    ``missing`` phrases are grey and say that they are not found. A caption whose first letter is written from right to
    left starts at the right.
    """
    margin, height = strip_margin(font_size), chip_size("", font_size)[1]
    lines = caption_lines(caption, spans, width - 2 * margin, font_size, max_lines, marks, missing)
    gap, leftward = max(2, font_size // 4), _is_leftward(caption)
    strip = Image.new("RGB", (width, 2 * margin + len(lines) * (height + gap) - gap if lines else 0), WHITE)
    draw = ImageDraw.Draw(strip)
    for number, line in enumerate(lines):
        runs = line[::-1] if leftward else line
        left = width - margin - sum(_width(run, font_size) for run in runs) if leftward else margin
        _draw_runs(draw, runs, (left, margin + number * (height + gap)), font_size, missing)
    return strip


def strip_margin(font_size: int) -> int:
    """Pixels between the end of a strip and what stands on it."""
    return font_size // 2 + 2


def caption_lines(
    caption: str,
    spans: Sequence[CharSpan],
    room: int,
    font_size: int,
    max_lines: int,
    marks: Mapping[int, str],
    missing: Collection[int] = (),
) -> list[list[Cell]]:
    """The lines of the caption as runs of one phrase or of none; an ellipsis at the end if there were more."""
    lines = list(islice(_wrapped(_cells(caption, spans, marks, missing), room, font_size), max_lines + 1))
    if 0 < max_lines < len(lines):
        last, rest = lines[max_lines - 1], Cell(ELLIPSIS, None)
        while last and _line_width([*last, rest], font_size) > room:
            last.pop()
        last.append(rest)
    return [_runs(line) for line in lines[:max_lines]]


def _cells(
    caption: str, spans: Sequence[CharSpan], marks: Mapping[int, str], missing: Collection[int]
) -> Iterator[Cell]:
    """The caption sign by sign; a mark is one more cell of its phrase, and so are the words "not found"."""
    phrases = {place: number for number, (start, end) in enumerate(spans) for place in range(start, end)}
    starts = {spans[number][0]: Cell(f"{mark} ", number) for number, mark in marks.items()}
    ends = {spans[number][1] - 1: [Cell(char, number) for char in f" ({NOT_FOUND})"] for number in missing}
    for place, char in enumerate(caption):
        if place in starts:
            yield starts[place]
        yield Cell(shown(char), phrases.get(place))
        yield from ends.get(place, ())


def _wrapped(cells: Iterable[Cell], room: int, font_size: int) -> Iterator[list[Cell]]:
    """Lines that fit, broken at their last space, or anywhere in a word that is longer than a line."""
    line: list[Cell] = []
    used = 0
    for cell in cells:
        if not line and _is_blank(cell):
            continue
        used += _step(line[-1] if line else None, cell, font_size)
        line.append(cell)
        while used > room and len(line) > 1:  # a continued phrase pays for its chip again
            end = next((place for place in range(len(line) - 1, 0, -1) if line[place].text == " "), len(line) - 1)
            yield _stripped(line[:end])
            line = list(dropwhile(_is_blank, line[end:]))
            used = _line_width(line, font_size)
    if _stripped(line):
        yield _stripped(line)


def _stripped(line: list[Cell]) -> list[Cell]:
    return list(dropwhile(_is_blank, line[::-1]))[::-1]


def _is_blank(cell: Cell) -> bool:
    return not cell.text.strip()


def _step(before: Cell | None, cell: Cell, font_size: int) -> int:
    """How much wider a line gets by a cell: a phrase's first also pays for the chip's ends."""
    starts = cell.phrase is not None and (before is None or before.phrase != cell.phrase)
    return advance(cell.text, font_size) + 2 * chip_margin(font_size) * starts


def _line_width(line: Sequence[Cell], font_size: int) -> int:
    return sum(_step(before, cell, font_size) for before, cell in zip([None, *line], line, strict=False))


def _runs(line: Iterable[Cell]) -> list[Cell]:
    grouped = groupby(line, key=lambda cell: cell.phrase)
    return [Cell("".join(cell.text for cell in group), phrase) for phrase, group in grouped]


def _width(run: Cell, font_size: int) -> int:
    return advance(run.text, font_size) if run.phrase is None else chip_size(run.text, font_size)[0]


def _draw_runs(
    draw: ImageDraw.ImageDraw,
    runs: Iterable[Cell],
    place: tuple[int, int],
    font_size: int,
    missing: Collection[int],
) -> None:
    x, y = place
    for run in runs:
        if run.phrase is None:
            draw_text(draw, (x, y), run.text, font_size, TEXT)
        else:
            looks = MISSING if run.phrase in missing else style(run.phrase)
            draw_chip(draw, (x, y), run.text, font_size, looks)
        x += _width(run, font_size)


def _is_leftward(text: str) -> bool:
    directions = (unicodedata.bidirectional(char) for char in text)
    return next((direction for direction in directions if direction in ("L", "R", "AL")), "L") != "L"
