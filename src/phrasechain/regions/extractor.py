"""A photo in, its regions with features out."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from phrasechain.core.boxes import area_xyxy, clip_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions
from phrasechain.regions.network import DenseProposals, FeatureMaps, RegionNetwork, RegionOutputs
from phrasechain.regions.nms import nms, soft_nms
from phrasechain.regions.pixels import Photo
from phrasechain.regions.runtime import load_runtime
from phrasechain.regions.weights import load_network
from phrasechain.store.shard import StoreInfo

REGIONS = 100
_CANDIDATES = 2500  # best anchors that suppression looks at
_SAME = 0.6  # the overlap above which two proposals are the same
_TURNS = 80  # of 100 regions, as many as are taken for what they add to those before
_SPARE = 1.3  # proposals that are judged for each region: few regions are the first of many
_AT_ONCE = 500  # boxes that are described at once, so that thousands of given ones fit into the memory


class RegionExtractor:
    """The region network at work: any photo to at most ``count`` regions, best first.

    Photos go through the network one by one: on a CPU that is as fast as a batch, and no photo's regions can depend
    on its neighbours. Several threads may share one extractor.
    """

    def __init__(self, network: RegionNetwork, weights_sha256: str, runtime: str = "torch") -> None:
        self.size = network.size  # the side of the square that photos are squashed to
        self.info = StoreInfo(  # what a store of these regions says about itself
            dimension=network.dimension,
            extractor="phrasechain",
            weights_sha256=weights_sha256,
            has_objectness=True,
        )
        self._backbone, self._region_head = load_runtime(runtime, network, weights_sha256)

    @classmethod
    def from_pretrained(cls, path: Path | None = None, runtime: str = "torch") -> Self:
        """The embedded network, or the one in a file that ``phrasechain train-regions`` wrote."""
        loaded = load_network(path)
        return cls(loaded.network, loaded.sha256, runtime)

    @torch.inference_mode()
    def regions(
        self, image: str, photo: Photo, count: int = REGIONS, boxes: NDArray[np.floating] | None = None
    ) -> Regions:
        """The regions of one photo; with ``boxes`` (K, 4), in pixels of the photo, the features of those instead.

        Given boxes are cut at the photo's borders and keep their order and number.
        """
        if count < 1:
            raise DataError(f"count must be 1 or more, not {count}")
        sides = torch.tensor([photo.width, photo.height] * 2, dtype=torch.float32)
        given = None if boxes is None else clip_xyxy(_checked(boxes, image) / sides, torch.ones(2))
        maps, dense = self._backbone(as_input(torch.from_numpy(photo.pixels)[None]))
        if given is None:
            chosen, score = find(self._region_head, maps, dense, count)
        else:
            chosen, score = given, None
        parts = [self._region_head(maps, part[None]) for part in chosen.split(_AT_ONCE)]  # type: ignore[no-untyped-call]
        if score is None:
            score = torch.cat([part.quality[0] for part in parts])
        return Regions(
            image,
            photo.width,
            photo.height,
            boxes=(chosen * sides).numpy(),
            features=torch.cat([part.features[0] for part in parts]).half().numpy(),
            objectness=score.sigmoid().numpy(),
        )


def as_input(pixels: Tensor) -> Tensor:
    """Pixels (B, S, S, 3) uint8 as what the network takes: (B, 3, S, S) in [-1, 1], channels last in memory."""
    return pixels.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


class Scored(NamedTuple):
    """Boxes of one photo, best first."""

    boxes: Tensor  # (K, 4)
    score: Tensor  # (K,) logits


def find(
    region_head: Callable[[FeatureMaps, Tensor], RegionOutputs],
    maps: FeatureMaps,
    dense: DenseProposals,
    count: int = REGIONS,
) -> Scored:
    """The regions of one photo."""
    proposed = propose(dense, math.ceil(_SPARE * max(count, REGIONS)))
    return select_regions(region_head(maps, proposed.boxes[None]), proposed.score, count)


def propose(dense: DenseProposals, count: int) -> Scored:
    """The ``count`` best candidates of one photo that are not the same."""
    score, best = dense.score[0].topk(min(_CANDIDATES, dense.score.shape[1]))
    boxes, score = _inside(dense.boxes[0, best], score)
    kept = nms(boxes, _SAME, count)
    return Scored(boxes[kept], score[kept])


def select_regions(outputs: RegionOutputs, score: Tensor, count: int) -> Scored:
    """Of proposals (1, M), moved, the ``count`` that show most, by what both heads think of them.

    Most are taken in turn, each for what it adds to those before. The last places go to the best of the others: almost
    the same as some of the first, and perhaps a better fit.
    """
    boxes, score = _inside(outputs.boxes[0], (score + outputs.quality[0]) / 2)
    first, worth = soft_nms(boxes, score, min(count, max(_TURNS, math.ceil(_TURNS / REGIONS * count))))
    others = torch.ones(len(boxes), dtype=torch.bool)
    others[first] = False
    rest = score.masked_fill(~others, -math.inf).sort(descending=True, stable=True).indices
    rest = rest[: min(count, len(boxes)) - len(first)]
    worth = torch.cat((worth, F.logsigmoid(score[rest]).clamp(max=worth[-1])))
    return Scored(boxes[torch.cat((first, rest))], worth - torch.log1p(-worth.exp()))


def _inside(boxes: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes (M, 4) cut at the photo's border, with their scores (M,); the whole photo where none has an area."""
    boxes = boxes.clamp(0, 1)
    has_area = area_xyxy(boxes) > 0
    if not bool(has_area.any()):
        return torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.zeros(1)
    return boxes[has_area], score[has_area]


def _checked(boxes: NDArray[np.floating], image: str) -> Tensor:
    array = np.asarray(boxes)
    if array.ndim != 2 or array.shape[1] != 4 or not len(array) or array.dtype.kind not in "fiu":
        raise DataError(
            f"image {image!r}: boxes must be numbers of shape (K, 4) with K of 1 or more, not {array.shape}"
        )
    if not np.isfinite(array).all() or (array[:, 2:] < array[:, :2]).any():
        raise DataError(f"image {image!r}: a box is not finite, or ends before it starts; boxes are x0, y0, x1, y1")
    return torch.from_numpy(array.astype(np.float32))
