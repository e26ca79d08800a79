"""Two groundings of one caption, and where they differ."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from PIL import Image, ImageDraw

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Grounding
from phrasechain.draw.caption import TEXT, strip_margin
from phrasechain.draw.colours import WHITE, Colour
from phrasechain.draw.font import shortened, shown_line
from phrasechain.draw.frames import chip_size, draw_text
from phrasechain.draw.panel import Panel
from phrasechain.draw.picture import MAX_LINES, caption_below, check_drawable, draw_tags, phrase_tags, stacked

AGREE = 0.5  # the least IoU of two boxes that say the same
WIDE = 1.8  # a photo with this many times its height as width has the other below it, not beside it
MARK = "*"
_PANELS = 2
_GREY: Colour = (95, 95, 95)


def draw_comparison(
    image: Image.Image,
    first: Grounding,
    second: Grounding,
    names: tuple[str, str],
    *,
    probabilities: bool = False,
    max_lines: int = MAX_LINES,
    wrong: tuple[Collection[int], Collection[int]] | None = None,
) -> Image.Image:
    """The two pictures under their names, above the one caption; phrases whose boxes differ are bold and starred.

    Where it is known which phrases of each are ``wrong``, their boxes are dashed.
    """
    _check_comparable(first, second)
    differ = differing(first, second)
    pictures: list[Image.Image] = []
    numbered: set[int] = set()
    for grounding, name, dashed in zip((first, second), names, wrong or (None, None), strict=True):
        size = check_drawable(image, grounding, _PANELS)
        panel = Panel(image, size, _PANELS)
        tags = phrase_tags(
            panel, grounding.phrases, probabilities=probabilities, bold=differ, mark=f"{MARK} ", dashed=dashed
        )
        numbered |= draw_tags(panel, tags)
        pictures.append(stacked(_text_strip(name, panel.picture.width, panel.font_size, TEXT), panel.picture))
    pair = stacked(*pictures) if first.width >= WIDE * first.height else _beside(pictures, panel.font_size)
    marks = {number: MARK * (number in differ) + str(number + 1) * (number in numbered) for number in differ | numbered}
    legend = f"{MARK} the two differ (IoU < {AGREE}): {len(differ)} of {len(first.phrases)} phrases"
    legend += "; dashed: wrong" * (wrong is not None)
    return stacked(
        pair,
        caption_below(first, pair.width, panel.font_size, max_lines, marks),
        _text_strip(legend, pair.width, panel.font_size, _GREY),
    )


def differing(first: Grounding, second: Grounding) -> set[int]:
    """The numbers of the phrases whose two boxes have an IoU below one half."""
    boxes = (torch.tensor([phrase.box for phrase in side.phrases]).view(-1, 4) for side in (first, second))
    return {number for number, iou in enumerate(iou_xyxy(*boxes).tolist()) if iou < AGREE}


def _check_comparable(first: Grounding, second: Grounding) -> None:
    spans = [[(phrase.start, phrase.end) for phrase in side.phrases] for side in (first, second)]
    if first.caption != second.caption or spans[0] != spans[1]:
        raise DataError("two groundings can be compared if they have the same caption and phrases; these have not")


def _text_strip(text: str, width: int, font_size: int, colour: Colour) -> Image.Image:
    margin = strip_margin(font_size)
    strip = Image.new("RGB", (width, chip_size("", font_size)[1] + margin), WHITE)
    fitting = shortened(shown_line(text), font_size, width - 2 * margin)
    draw_text(ImageDraw.Draw(strip), (margin, margin // 2), fitting, font_size, colour)
    return strip


def _beside(pictures: Sequence[Image.Image], gap: int) -> Image.Image:
    left, right = pictures
    pair = Image.new("RGB", (left.width + gap + right.width, left.height), WHITE)
    pair.paste(left, (0, 0))
    pair.paste(right, (left.width + gap, 0))
    return pair
