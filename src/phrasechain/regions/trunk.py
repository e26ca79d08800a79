"""EfficientNet-Lite0 (Tan & Le, 2019, in its variant without squeeze-and-excitation), batch norms folded away.

Every convolution carries the bias that its batch norm left, so training and inference run the same few operators.

With stride 2 the published network pads right and below, torch left and above. So kernels are stored turned by 180°,
and the photo passes upside down: the same result, for free.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: (blocks, kernel, stride, expansion, channels) of each stage.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM = 32
#: The channels of the maps that the trunk gives, at stride 8, 16 and 32.
CHANNELS = (40, 112, 320)
_SPLIT = 3  # stages before the map at stride 8 is complete
_EPSILON = 1e-3  # of the batch norms in the published weights


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
    """Pixels (B, 3, H, W) in [-1, 1] to maps at stride 8, 16 and 32, with the channels of ``CHANNELS``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, STEM, 3, 2, 1)
        stages, width = [], STEM
        for count, kernel, stride, expansion, out in STAGES:
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


def fold(weights: Mapping[str, Tensor], conv: str, norm: str) -> dict[str, Tensor]:
    """Fold a batch norm into the convolution before it: the weight and bias of both."""
    scale = weights[norm + ".weight"] / (weights[norm + ".running_var"] + _EPSILON).sqrt()
    return {
        "weight": weights[conv + ".weight"] * scale[:, None, None, None],
        "bias": weights[norm + ".bias"] - weights[norm + ".running_mean"] * scale,
    }


def fold_published(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The published ImageNet weights as a state of :class:`Trunk`: without batch norms, turned by half a turn."""
    parts = {"stem": fold(weights, "_conv_stem", "_bn0")}
    number = 0
    for stage, (count, _, _, expansion, _) in enumerate(STAGES):
        part, index = _home(stage)
        for position in range(count):
            ours, theirs = f"{part}.{index}.{position}", f"_blocks.{number}"
            if expansion > 1:
                parts[f"{ours}.expand"] = fold(weights, f"{theirs}._expand_conv", f"{theirs}._bn0")
            parts[f"{ours}.filter"] = fold(weights, f"{theirs}._depthwise_conv", f"{theirs}._bn1")
            parts[f"{ours}.project"] = fold(weights, f"{theirs}._project_conv", f"{theirs}._bn2")
            number += 1
    state = {f"{part}.{name}": tensor for part, pair in parts.items() for name, tensor in pair.items()}
    return {name: half_turn(tensor) if tensor.dim() == 4 else tensor for name, tensor in state.items()}


def _home(stage: int) -> tuple[str, int]:
    """The part of :class:`Trunk` that a stage is in, and its place there."""
    if stage < _SPLIT:
        return "early", stage
    return ("middle", stage - _SPLIT) if stage < _SPLIT + 2 else ("late", stage - _SPLIT - 2)
