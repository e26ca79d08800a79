"""How well the regions of a store cover the gold phrases: the upper bound of accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from phrasechain.core.boxes import max_by_group, pairwise_iou_xyxy
from phrasechain.core.errors import DataError, require_name
from phrasechain.core.progress import track
from phrasechain.core.schema import Example, Regions
from phrasechain.evaluation.gold import Gold
from phrasechain.evaluation.metrics import NEVER, RIGHT
from phrasechain.store.reader import FeatureStore

MISSING = ("refuse", "skip")  # what becomes of images that a store lacks
#: The upper bounds that are reported: how many of an image's regions are taken.
UPPER_BOUNDS_AT = {"10": 10, "36": 36, "50": 50, "100": 100, "all": NEVER}


@dataclass(frozen=True, slots=True)
class RegionHits:
    """The N phrases of ``Gold`` and the ranked regions of their images; an image without regions has no hits.

    ``ranks < k`` is the upper bound of the first k regions, ``ranks < NEVER`` that of all.
    """

    counts: Tensor  # (N,) int64: regions with IoU ≥ the threshold with the merged box
    ranks: dict[str, Tensor]  # "merged box" | "any box" → (N,) int64: the first such region from 0, NEVER if none is


def region_hits(gold: Gold, store: FeatureStore | Mapping[str, Regions], threshold: float = RIGHT) -> RegionHits:
    """Compare each phrase with the regions of its image, those of highest objectness first where the store has it.

    A region hits from an IoU of ``threshold`` on.
    """
    counts = torch.zeros(len(gold), dtype=torch.int64)
    merged, any_box = torch.full_like(counts, NEVER), torch.full_like(counts, NEVER)
    images = [(image, len(list(rows))) for image, rows in groupby(key[0] for key in gold.scored_keys())]
    end = 0
    for image, phrases in track(images, len(images), "Comparing regions"):
        start, end = end, end + phrases
        if image not in store:
            continue
        regions = _ranked_boxes(store[image])  # (K, 4)
        mine = slice(*torch.searchsorted(gold.owner, torch.tensor([start, end])).tolist())
        own = pairwise_iou_xyxy(gold.merged[start:end], regions) >= threshold  # (P, K)
        iou = pairwise_iou_xyxy(gold.boxes[mine], regions)  # (M, K)
        counts[start:end] = own.sum(-1)
        merged[start:end] = _first(own)
        any_box[start:end] = _first(max_by_group(iou, gold.owner[mine] - start, phrases) >= threshold)
    return RegionHits(counts, {"merged box": merged, "any box": any_box})


def unfit_regions(examples: Iterable[Example], store: FeatureStore) -> Iterator[str]:
    """What is wrong with the regions of each image: there are none, or they are of an image of another size."""
    for example in examples:
        if example.image not in store:
            yield f"image {example.image}: not in the store {store.path}"
            continue
        regions = store[example.image]
        if (regions.width, regions.height) != (example.width, example.height):
            yield (
                f"image {example.image}: {regions.width}×{regions.height} in the store {store.path}, "
                f"but annotated as {example.width}×{example.height}"
            )


def with_regions(examples: Sequence[Example], store: FeatureStore, missing: str = "refuse") -> Sequence[Example]:
    """The images whose regions a store has: all of them, or with ``missing="skip"`` those that are there.

    Regions of an image of another size are refused in any case.
    """
    require_name("treatment of missing images", missing, MISSING)
    found = examples if missing == "refuse" else [example for example in examples if example.image in store]
    require_regions(found, store)
    return found


def require_regions(examples: Iterable[Example], store: FeatureStore) -> None:
    """Refuse a store without the regions of these very images."""
    if unfit := list(unfit_regions(examples, store)):
        more = f" (and {len(unfit) - 1:,} more images)" if len(unfit) > 1 else ""
        skip = ", or leave images out with --missing skip" if "not in the store" in unfit[0] else ""
        raise DataError(f"{unfit[0]}{more}; extract the regions of these very images{skip}")


def _ranked_boxes(regions: Regions) -> Tensor:
    boxes = torch.tensor(regions.boxes, dtype=torch.float64)
    if regions.objectness is None:
        return boxes
    return boxes[torch.tensor(regions.objectness).argsort(descending=True, stable=True)]


def _first(hits: Tensor) -> Tensor:
    """The rank of the first hit of each row: (P, K ≥ 1) bool to (P,)."""
    return torch.where(hits.any(-1), hits.int().argmax(-1), NEVER)
