"""What a model learns from: the merged box of each phrase, and how well each region fits it.

Axes: P phrases, K regions, M boxes of all phrases, Q positive pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phrasechain.core.boxes import encode_offsets_xyxy, iou_xyxy, union_by_group_xyxy
from phrasechain.core.schema import Phrase
from phrasechain.model.batch import Batch

POSITIVE = 0.5  # the IoU from which a region is a phrase's


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of the phrases of a batch, one row each."""

    has_box: Tensor  # (P,) bool: False where nobody knows the box
    gold: Tensor  # (P, 4) float32: the merged box, zeros where unknown
    iou: Tensor  # (P, K) float32: of each region with the merged box
    absent: Tensor  # (P,) bool: the photo does not show it, which is known

    @property
    def labelled(self) -> Tensor:
        """The phrases that have a region with IoU ≥ 0.5: (P,) bool. Unlabelled are ``has_box & ~labelled``."""
        return (self.iou >= POSITIVE).any(-1)

    @property
    def has_target(self) -> Tensor:
        """The phrases of which a label is known, a region or ∅: (P,) bool."""
        return self.labelled | self.absent

    def __getitem__(self, rows: Tensor) -> Targets:
        """The targets of some phrases."""
        return self._map(lambda tensor: tensor[rows])

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Targets:
        """The same targets on a device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Targets:
        """The same targets in pinned memory; a DataLoader calls this."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Targets:
        return Targets(function(self.has_box), function(self.gold), function(self.iou), function(self.absent))


def merged_boxes(phrases: Sequence[Phrase]) -> Tensor:
    """The union of each phrase's boxes, zeros where nobody knows them: (P, 4) float32."""
    owned = [(index, box) for index, phrase in enumerate(phrases) for box in phrase.boxes or ()]
    owner = torch.tensor([index for index, _ in owned], dtype=torch.int64)  # (M,)
    boxes = torch.tensor([box for _, box in owned], dtype=torch.float32).view(-1, 4)  # (M, 4)
    return union_by_group_xyxy(boxes, owner, len(phrases))


def make_targets(batch: Batch, phrases: Sequence[Phrase]) -> Targets:
    """The targets of the phrases of a batch, given in its order."""
    gold = merged_boxes(phrases)
    iou = iou_xyxy(batch.boxes[batch.phrase_image], gold[:, None])  # (P, K)
    has_box, absent = ([bool(phrase.boxes) for phrase in phrases], [phrase.is_absent for phrase in phrases])
    return Targets(torch.tensor(has_box), gold, iou, torch.tensor(absent))


def soft_targets(iou: Tensor) -> Tensor:
    """q_k = IoU_k·1[IoU_k ≥ 0.5] normalised to sum 1; zeros for a phrase without such a region: (P, K) to (P, K).

    >>> soft_targets(torch.tensor([[0.75, 0.25, 0.5], [0.25, 0.0, 0.0]]))
    tensor([[0.6000, 0.0000, 0.4000],
            [0.0000, 0.0000, 0.0000]])
    """
    kept = iou * (iou >= POSITIVE)
    total = kept.sum(-1, keepdim=True)
    return kept / torch.where(total > 0, total, 1.0)


def hard_targets(iou: Tensor) -> Tensor:
    """The region of highest IoU, the first of equals: (P, K) to (P,). For an unlabelled phrase it has IoU < 0.5."""
    return iou.argmax(-1)


@dataclass(frozen=True, slots=True)
class PositivePairs:
    """The pairs of a phrase and a region whose offsets are trained."""

    phrase: Tensor  # (Q,) int64
    region: Tensor  # (Q,) int64
    offsets: Tensor  # (Q, 4): from the region to the phrase's merged box


def positive_pairs(batch: Batch, targets: Targets, best_only: bool = False, least_side: float = 0.0) -> PositivePairs:
    """All pairs with IoU ≥ 0.5, or with ``best_only`` each labelled phrase's best.

    ``least_side`` 0.1 counts every side as at least a tenth of the image's when encoding, as the authors' code does.
    """
    if best_only:
        phrase = targets.labelled.nonzero()[:, 0]
        region = hard_targets(targets.iou)[phrase]
    else:
        phrase, region = (targets.iou >= POSITIVE).nonzero(as_tuple=True)
    image = batch.phrase_image[phrase]
    min_sides = batch.sizes[image] * least_side if least_side else None
    offsets = encode_offsets_xyxy(targets.gold[phrase], batch.boxes[image, region], min_sides)
    return PositivePairs(phrase, region, offsets)
