"""Targets of the any-box protocol: a region is right if it overlaps one of the phrase's boxes, merged or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from phrasechain.core.boxes import iou_xyxy, max_by_group
from phrasechain.core.schema import Phrase
from phrasechain.model.batch import Batch
from phrasechain.model.targets import Targets, make_targets


def any_box_targets(batch: Batch, phrases: Sequence[Phrase]) -> Targets:
    """Targets whose ``iou`` is the highest of each region with any of the phrase's boxes; ``gold`` stays merged.

    Axes: P phrases, K regions, M boxes of all phrases.
    """
    owned = [(index, box) for index, phrase in enumerate(phrases) for box in phrase.boxes or ()]
    owner = torch.tensor([index for index, _ in owned], dtype=torch.int64)  # (M,)
    boxes = torch.tensor([box for _, box in owned], dtype=torch.float32).view(-1, 1, 4)  # (M, 1, 4)
    iou = iou_xyxy(batch.boxes[batch.phrase_image[owner]], boxes)  # (M, K)
    return replace(make_targets(batch, phrases), iou=max_by_group(iou, owner, len(phrases)))
