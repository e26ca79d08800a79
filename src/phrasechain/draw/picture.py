"""The picture of a grounding: the photo with a box and a label for each phrase, and the caption below."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from phrasechain.core.errors import DataError
from phrasechain.core.schema import GroundedPhrase, Grounding
from phrasechain.draw.caption import caption_strip
from phrasechain.draw.colours import LINES, WHITE, Style, style
from phrasechain.draw.font import ELLIPSIS, shortened, shown_line
from phrasechain.draw.frames import chip_size, draw_chip, draw_frame, nested
from phrasechain.draw.panel import Panel, canvas_size
from phrasechain.draw.places import Rectangle, Size, place_labels

MAX_LINES = 12  # of the caption
LABEL_WIDTHS = (14, 6)  # of a label, in font sizes: the most, and the most where there is no room for that
_MAX_COVERED = 0.4  # the share of a picture that labels may cover
_THIN = (6, 5)  # dash and gap of alternatives


def draw_grounding(
    image: Image.Image,
    grounding: Grounding,
    *,
    probabilities: bool = False,
    alternatives: int = 0,
    max_lines: int = MAX_LINES,
) -> Image.Image:
    """The photo with the boxes of its phrases, labelled, above the caption with the phrases in the same colours.

    ``image`` is the photo as displayed, of the size that the grounding says or of that at which it is drawn
    (:func:`phrasechain.draw.panel.canvas_size`), which is bounded. ``probabilities`` are written after the
    phrases. The next best ``alternatives`` of each phrase are drawn thin and dashed with their probabilities. A label
    that finds no room becomes the number of its phrase, which the caption then repeats, and at last is left out. A
    phrase that is not found has no box, and its place in the caption says so.
    """
    size = check_drawable(image, grounding)
    panel = Panel(image, size)
    tags = phrase_tags(panel, grounding.phrases, probabilities=probabilities)
    numbered = draw_tags(panel, [*tags, *_alternative_tags(panel, grounding.phrases, alternatives)])
    marks = {number: str(number + 1) for number in numbered}
    return stacked(panel.picture, caption_below(grounding, panel.picture.width, panel.font_size, max_lines, marks))


def check_drawable(image: Image.Image, grounding: Grounding, panels: int = 1) -> Size:
    """Refuse a failed grounding, an image that it was not made on, and boxes that are nowhere; the photo's size."""
    if grounding.error is not None:
        raise DataError(f"nothing to draw: {grounding.error}")
    size = grounding.width, grounding.height
    if image.size != size and (min(size) < 1 or image.size != canvas_size(*size, panels)):
        raise DataError(
            f"the image has {image.width} × {image.height} pixels, but the grounding was made on "
            f"{grounding.width} × {grounding.height}; give the same image, turned as it is displayed"
        )
    for phrase in grounding.phrases:
        for box in (phrase.box, *(other.box for other in phrase.alternatives)):
            if not all(math.isfinite(end) for end in box):
                raise DataError(f"a box of {phrase.text!r} is not finite: {box}")
    return size


@dataclass(frozen=True, slots=True)
class Tag:
    """A box to draw and what its label may say, the fullest first."""

    phrase: int
    box: Rectangle
    line: int  # its width in pixels
    style: Style
    texts: tuple[str, ...]
    font_size: int

    @property
    def area(self) -> int:
        return (self.box[2] - self.box[0]) * (self.box[3] - self.box[1])


def phrase_tags(
    panel: Panel,
    phrases: Sequence[GroundedPhrase],
    *,
    probabilities: bool = False,
    bold: Collection[int] = (),
    mark: str = "",
    dashed: Collection[int] | None = None,
) -> list[Tag]:
    """The boxes of phrases that are found, the smallest first; ``bold`` ones with the mark and lines twice as wide.

    Where it is said which boxes are ``dashed``, all others are not, however many phrases there are.
    """
    boxes = nested([panel.rectangle(phrase.box) for phrase in phrases], panel.line + 2)
    tags = []
    for number, (phrase, box) in enumerate(zip(phrases, boxes, strict=True)):
        if not phrase.found:
            continue
        width, before = (2 * panel.line, mark) if number in bold else (panel.line, "")
        after = f" {_percent(phrase.probability)}" if probabilities else ""
        texts = (*_label_texts(phrase.text, before, after, panel), f"{before}{number + 1}")
        look = style(number) if dashed is None else Style(style(number).colour, LINES[number in dashed])
        tags.append(Tag(number, box, width, look, texts, panel.font_size))
    return sorted(tags, key=lambda tag: tag.area)


def _label_texts(phrase: str, before: str, after: str, panel: Panel) -> Iterator[str]:
    text = shown_line(phrase) or ELLIPSIS
    around = chip_size(before + after, panel.font_size)[0]
    for width in LABEL_WIDTHS:
        room = min(width * panel.font_size, panel.picture.width - around)
        yield before + shortened(text, panel.font_size, room) + after


def _alternative_tags(panel: Panel, phrases: Sequence[GroundedPhrase], count: int) -> list[Tag]:
    line, font_size = max(1, panel.line // 2), max(10, round(panel.font_size * 0.8))
    tags = [
        Tag(number, panel.rectangle(other.box), line, thin, (_percent(other.probability),), font_size)
        for number, phrase in enumerate(phrases)
        if phrase.found
        for thin in [Style(style(number).colour, _THIN)]
        for other in phrase.alternatives[:count]
    ]
    return sorted(tags, key=lambda tag: tag.area)


def _percent(probability: float) -> str:
    """
    >>> [_percent(p) for p in (0, 0.004, 0.126, 0.999, 1)]
    ['0%', '<1%', '13%', '>99%', '100%']
    """
    if 0 < probability < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= probability < 1 else f"{probability:.0%}"


def draw_tags(panel: Panel, tags: Sequence[Tag]) -> set[int]:
    """Draw boxes and labels, the first ones on top; the phrases whose labels have shrunk to numbers."""
    draw = ImageDraw.Draw(panel.picture, "RGBA")
    for tag in reversed(tags):
        draw_frame(draw, tag.box, tag.line, tag.style)
    sizes = [[chip_size(text, tag.font_size) for text in tag.texts] for tag in tags]
    firsts = _first_choices(sizes, panel.picture.size)
    allowed = [choices[first:] for choices, first in zip(sizes, firsts, strict=True)]
    labels = place_labels([tag.box for tag in tags], allowed, panel.picture.size)
    numbered = set()
    for tag, label, first in zip(tags, labels, firsts, strict=True):
        if label is not None:
            choice = first + label.choice
            draw_chip(draw, label.rectangle[:2], tag.texts[choice], tag.font_size, style(tag.phrase))
            if 0 < choice == len(tag.texts) - 1:
                numbered.add(tag.phrase)
    return numbered


def _first_choices(sizes: Sequence[Sequence[Size]], picture: Size) -> list[int]:
    """The fullest text that each label may have: where labels would hide the photo, all of them say less."""
    firsts: list[int] = []
    for choice in range(max(map(len, sizes), default=0)):
        firsts = [min(choice, len(choices) - 1) for choices in sizes]
        hidden = sum(math.prod(choices[first]) for choices, first in zip(sizes, firsts, strict=True))
        if hidden <= _MAX_COVERED * math.prod(picture):
            break
    return firsts


def caption_below(
    grounding: Grounding, width: int, font_size: int, max_lines: int, marks: Mapping[int, str]
) -> Image.Image:
    """The caption, in a font a little larger than that of labels."""
    spans = [(phrase.start, phrase.end) for phrase in grounding.phrases]
    missing = [number for number, phrase in enumerate(grounding.phrases) if not phrase.found]
    return caption_strip(grounding.caption, spans, width, round(font_size * 1.15), max_lines, marks, missing)


def stacked(*parts: Image.Image) -> Image.Image:
    """Pictures one below the other."""
    whole = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)), WHITE)
    top = 0
    for part in parts:
        whole.paste(part, (0, top))
        top += part.height
    return whole
