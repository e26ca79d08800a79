"""The region network: from pixels to proposals, and from boxes to features that are trained on words.

A trunk, a light feature pyramid, class-agnostic proposal heads over k-means anchors, and a region head that pools a box
from the pyramid and from the trunk's last map. Boxes are in shares of the image's sides: pixels are the photo squashed
to a square, so neither its size nor its shape matters.
"""

from __future__ import annotations

import copy
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import fuse_conv_bn_eval

from phrasechain.core.boxes import decode_offsets_xyxy, spatial_features_xyxy
from phrasechain.regions.anchors import anchor_grid
from phrasechain.regions.roi_align import roi_align
from phrasechain.regions.trunk import LITE0, Trunk, TrunkShape, relu6

WIDTH = 128  # channels of the pyramid
GRAIN = 64  # of them, as many as boxes are pooled from
CELLS = 5  # a region is pooled as CELLS × CELLS
SEMANTIC = 1280  # channels of the trunk's last layer
HIDDEN = 512
_DROPOUT = 0.4  # of the region head's units: on five thousand photos it soon overfits
_LARGEST_GROWTH = 4.0  # of a proposal over its anchor, as a logarithm


class FeatureMaps(NamedTuple):
    """What the region head pools boxes from."""

    fine: Tensor  # (B, GRAIN, S/16, S/16)
    semantic: Tensor  # (B, HIDDEN, S/32, S/32): the trunk's last layer, projected by the region head


class DenseProposals(NamedTuple):
    """One proposal per anchor."""

    score: Tensor  # (B, N) logits of objectness: how well the box fits something that a caption would name
    boxes: Tensor  # (B, N, 4)


class RegionOutputs(NamedTuple):
    """The region head's outputs for boxes."""

    features: Tensor  # (B, K, D)
    boxes: Tensor  # (B, K, 4) the boxes, refined
    quality: Tensor  # (B, K) logits: how well these fit something that a caption would name


class Layer(nn.Module):
    """A convolution and its batch norm, which :func:`without_norms` folds into the convolution."""

    def __init__(self, width: int, out: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, out, kernel, stride, kernel // 2)
        self.norm: nn.Module = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.norm(self.conv(x)))


class Pyramid(nn.Module):
    """A feature pyramid at strides 16 and 32, top-down and bottom-up, with the map of stride 8 folded in."""

    def __init__(self, channels: tuple[int, int, int]) -> None:
        super().__init__()
        c3, c4, c5 = channels
        self.from_c3 = Layer(4 * c3, WIDTH, 1)  # 2 × 2 positions of stride 8 in one of stride 16
        self.from_c4 = Layer(c4, WIDTH, 1)
        self.from_c5 = Layer(c5, WIDTH, 1)
        self.from_fine = Layer(WIDTH, WIDTH, 3, stride=2)
        self.smooth_fine = Layer(WIDTH, WIDTH, 3)
        self.smooth_coarse = Layer(WIDTH, WIDTH, 3)

    def forward(self, c3: Tensor, c4: Tensor, c5: Tensor) -> tuple[Tensor, Tensor]:
        coarse = self.from_c5(c5)
        fine = self.from_c4(c4) + self.from_c3(F.pixel_unshuffle(c3, 2)) + F.interpolate(coarse, scale_factor=2.0)
        fine = F.relu(self.smooth_fine(F.relu(fine)))
        coarse = coarse + self.from_fine(fine)
        return fine, F.relu(self.smooth_coarse(F.relu(coarse)))


class ProposalHead(nn.Module):
    """A score and four offsets for each anchor of a map (the head of a region proposal network)."""

    def __init__(self, anchors: int) -> None:
        super().__init__()
        self.look = Layer(WIDTH, WIDTH, 3)
        self.say = nn.Conv2d(WIDTH, anchors * 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, WIDTH, S, S) to (B, S²·anchors, 5)."""
        found: Tensor = self.say(F.relu(self.look(x)))
        return found.permute(0, 2, 3, 1).reshape(x.shape[0], -1, 5)


class RegionHead(nn.Module):
    """Features, quality and refinement of boxes, pooled by RoIAlign."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.grain = Layer(WIDTH, GRAIN, 1)
        self.shape = nn.Linear(CELLS * CELLS * GRAIN, HIDDEN)
        self.meaning = nn.Linear(SEMANTIC, HIDDEN)
        self.place = nn.Linear(5, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.dropout = nn.Dropout(_DROPOUT)
        self.feature = nn.Linear(HIDDEN, dimension)
        self.judge = nn.Linear(HIDDEN, 5)

    def forward(self, maps: FeatureMaps, boxes: Tensor) -> RegionOutputs:
        pooled = roi_align(maps.fine, boxes, CELLS).flatten(2)  # (B, K, CELLS²·GRAIN)
        semantic = roi_align(maps.semantic, boxes, 1).flatten(2)  # (B, K, HIDDEN)
        place = spatial_features_xyxy(boxes, boxes.new_ones(2))
        hidden = self.dropout(F.relu(self.norm(self.shape(pooled) + semantic + self.place(place))))
        judged = self.judge(hidden)
        return RegionOutputs(self.feature(hidden), shift(judged[..., 1:], boxes), judged[..., 0])


class RegionNetwork(nn.Module):
    """The whole network; ``sides`` (levels, anchors, 2) are the anchors' widths and heights, ``shape`` the trunk's."""

    anchors: Tensor

    def __init__(self, dimension: int, sides: Tensor, size: int, shape: TrunkShape = LITE0) -> None:
        super().__init__()
        self.dimension, self.sides, self.size = dimension, sides, size
        self.trunk = Trunk(shape)
        self.widen = nn.Conv2d(shape.channels[-1], SEMANTIC, 1)
        self.pyramid = Pyramid(shape.channels)
        self.proposal_heads = nn.ModuleList(ProposalHead(len(level)) for level in sides)
        self.region_head = RegionHead(dimension)
        grids = [anchor_grid(level, size // stride) for level, stride in zip(sides, (16, 32), strict=True)]
        self.register_buffer("anchors", torch.cat(grids), persistent=False)  # (N, 4)

    def forward(self, pixels: Tensor) -> tuple[FeatureMaps, DenseProposals]:
        """The backbone pass, once per image: pixels (B, 3, S, S) in [-1, 1] to feature maps and proposals."""
        return self.from_trunk(*self.trunk(pixels))

    def from_trunk(self, c3: Tensor, c4: Tensor, c5: Tensor) -> tuple[FeatureMaps, DenseProposals]:
        """The same, from the trunk's maps."""
        fine, coarse = self.pyramid(c3, c4, c5)
        found = torch.cat(
            [head(x) for head, x in zip(self.proposal_heads, (fine, coarse), strict=True)], 1
        )  # (B, N, 5)
        semantic = relu6(self.widen(c5)).permute(0, 2, 3, 1)  # (B, S/32, S/32, SEMANTIC)
        semantic = self.region_head.meaning(semantic)  # before pooling: it is linear, and so done once for all boxes
        maps = FeatureMaps(F.relu(self.region_head.grain(fine)), semantic.permute(0, 3, 1, 2))
        return maps, DenseProposals(found[..., 0], shift(found[..., 1:], self.anchors))


def without_norms(network: RegionNetwork) -> RegionNetwork:
    """A copy for inference, with every batch norm folded into its convolution."""
    network = copy.deepcopy(network).eval()
    for layer in network.modules():
        if isinstance(layer, Layer) and isinstance(layer.norm, nn.BatchNorm2d):
            layer.conv = fuse_conv_bn_eval(layer.conv, layer.norm)
            layer.norm = nn.Identity()
    return network


def remove_norms(network: RegionNetwork) -> None:
    """Make room for weights whose norms are folded away."""
    for layer in network.modules():
        if isinstance(layer, Layer):
            layer.norm = nn.Identity()


def shift(offsets: Tensor, boxes: Tensor) -> Tensor:
    """Boxes (..., 4) refined by offsets (..., 4); they may reach over the image's border."""
    growth = offsets[..., 2:].clamp(-_LARGEST_GROWTH, _LARGEST_GROWTH)
    return decode_offsets_xyxy(torch.cat((offsets[..., :2], growth), -1), boxes)
