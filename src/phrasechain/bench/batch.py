"""Batches and models of given sizes for the benchmarks: the paper's, and those of the embedded model.

Axes: I images, B captions, L tokens, P phrases, K regions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from phrasechain.core.boxes import spatial_features_xyxy
from phrasechain.model.batch import Batch
from phrasechain.model.model import GroundingModel
from phrasechain.model.targets import Targets
from phrasechain.text.base import Captions, TextEncoder

POSITIVE_REGIONS = 5  # of a phrase; 4.75 in the benchmark


@dataclass(frozen=True, slots=True)
class Sizes:
    """The shapes of a batch and of a model; ``phrases`` and ``tokens`` of captions go round and round."""

    images: int = 16
    captions: int = 1  # of each image
    regions: int = 100
    phrases: tuple[int, ...] = (2, 3, 3, 2, 4)  # 2.8 in the mean
    tokens: tuple[int, ...] = (12, 14, 17, 11, 16)  # 14 in the mean
    features: int = 2048
    words: int = 1024
    lstm: int = 512
    rank: int = 1024
    joint: int = 1024
    hidden: int = 16

    @property
    def token_counts(self) -> list[int]:
        """The tokens of each caption, at least two for each of its phrases."""
        B = self.images * self.captions
        both = zip(around(self.tokens, B), around(self.phrases, B), strict=True)
        return [max(tokens, 2 * phrases) for tokens, phrases in both]


SIZES = {
    "paper": Sizes(),
    "small": Sizes(captions=5, features=256, words=100, lstm=200, rank=384, joint=192),
}


class GivenTokens(TextEncoder):
    """Vectors that are there already."""

    def __init__(self, lengths: list[int], dimension: int) -> None:
        super().__init__()
        self.dimension = dimension
        inside = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]  # (B, L)
        self.vectors = torch.randn(*inside.shape, dimension) * inside[..., None]

    def forward(self, captions: Captions) -> Tensor:
        return self.vectors


def make_batch(sizes: Sizes) -> tuple[Batch, Targets]:
    """A batch of these shapes and its targets: every phrase has five right regions."""
    B = sizes.images * sizes.captions
    lengths = torch.tensor(around(sizes.phrases, B))
    phrase_caption = torch.repeat_interleave(torch.arange(B), lengths)
    step = torch.arange(len(phrase_caption)) - (lengths.cumsum(0) - lengths)[phrase_caption]
    corners = torch.rand(sizes.images, sizes.regions, 2) * torch.tensor([300.0, 200.0])
    boxes = torch.cat([corners, corners + 50 + torch.rand_like(corners) * 100], -1)  # (I, K, 4)
    image_sizes = torch.tensor([[500.0, 400.0]]).repeat(sizes.images, 1)
    rng = torch.rand(len(step), sizes.regions)
    iou = torch.where(rng >= rng.topk(min(POSITIVE_REGIONS, sizes.regions)).values[:, -1:], 0.7, 0.1)
    batch = Batch(
        images=tuple(map(str, range(sizes.images))),
        sizes=image_sizes,
        boxes=boxes,
        features=torch.randn(sizes.images, sizes.regions, sizes.features).half(),
        spatial=spatial_features_xyxy(boxes, image_sizes[:, None]),
        region_mask=torch.ones(sizes.images, sizes.regions, dtype=torch.bool),
        captions=tuple(range(B)),
        tokens=tuple(("word",) * count for count in sizes.token_counts),
        caption_image=torch.repeat_interleave(torch.arange(sizes.images), sizes.captions),
        lengths=lengths,
        steps=int(lengths.max()),
        phrase_caption=phrase_caption,
        phrase_step=step,
        token_spans=torch.stack([2 * step, 2 * step + 1], -1),
        spans=torch.stack([2 * step, 2 * step + 1], -1),
        categories=torch.zeros_like(step),
    )
    gold = boxes[0, :1].expand(len(step), 4).contiguous()
    known = torch.ones(len(step), dtype=torch.bool)
    return batch, Targets(known, gold, iou, ~known)


def make_model(sizes: Sizes) -> GroundingModel:
    """A model of these sizes with context M; the vectors of the tokens of a batch are given."""
    encoder = GivenTokens(sizes.token_counts, sizes.words)
    values = {name: getattr(sizes, name) for name in ("lstm", "rank", "joint")}
    return GroundingModel(encoder, sizes.features, transition_hidden=sizes.hidden, context="M", **values)


def around(values: tuple[int, ...], count: int) -> list[int]:
    """The values again and again, ``count`` in all."""
    return list(itertools.islice(itertools.cycle(values), count))
