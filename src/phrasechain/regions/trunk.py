"""EfficientNet-Lite (Tan & Le, 2019, in its variant without squeeze-and-excitation), batch norms folded away.

Every convolution carries the bias that its batch norm left, so training and inference run the same few operators.

With stride 2 the published network pads right and below, torch left and above. So kernels are stored turned by 180°,
and the photo passes upside down: the same result, for free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEM = 32
_SPLIT = 3  # stages before the map at stride 8 is complete
_MULTIPLE = 8  # that the channels of a stage are rounded to


class Stage(NamedTuple):
    """Blocks of one width, of which the first has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


#: Of Lite0.
_BASE = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


@dataclass(frozen=True, slots=True)
class TrunkShape:
    """Which EfficientNet-Lite: a width and a depth that the stages of Lite0 are multiplied by.

    The stem keeps its width, the first and the last stage their depth.
    """

    name: str
    width: float
    depth: float

    @property
    def stages(self) -> tuple[Stage, ...]:
        inner = range(1, len(_BASE) - 1)
        return tuple(
            stage._replace(
                blocks=math.ceil(self.depth * stage.blocks) if place in inner else stage.blocks,
                channels=_rounded(self.width * stage.channels),
            )
            for place, stage in enumerate(_BASE)
        )

    @property
    def channels(self) -> tuple[int, int, int]:
        """Of the maps at stride 8, 16 and 32."""
        stages = self.stages
        return stages[_SPLIT - 1].channels, stages[_SPLIT + 1].channels, stages[-1].channels

    def places(self) -> Iterator[tuple[str, Stage]]:
        """The name of each block in a :class:`Trunk`, and its stage."""
        for number, stage in enumerate(self.stages):
            part, index = _home(number)
            for position in range(stage.blocks):
                yield f"{part}.{index}.{position}", stage


def _rounded(channels: float) -> int:
    """The nearest multiple, or the next one where that would lose more than a tenth."""
    nearest = max(_MULTIPLE, int(channels + _MULTIPLE / 2) // _MULTIPLE * _MULTIPLE)
    return nearest if nearest >= 0.9 * channels else nearest + _MULTIPLE


LITE0 = TrunkShape("lite0", 1.0, 1.0)
LITE1 = TrunkShape("lite1", 1.0, 1.1)
LITE2 = TrunkShape("lite2", 1.1, 1.2)
SHAPES = {shape.name: shape for shape in (LITE0, LITE1, LITE2)}


class Block(nn.Module):
    """An inverted residual (MBConv): 1×1 expansion, depthwise convolution, 1×1 projection, residual where shapes allow.

    In training, residual blocks are dropped at random (drop path, or stochastic depth; Huang et al., 2016).
    """

    def __init__(self, width: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = width * expansion
        self.expand = nn.Conv2d(width, inner, 1) if expansion > 1 else None
        self.filter = nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner)
        self.project = nn.Conv2d(inner, out, 1)
        self.adds = stride == 1 and width == out
        self.drop_path = 0.0  # the rate, in training

    def forward(self, x: Tensor) -> Tensor:
        inner = x if self.expand is None else relu6(self.expand(x))
        y: Tensor = self.project(relu6(self._depthwise(inner)))
        if not self.adds:
            return y
        return x + (_drop_path(y, self.drop_path) if self.training and self.drop_path else y)

    def _depthwise(self, x: Tensor) -> Tensor:
        """In float32 with a stride and a gradient: in bfloat16 torch takes ten times as long."""
        if self.filter.stride[0] == 1 or not x.requires_grad or not torch.is_autocast_enabled(x.device.type):
            return self.filter(x)  # type: ignore[no-any-return]
        with torch.autocast(x.device.type, enabled=False):
            return self.filter(x.float())  # type: ignore[no-any-return]


def _drop_path(x: Tensor, rate: float) -> Tensor:
    """Zeros for some of the B images, the others scaled up, so that the mean stays."""
    kept = torch.rand(len(x), 1, 1, 1, device=x.device) >= rate
    return x * (kept / (1 - rate)).to(x)


class Trunk(nn.Module):
    """Pixels (B, 3, H, W) in [-1, 1] to maps at stride 8, 16 and 32, with the channels of its shape."""

    def __init__(self, shape: TrunkShape = LITE0) -> None:
        super().__init__()
        self.shape = shape
        self.stem = nn.Conv2d(3, STEM, 3, 2, 1)
        stages, width = [], STEM
        for count, kernel, stride, expansion, out in shape.stages:
            blocks = []
            for position in range(count):
                blocks.append(Block(width, out, kernel, stride if position == 0 else 1, expansion))
                width = out
            stages.append(nn.Sequential(*blocks))
        self.early = nn.Sequential(*stages[:_SPLIT])
        self.middle = nn.Sequential(*stages[_SPLIT : _SPLIT + 2])
        self.late = nn.Sequential(*stages[_SPLIT + 2 :])

    def blocks(self) -> list[Block]:
        """All blocks, in their order."""
        return [block for block in self.modules() if isinstance(block, Block)]

    def set_drop_path(self, rate: float) -> None:
        """Set the rates of drop path, linear in the blocks' places up to ``rate``; only residual blocks use theirs."""
        blocks = self.blocks()
        for place, block in enumerate(blocks, 1):
            block.drop_path = rate * place / len(blocks)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c3 = self.early(relu6(self.stem(half_turn(pixels))))
        c4 = self.middle(c3)
        c5 = self.late(c4)
        return half_turn(c3), half_turn(c4), half_turn(c5)


def half_turn(x: Tensor) -> Tensor:
    return x.flip(2, 3)


def relu6(x: Tensor) -> Tensor:
    return F.relu6(x, inplace=True)  # on a convolution's output, which nobody else needs


def _home(stage: int) -> tuple[str, int]:
    """The part of :class:`Trunk` that a stage is in, and its place there."""
    if stage < _SPLIT:
        return "early", stage
    return ("middle", stage - _SPLIT) if stage < _SPLIT + 2 else ("late", stage - _SPLIT - 2)
