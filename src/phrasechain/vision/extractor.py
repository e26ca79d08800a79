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
from phrasechain.errors import DataError
from phrasechain.schema import Regions
from phrasechain.vision.network import Dense, RegionNetwork
from phrasechain.vision.nms import first_kept
from phrasechain.vision.pixels import Photo
from phrasechain.vision.runtime import load_runtime
from phrasechain.vision.weights import load_network

REGIONS = 100
OVERLAP = 0.5  # above which two proposals are the same
_CANDIDATES = 1000  # best anchors that suppression looks at


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
        chosen = select(dense, count) if given is None else given
        described = self._describe(maps, chosen[None])
        return Regions(
            image,
            photo.width,
            photo.height,
            boxes=(chosen * sides).numpy(),
            features=described.features[0].half().numpy(),
            objectness=described.quality[0].sigmoid().numpy(),
        )


def as_input(pixels: Tensor) -> Tensor:
    """Pixels (B, S, S, 3) uint8 as what the network takes: (B, 3, S, S) in [-1, 1], channels last in memory."""
    return pixels.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def select(dense: Dense, count: int) -> Tensor:
    """The best boxes of one image after suppression, best first: (at most ``count``, 4)."""
    best = dense.score[0].topk(min(_CANDIDATES, dense.score.shape[1])).indices
    boxes = dense.boxes[0, best].clamp(0, 1)
    return boxes[first_kept(boxes, OVERLAP, count)]


def _checked(boxes: NDArray[np.floating], image: str) -> Tensor:
    array = np.asarray(boxes)
    if array.ndim != 2 or array.shape[1] != 4 or not len(array) or array.dtype.kind not in "fiu":
        raise DataError(
            f"image {image!r}: boxes must be numbers of shape (K, 4) with K of 1 or more, not {array.shape}"
        )
    if not np.isfinite(array).all() or (array[:, 2:] < array[:, :2]).any():
        raise DataError(f"image {image!r}: a box is not finite, or ends before it starts; boxes are x0, y0, x1, y1")
    return torch.from_numpy(array.astype(np.float32))
