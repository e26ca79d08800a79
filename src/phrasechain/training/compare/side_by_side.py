"""The paper's Figure 5: captions that a chain and a model without one ground differently, side by side.

Which captions are shown is not a choice of taste: those where most phrases are right with one model and wrong with the
other, their two boxes being far apart (IoU < 0.5); as many where the chain gains as where it loses, one of an image, in
the order of a hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from zlib import crc32

import torch
from torch import Tensor

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.images import without_warnings
from phrasechain.core.schema import Example, GroundedPhrase, Grounding
from phrasechain.draw import draw_comparison
from phrasechain.draw.comparison import AGREE
from phrasechain.evaluation.gold import Gold
from phrasechain.regions.pixels import read_rgb

SHOWN = 4  # of each kind
BETTER, WORSE = "the chain has more right", "the chain has fewer right"


@dataclass(frozen=True, slots=True)
class Answers:
    """What a model says of the N gold phrases."""

    name: str
    boxes: Tensor  # (N, 4)
    right: Tensor  # (N,) bool


@dataclass(frozen=True, slots=True)
class Picture:
    """A caption under its photo, twice."""

    kind: str  # BETTER or WORSE
    image: str
    caption: int
    title: str
    png: bytes


@dataclass(frozen=True, slots=True)
class SideBySide:
    """How often two models differ in phrases that are right, and pictures of some of these captions."""

    chain: str
    alone: str
    captions: int  # with two phrases or more: one has no chain
    better: int  # of them, those where the chain has more right
    worse: int
    pictures: tuple[Picture, ...]


def side_by_side(examples: Sequence[Example], gold: Gold, chain: Answers, alone: Answers) -> SideBySide:
    """Compare two models caption by caption; photos that are missing are passed over."""
    gains = chain.right.long() - alone.right.long()  # (N,)
    gain = _by_caption(gains, gold.caption)  # (C,)
    plain = _by_caption(gains * (iou_xyxy(chain.boxes, alone.boxes) < AGREE), gold.caption)  # (C,)
    is_chain = _by_caption(torch.ones_like(gold.caption), gold.caption) > 1
    pictures = [
        picture
        for kind, sign in ((BETTER, 1), (WORSE, -1))
        for picture in _pictures(kind, _ranked(sign * plain, gold), examples, gold, chain, alone)
    ]
    return SideBySide(
        chain.name,
        alone.name,
        captions=int(is_chain.sum()),
        better=int((is_chain & (gain > 0)).sum()),
        worse=int((is_chain & (gain < 0)).sum()),
        pictures=tuple(pictures),
    )


def _by_caption(values: Tensor, caption: Tensor) -> Tensor:
    return values.new_zeros(int(caption.max()) + 1).index_add(0, caption, values)


def _ranked(gain: Tensor, gold: Gold) -> list[list[int]]:
    """The rows of each caption with a gain and two phrases or more, the largest gain first."""
    rows: dict[int, list[int]] = {}
    for row, caption in enumerate(gold.caption.tolist()):
        rows.setdefault(caption, []).append(row)
    keys = gold.scored_keys()
    chosen = [(caption, mine) for caption, mine in rows.items() if len(mine) > 1 and gain[caption] > 0]
    return [
        mine
        for _, mine in sorted(chosen, key=lambda each: (-int(gain[each[0]]), crc32(str(keys[each[1][0]]).encode())))
    ]


def _pictures(
    kind: str, ranked: Sequence[list[int]], examples: Sequence[Example], gold: Gold, chain: Answers, alone: Answers
) -> Iterator[Picture]:
    """The first ones that can be drawn, each of another image."""
    by_id, keys, seen = {example.image: example for example in examples}, gold.scored_keys(), set[str]()
    for rows in ranked:
        if len(seen) == SHOWN:
            return
        image, caption = keys[rows[0]][:2]
        if image in seen:
            continue
        try:
            png = _draw(by_id[image], caption, rows, {row: keys[row][2:] for row in rows}, gold, (alone, chain))
        except DataError:
            continue
        seen.add(image)
        counts = (int(each.right[rows].sum()) for each in (alone, chain))
        title = f"{next(counts)} of {len(rows)} right by {alone.name}, {next(counts)} by {chain.name}"
        yield Picture(kind, image, caption, title, png)


def _draw(
    example: Example,
    index: int,
    rows: Sequence[int],
    spans: Mapping[int, tuple[int, int]],
    gold: Gold,
    sides: tuple[Answers, Answers],
) -> bytes:
    text = next(caption.text for caption in example.captions if caption.index == index)
    if example.path is None:
        raise DataError(f"image {example.image}: no photo")
    first, second = (_grounding(example, text, rows, spans, gold, side) for side in sides)
    wrong = [{place for place, row in enumerate(rows) if not side.right[row]} for side in sides]
    with without_warnings():
        photo = read_rgb(example.path)
        drawn = draw_comparison(photo, first, second, (sides[0].name, sides[1].name), wrong=(wrong[0], wrong[1]))
    png = BytesIO()
    drawn.save(png, "PNG", optimize=True)
    return png.getvalue()


def _grounding(
    example: Example,
    text: str,
    rows: Sequence[int],
    spans: Mapping[int, tuple[int, int]],
    gold: Gold,
    side: Answers,
) -> Grounding:
    phrases = []
    for row in rows:
        start, end = spans[row]
        category = next((name for name, has in zip(gold.category_names, gold.categories[row], strict=True) if has), "")
        x0, y0, x1, y1 = side.boxes[row].tolist()
        phrases.append(GroundedPhrase(text[start:end], start, end, category, (x0, y0, x1, y1), 0.0))
    return Grounding(str(example.path), example.width, example.height, text, side.name, "", tuple(phrases))
