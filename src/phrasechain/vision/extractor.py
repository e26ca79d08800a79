"""A photo in, its regions with features out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phrasechain.boxes import clip_xyxy
from phrasechain.data.shard import StoreInfo
from phrasechain.errors import DataError
from phrasechain.schema import Regions
from phrasechain.vision.network import Dense, Described, RegionNetwork
from phrasechain.vision.nms import first_kept
from phrasechain.vision.pixels import Photo
from phrasechain.vision.runtime import load_runtime
from phrasechain.vision.weights import load_network

REGIONS = 100
_CANDIDATES = 2500  # best anchors that suppression looks at
_SAME_PROPOSAL, _SAME_REGION = 0.6, 0.5  # the overlap above which two are the same, before and after refinement
_SPARE = 1.5  # proposals that are described for each region: few regions are the first of many


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
        self._look, self._describe = load_runtime(runtime, network, weights_sha256)

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
        maps, dense = self._look(as_input(torch.from_numpy(photo.pixels)[None]))
        if given is None:
            proposals = propose(dense, math.ceil(_SPARE * max(count, REGIONS)))
            found = settle(self._describe(maps, proposals.boxes[None]), proposals.score, count)
        else:
            described = self._describe(maps, given[None])
            found = Settled(given, described.features[0], described.quality[0])
        return Regions(
            image,
            photo.width,
            photo.height,
            boxes=(found.boxes * sides).numpy(),
            features=found.features.half().numpy(),
            objectness=found.score.sigmoid().numpy(),
        )


def as_input(pixels: Tensor) -> Tensor:
    """Pixels (B, S, S, 3) uint8 as what the network takes: (B, 3, S, S) in [-1, 1], channels last in memory."""
    return pixels.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


class Proposals(NamedTuple):
    """Boxes of one photo, best first."""

    boxes: Tensor  # (M, 4)
    score: Tensor  # (M,) logits


class Settled(NamedTuple):
    """The regions of one photo, best first."""

    boxes: Tensor  # (K, 4)
    features: Tensor  # (K, D)
    score: Tensor  # (K,) logits


def propose(dense: Dense, count: int) -> Proposals:
    """The ``count`` best candidates of one photo that are not the same."""
    score, best = dense.score[0].topk(min(_CANDIDATES, dense.score.shape[1]))
    boxes = dense.boxes[0, best].clamp(0, 1)
    kept = first_kept(boxes, _SAME_PROPOSAL, count)
    return Proposals(boxes[kept], score[kept])


def settle(described: Described, score: Tensor, count: int) -> Settled:
    """Rank proposals (1, M) by what both heads think of them, move them, and keep the ``count`` best different ones."""
    score, order = (score + described.quality[0]).sort(descending=True, stable=True)
    boxes = described.boxes[0, order].clamp(0, 1)
    kept = first_kept(boxes, _SAME_REGION, count)
    return Settled(boxes[kept], described.features[0, order[kept]], score[kept])


def _checked(boxes: NDArray[np.floating], image: str) -> Tensor:
    array = np.asarray(boxes)
    if array.ndim != 2 or array.shape[1] != 4 or not len(array) or array.dtype.kind not in "fiu":
        raise DataError(
            f"image {image!r}: boxes must be numbers of shape (K, 4) with K of 1 or more, not {array.shape}"
        )
    if not np.isfinite(array).all() or (array[:, 2:] < array[:, :2]).any():
        raise DataError(f"image {image!r}: a box is not finite, or ends before it starts; boxes are x0, y0, x1, y1")
    return torch.from_numpy(array.astype(np.float32))
