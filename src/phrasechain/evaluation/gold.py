"""The gold phrases of a split as tensors, and predictions matched to them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from phrasechain.core.boxes import union_by_group_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.schema import CATEGORIES, Example, Phrase
from phrasechain.data.regimes import chain_phrases, is_scored
from phrasechain.evaluation.predictions import PhraseKey, Prediction

UNSCORED = -1


@dataclass(frozen=True, slots=True)
class Gold:
    """N scored phrases with M boxes in C categories; ``rows`` also knows the visual phrases that are not scored."""

    rows: dict[PhraseKey, int]  # of every visual phrase; UNSCORED for one without a known box
    image: Tensor  # (N,) int64
    caption: Tensor  # (N,) int64: another number for every caption of every image
    caption_index: Tensor  # (N,) int64: which of its image's captions, 0 the first
    chain_length: Tensor  # (N,) int64: how many phrases its chain holds in the regime
    entity: Tensor  # (N,) int64
    categories: Tensor  # (N, C) bool
    category_names: tuple[str, ...]
    boxes: Tensor  # (M, 4) float64
    owner: Tensor  # (M,) int64: the phrase of each box
    merged: Tensor  # (N, 4) float64

    def __len__(self) -> int:
        return len(self.image)

    def scored_keys(self) -> list[PhraseKey]:
        """The scored phrases, in the order of their rows."""
        return [key for key, row in self.rows.items() if row != UNSCORED]


class _Row(NamedTuple):
    image: int
    caption: int
    chain_length: int
    key: PhraseKey
    phrase: Phrase


def collect_gold(examples: Iterable[Example], regime: str) -> Gold:
    """The phrases with a box of all examples, in their order; a phrase without an entity is one of its own."""
    visual = list(_visual_rows(examples, regime))
    rows: dict[PhraseKey, int] = {}
    for row in visual:
        if row.key in rows:
            raise DataError(f"{describe(row.key)} is annotated twice; remove one of the two")
        rows[row.key] = UNSCORED
    scored = [row for row in visual if is_scored(row.phrase)]
    rows |= {row.key: number for number, row in enumerate(scored)}
    categories, names = _categories([row.phrase for row in scored])
    gold_boxes = [(number, box) for number, row in enumerate(scored) for box in row.phrase.boxes or ()]
    boxes = torch.tensor([box for _, box in gold_boxes], dtype=torch.float64).view(-1, 4)
    owner = _integers(number for number, _ in gold_boxes)
    return Gold(
        rows=rows,
        image=_integers(row.image for row in scored),
        caption=_integers(row.caption for row in scored),
        caption_index=_integers(row.key[1] for row in scored),
        chain_length=_integers(row.chain_length for row in scored),
        entity=_numbered([(row.image, row.phrase.entity or row.key) for row in scored]),
        categories=categories,
        category_names=names,
        boxes=boxes,
        owner=owner,
        merged=union_by_group_xyxy(boxes, owner, len(scored)),
    )


def describe(key: PhraseKey) -> str:
    """A phrase's place, for a message."""
    image, caption, start, end = key
    return f"image {image!r}, caption {caption}, characters {start} to {end}"


def _visual_rows(examples: Iterable[Example], regime: str) -> Iterator[_Row]:
    captions = ((number, example, caption) for number, example in enumerate(examples) for caption in example.captions)
    for caption_number, (image_number, example, caption) in enumerate(captions):
        chain_length = len(chain_phrases(caption, regime))
        for phrase in chain_phrases(caption, "all"):
            key = (example.image, caption.index, phrase.start, phrase.end)
            yield _Row(image_number, caption_number, chain_length, key, phrase)


def _categories(phrases: Sequence[Phrase]) -> tuple[Tensor, tuple[str, ...]]:
    """Which phrase is of which category (N, C), and the names of those that occur: the official ones first."""
    found = {name for phrase in phrases for name in phrase.categories}
    names = [name for name in CATEGORIES if name in found] + sorted(found.difference(CATEGORIES))
    column = {name: number for number, name in enumerate(names)}
    flags = torch.zeros(len(phrases), len(names), dtype=torch.bool)
    for row, phrase in enumerate(phrases):
        flags[row, [column[name] for name in phrase.categories]] = True
    return flags, tuple(names)


def _integers(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


def _numbered(values: Iterable[Hashable]) -> Tensor:
    numbers: dict[Hashable, int] = {}
    return _integers(numbers.setdefault(value, len(numbers)) for value in values)


@dataclass(frozen=True, slots=True)
class Matched:
    """Predictions in the rows of ``Gold``; a phrase without one has zeros for a box and no regions."""

    found: Tensor  # (N,) bool
    boxes: Tensor  # (N, 4) float64
    regions: Tensor  # (S, 4) float64: the ranked regions of all phrases, one after the other
    region_counts: Tensor  # (N,) int64
    unscored: int  # predictions for visual phrases without a known box
    unknown: int  # predictions for phrases that the data does not have
    first_unknown: Prediction | None


def match_predictions(gold: Gold, predictions: Iterable[Prediction], source: str = "predictions") -> Matched:
    """Match each prediction to its phrase; a second one for the same phrase is refused, and so is a total mismatch.

    ``source`` is the name of the predictions for messages: their file.
    """
    boxes = np.zeros((len(gold), 4))
    regions = [np.empty((0, 4))] * len(gold)
    seen: dict[PhraseKey, int] = {}
    unknown, first_unknown = 0, None
    for prediction in predictions:
        row = gold.rows.get(prediction.key)
        if row is None:
            unknown += 1
            first_unknown = first_unknown or prediction
            continue
        if prediction.key in seen:
            first, second = seen[prediction.key], prediction.line
            raise DataError(f"{source}:{second}: {describe(prediction.key)} again, after line {first}; keep one")
        seen[prediction.key] = prediction.line
        if row != UNSCORED:
            boxes[row] = prediction.box
            regions[row] = prediction.region_boxes
    if not seen and not unknown:
        raise DataError(f"{source}: holds no predictions")
    if not seen:
        raise DataError(f"{source}: none of its {unknown:,} predictions is for a phrase of this data; is it the split?")
    return Matched(
        found=torch.tensor([key in seen for key in gold.scored_keys()], dtype=torch.bool),
        boxes=torch.from_numpy(boxes),
        regions=torch.from_numpy(np.concatenate([np.empty((0, 4)), *regions])),
        region_counts=_integers(map(len, regions)),
        unscored=sum(gold.rows[key] == UNSCORED for key in seen),
        unknown=unknown,
        first_unknown=first_unknown,
    )
