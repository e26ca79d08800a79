"""What a model is trained on: the regions of a few images, the captions about them, their phrases and their targets.

Axes: I images, B captions, P phrases of all captions one after the other, T phrases of the longest chain, K regions
of the image with most, D features. Nothing is padded beyond the batch and phrases are not padded at all: what is
computed per phrase has P rows, and ``Batch.to_chains`` lays it out as (B, T, ...) for the chain. Captions of one image
share its regions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from phrasechain.core.boxes import (
    encode_offsets_xyxy,
    iou_xyxy,
    max_by_group,
    spatial_features_xyxy,
    union_by_group_xyxy,
)
from phrasechain.core.errors import DataError, unknown_name
from phrasechain.core.schema import Caption, Example, Phrase, Regions
from phrasechain.data.regimes import chain_phrases

POSITIVE = 0.5  # the IoU from which a region is a phrase's
Item = tuple[Example, Caption]
#: What always stays together: an image with all its captions, whose regions are then scored once, or one caption.
Group = tuple[Item, ...]
BY = ("image", "caption", "draw")


class RegionSource(Protocol):
    """A store of regions, or a dict of them."""

    def __getitem__(self, image: str, /) -> Regions: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one batch; ``tokens``, ``images`` and ``captions`` stay with the host."""

    images: tuple[str, ...]  # I image ids
    sizes: Tensor  # (I, 2) float32: width, height
    boxes: Tensor  # (I, K, 4) float32, zeros where there is no region
    features: Tensor  # (I, K, D) as stored
    objectness: Tensor  # (I, K) float32 in [0, 1], one half where the store has none
    spatial: Tensor  # (I, K, 5) float32
    region_mask: Tensor  # (I, K) bool
    captions: tuple[int, ...]  # B indices of captions in their image
    tokens: tuple[tuple[str, ...], ...]  # B captions
    caption_image: Tensor  # (B,) int64
    lengths: Tensor  # (B,) int64 ≥ 1: phrases in the chain
    steps: int  # T
    phrase_caption: Tensor  # (P,) int64
    phrase_step: Tensor  # (P,) int64: the place in the chain
    token_spans: Tensor  # (P, 2) int64: [first, end) in the caption's tokens
    spans: Tensor  # (P, 2) int64: [start, end) in the caption's characters
    has_box: Tensor  # (P,) bool: False where nobody knows the box
    gold: Tensor  # (P, 4) float32: the merged box, zeros where unknown
    iou: Tensor  # (P, K) float32: of each region with the merged box
    any_iou: Tensor  # (P, K) float32: of each region with the best of the phrase's boxes

    @property
    def label_mask(self) -> Tensor:
        """Which regions a caption's chain may take: (B, K) bool."""
        return self.region_mask[self.caption_image]

    @property
    def phrase_image(self) -> Tensor:
        """The image of each phrase: (P,)."""
        return self.caption_image[self.phrase_caption]

    @property
    def labelled(self) -> Tensor:
        """The phrases that have a region with IoU ≥ 0.5: (P,) bool. Unlabelled are ``has_box & ~labelled``."""
        return (self.iou >= POSITIVE).any(-1)

    def to_chains(self, values: Tensor) -> Tensor:
        """Lay out one row per phrase, (P, ...), as (B, T, ...) with zeros past each chain's end."""
        chains = values.new_zeros(len(self.lengths), self.steps, *values.shape[1:])
        return chains.index_put((self.phrase_caption, self.phrase_step), values)

    def to_phrases(self, chains: Tensor) -> Tensor:
        """One row per phrase, (P, ...), of what is laid out as (B, T, ...)."""
        return chains[self.phrase_caption, self.phrase_step]

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """The same batch on a device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in pinned memory; a DataLoader calls this."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        moved: dict[str, Any] = {name: function(value) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved)


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


def multi_hot_targets(any_iou: Tensor) -> Tensor:
    """Every region with IoU ≥ 0.5 with one of the phrase's boxes: (P, K) to (P, K) bool."""
    return any_iou >= POSITIVE


@dataclass(frozen=True, slots=True)
class PositivePairs:
    """The pairs of a phrase and a region whose offsets are trained."""

    phrase: Tensor  # (Q,) int64
    region: Tensor  # (Q,) int64
    offsets: Tensor  # (Q, 4): from the region to the phrase's merged box


def positive_pairs(batch: Batch, best_only: bool = False, least_side: float = 0.0) -> PositivePairs:
    """All pairs with IoU ≥ 0.5, or with ``best_only`` each labelled phrase's best.

    ``least_side`` 0.1 counts every side as at least a tenth of the image's when encoding, as the authors' code does.
    """
    if best_only:
        phrase = batch.labelled.nonzero()[:, 0]
        region = hard_targets(batch.iou)[phrase]
    else:
        phrase, region = (batch.iou >= POSITIVE).nonzero(as_tuple=True)
    image = batch.phrase_image[phrase]
    min_sides = batch.sizes[image] * least_side if least_side else None
    return PositivePairs(phrase, region, encode_offsets_xyxy(batch.gold[phrase], batch.boxes[image, region], min_sides))


def collate(items: Sequence[tuple[Example, Caption]], regions: RegionSource, regime: str = "gold") -> Batch:
    """Make a batch of captions, each with the image it is about; captions without a phrase in the chain are left out.

    The regions of an image are read once, whatever the number of its captions.
    """
    chains = [(example, caption, phrases) for example, caption in items if (phrases := chain_phrases(caption, regime))]
    if not chains:
        raise DataError(f"none of the {len(items)} captions of a batch has a phrase in its chain (regime {regime!r})")
    examples = {example.image: example for example, _, _ in chains}
    image_index = {image: index for index, image in enumerate(examples)}
    found = [_checked(regions[image], example) for image, example in examples.items()]
    sizes = torch.tensor([(each.width, each.height) for each in found], dtype=torch.float32)
    boxes = _pad([each.boxes for each in found]).float()  # (I, K, 4)
    caption_image = torch.tensor([image_index[example.image] for example, _, _ in chains])
    lengths = torch.tensor([len(phrases) for _, _, phrases in chains])
    phrase_caption = torch.repeat_interleave(torch.arange(len(chains)), lengths)
    flat = [phrase for _, _, phrases in chains for phrase in phrases]
    has_box, gold, iou, any_iou = _overlaps(flat, boxes[caption_image[phrase_caption]])
    counts = torch.tensor([len(each.boxes) for each in found])
    return Batch(
        images=tuple(examples),
        sizes=sizes,
        boxes=boxes,
        features=_pad([each.features for each in found]),
        objectness=_pad([_objectness(each) for each in found])[..., 0],
        spatial=spatial_features_xyxy(boxes, sizes[:, None]),
        region_mask=torch.arange(boxes.shape[1]) < counts[:, None],
        captions=tuple(caption.index for _, caption, _ in chains),
        tokens=tuple(caption.tokens for _, caption, _ in chains),
        caption_image=caption_image,
        lengths=lengths,
        steps=int(lengths.max()),
        phrase_caption=phrase_caption,
        phrase_step=torch.arange(len(flat)) - (lengths.cumsum(0) - lengths)[phrase_caption],
        token_spans=torch.tensor([(phrase.first_token, phrase.end_token) for phrase in flat]),
        spans=torch.tensor([(phrase.start, phrase.end) for phrase in flat]),
        has_box=has_box,
        gold=gold,
        iou=iou,
        any_iou=any_iou,
    )


def make_groups(examples: Sequence[Example], by: str = "image", regime: str = "gold") -> list[Group]:
    """The captions with a phrase in their chain, an image's together unless ``by`` is ``caption``."""
    if by not in BY:
        raise DataError(unknown_name("way to batch", by, BY))
    images = [
        tuple((example, caption) for caption in example.captions if chain_phrases(caption, regime))
        for example in examples
    ]
    if by == "caption":
        return [(item,) for group in images for item in group]
    return [group for group in images if group]


def require_finite(batches: Iterable[Batch]) -> None:
    """Name the image whose region features are not finite, if one is."""
    for batch in batches:
        finite = batch.features.isfinite().all(-1).all(-1)  # (I,)
        if not bool(finite.all()):
            image = batch.images[int(finite.int().argmin())]
            raise DataError(f"image {image}: its region features are not finite; extract them again")


def _checked(regions: Regions, example: Example) -> Regions:
    if len(regions.boxes) == 0:
        raise DataError(f"image {example.image!r} has no regions; leave it out or extract some")
    if (regions.width, regions.height) != (example.width, example.height):
        raise DataError(
            f"image {example.image!r}: its regions are of a {regions.width}×{regions.height} image, its annotation of "
            f"a {example.width}×{example.height} one; extract the regions from the annotated image"
        )
    return regions


def _objectness(regions: Regions) -> np.ndarray:
    """(K, 1) float32."""
    if regions.objectness is None:
        return np.full((len(regions.boxes), 1), 0.5, np.float32)
    return np.asarray(regions.objectness, np.float32)[:, None]


def _pad(arrays: Sequence[np.ndarray]) -> Tensor:
    """Stack arrays (K_i, F) to (I, K, F), zeros at the end of the shorter ones."""
    padded = np.zeros((len(arrays), max(map(len, arrays)), arrays[0].shape[1]), dtype=arrays[0].dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(padded)


def _overlaps(phrases: Sequence[Phrase], regions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """has_box (P,), the merged boxes (P, 4), and the IoU of regions (P, K, 4) with the merged and with the best box."""
    owned = [(index, box) for index, phrase in enumerate(phrases) for box in phrase.boxes or ()]
    owner = torch.tensor([index for index, _ in owned], dtype=torch.int64)  # (M,)
    boxes = torch.tensor([box for _, box in owned], dtype=torch.float32).view(-1, 4)  # (M, 4)
    merged = union_by_group_xyxy(boxes, owner, len(phrases))  # (P, 4)
    single = iou_xyxy(regions[owner], boxes[:, None])  # (M, K)
    return (
        torch.tensor([bool(phrase.boxes) for phrase in phrases]),
        merged,
        iou_xyxy(regions, merged[:, None]),
        max_by_group(single, owner, len(phrases)),
    )
