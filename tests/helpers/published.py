"""Random weights under the names of a published EfficientNet-Lite, and the published network computed from weights."""

import torch
from torch import Tensor
from torch.nn import functional as F

EPSILON = 1e-3
#: (in, out, kernel, stride, expansion) of the sixteen blocks, written out.
BLOCKS = [
    (32, 16, 3, 1, 1),
    (16, 24, 3, 2, 6),
    (24, 24, 3, 1, 6),
    (24, 40, 5, 2, 6),
    (40, 40, 5, 1, 6),
    (40, 80, 3, 2, 6),
    (80, 80, 3, 1, 6),
    (80, 80, 3, 1, 6),
    (80, 112, 5, 1, 6),
    (112, 112, 5, 1, 6),
    (112, 112, 5, 1, 6),
    (112, 192, 5, 2, 6),
    (192, 192, 5, 1, 6),
    (192, 192, 5, 1, 6),
    (192, 192, 5, 1, 6),
    (192, 320, 3, 1, 6),
]
#: The same of the other two, read from the published weights: twenty-one blocks each.
BLOCKS_OF = {
    "lite0": BLOCKS,
    "lite1": [
        (32, 16, 3, 1, 1),
        (16, 24, 3, 2, 6),
        *[(24, 24, 3, 1, 6)] * 2,
        (24, 40, 5, 2, 6),
        *[(40, 40, 5, 1, 6)] * 2,
        (40, 80, 3, 2, 6),
        *[(80, 80, 3, 1, 6)] * 3,
        (80, 112, 5, 1, 6),
        *[(112, 112, 5, 1, 6)] * 3,
        (112, 192, 5, 2, 6),
        *[(192, 192, 5, 1, 6)] * 4,
        (192, 320, 3, 1, 6),
    ],
    "lite2": [
        (32, 16, 3, 1, 1),
        (16, 24, 3, 2, 6),
        *[(24, 24, 3, 1, 6)] * 2,
        (24, 48, 5, 2, 6),
        *[(48, 48, 5, 1, 6)] * 2,
        (48, 88, 3, 2, 6),
        *[(88, 88, 3, 1, 6)] * 3,
        (88, 120, 5, 1, 6),
        *[(120, 120, 5, 1, 6)] * 3,
        (120, 208, 5, 2, 6),
        *[(208, 208, 5, 1, 6)] * 4,
        (208, 352, 3, 1, 6),
    ],
}
#: The blocks after which the maps at stride 8, 16 and 32 are complete.
LAST = {"lite0": (4, 10, 15), "lite1": (6, 14, 20), "lite2": (6, 14, 20)}


def random_weights(seed: int = 0, name: str = "lite0") -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}

    def layer(conv: str, norm: str, out: int, width: int, kernel: int) -> None:
        scale = (2 / (width * kernel**2)) ** 0.5
        weights[f"{conv}.weight"] = torch.randn(out, width, kernel, kernel, generator=generator) * scale
        weights[f"{norm}.weight"] = 0.5 + torch.rand(out, generator=generator)
        weights[f"{norm}.bias"] = torch.randn(out, generator=generator) * 0.1
        weights[f"{norm}.running_mean"] = torch.randn(out, generator=generator) * 0.1
        weights[f"{norm}.running_var"] = 0.5 + torch.rand(out, generator=generator)

    layer("_conv_stem", "_bn0", 32, 3, 3)
    for number, (width, out, kernel, _, expansion) in enumerate(BLOCKS_OF[name]):
        block, inner = f"_blocks.{number}", width * expansion
        if expansion > 1:
            layer(f"{block}._expand_conv", f"{block}._bn0", inner, width, 1)
        layer(f"{block}._depthwise_conv", f"{block}._bn1", inner, 1, kernel)
        layer(f"{block}._project_conv", f"{block}._bn2", out, inner, 1)
    layer("_conv_head", "_bn1", 1280, BLOCKS_OF[name][-1][1], 1)
    return weights


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """TensorFlow's padding "SAME": as many zeros as ceil(size / stride) outputs need, the odd one at the end."""
    pads = []
    for size in (x.shape[3], x.shape[2]):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads)


def run_published(weights: dict[str, Tensor], pixels: Tensor, name: str = "lite0") -> list[Tensor]:
    """The output of each block, with batch norms as they were trained."""

    def layer(x: Tensor, conv: str, norm: str, stride: int = 1, groups: int = 1) -> Tensor:
        weight = weights[f"{conv}.weight"]
        x = F.conv2d(pad_same(x, weight.shape[-1], stride), weight, stride=stride, groups=groups)
        moments = weights[f"{norm}.running_mean"], weights[f"{norm}.running_var"]
        return F.batch_norm(x, *moments, weights[f"{norm}.weight"], weights[f"{norm}.bias"], eps=EPSILON)

    x = F.relu6(layer(pixels, "_conv_stem", "_bn0", stride=2))
    outputs = []
    for number, (width, out, _, stride, expansion) in enumerate(BLOCKS_OF[name]):
        block, inner = f"_blocks.{number}", width * expansion
        y = F.relu6(layer(x, f"{block}._expand_conv", f"{block}._bn0")) if expansion > 1 else x
        y = F.relu6(layer(y, f"{block}._depthwise_conv", f"{block}._bn1", stride, inner))
        y = layer(y, f"{block}._project_conv", f"{block}._bn2")
        x = x + y if stride == 1 and width == out else y
        outputs.append(x)
    return outputs


def run_folded(weights: dict[str, Tensor], pixels: Tensor) -> list[Tensor]:
    """The output of each block of a detector's trunk, whose batch norms were folded when it was written."""

    def layer(x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
        weight, bias = weights[f"{name}.weight"].float(), weights[f"{name}.bias"].float()
        return F.conv2d(pad_same(x, weight.shape[-1], stride), weight, bias, stride, groups=groups)

    x = F.relu6(layer(pixels, "stem", stride=2))
    outputs = []
    for number, (width, out, _, stride, expansion) in enumerate(BLOCKS):
        block = f"blocks.{number}"
        y = F.relu6(layer(x, f"{block}.expand")) if expansion > 1 else x
        y = F.relu6(layer(y, f"{block}.depthwise", stride, width * expansion))
        y = layer(y, f"{block}.project")
        x = x + y if stride == 1 and width == out else y
        outputs.append(x)
    return outputs
