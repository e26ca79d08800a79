"""A photo in, its regions with features out."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phrasechain.boxes import clip_xyxy
from phrasechain.data.shard import StoreInfo
from phrasechain.schema import Regions
from phrasechain.vision.network import Dense, Described, Maps, RegionNetwork
from phrasechain.vision.nms import suppress
from phrasechain.vision.pixels import Photo
from phrasechain.vision.weights import load_network

REGIONS = 100
OVERLAP = 0.5  # above which two proposals are the same
_CANDIDATES = 1000  # best anchors that suppression looks at


class RegionExtractor:
    """The region network at work: any photo to at most ``count`` regions, best first.

    Photos go through the network one by one: on a CPU that is as fast as a batch, and no photo's regions can depend
    on its neighbours.
    """

    def __init__(self, network: RegionNetwork, weights_sha256: str) -> None:
        self._network = network
        self.weights_sha256 = weights_sha256

    @classmethod
    def from_pretrained(cls, path: Path | None = None) -> Self:
        """The embedded network, or the one in a file that ``phrasechain train-regions`` wrote."""
        loaded = load_network(path)
        return cls(loaded.network, loaded.sha256)

    @property
    def size(self) -> int:
        """The side of the square that photos are squashed to."""
        return self._network.size

    @property
    def info(self) -> StoreInfo:
        """What a store of these regions says about itself."""
        return StoreInfo(
            dimension=self._network.dimension,
            extractor="phrasechain",
            weights_sha256=self.weights_sha256,
            has_objectness=True,
        )

    @torch.inference_mode()
    def regions(
        self, image: str, photo: Photo, count: int = REGIONS, boxes: NDArray[np.floating] | None = None
    ) -> Regions:
        """The regions of one photo; with ``boxes`` (K, 4), in pixels of the photo, the features of those instead."""
        maps, dense = self._look(photo)
        sides = torch.tensor([photo.width, photo.height] * 2, dtype=torch.float32)
        if boxes is None:
            chosen = select(dense, count)
        else:
            chosen = clip_xyxy(torch.from_numpy(np.asarray(boxes, np.float32)) / sides, torch.ones(2))
        described = self._describe(maps, chosen[None])
        return Regions(
            image,
            photo.width,
            photo.height,
            boxes=(chosen * sides).numpy(),
            features=described.features[0].half().numpy(),
            objectness=described.quality[0].sigmoid().numpy(),
        )

    def _look(self, photo: Photo) -> tuple[Maps, Dense]:
        found: tuple[Maps, Dense] = self._network(as_input(torch.from_numpy(photo.pixels)[None]))
        return found

    def _describe(self, maps: Maps, boxes: Tensor) -> Described:
        described: Described = self._network.describe(maps, boxes)
        return described


def as_input(pixels: Tensor) -> Tensor:
    """Pixels (B, S, S, 3) uint8 as what the network takes: (B, 3, S, S) in [-1, 1], channels last in memory."""
    return pixels.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def select(dense: Dense, count: int) -> Tensor:
    """The best boxes of one image after suppression, best first: (at most ``count``, 4)."""
    best = dense.score[0].topk(min(_CANDIDATES, dense.score.shape[1])).indices
    boxes = dense.boxes[0, best].clamp(0, 1)
    return boxes[suppress(boxes, OVERLAP)][:count]
