"""Published weights as those of our trunk: ImageNet's with their batch norms folded, and a detector's."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from phrasechain.regions.trunk import LITE0, SHAPES, TrunkShape, half_turn

_EPSILON = 1e-3  # of the batch norms in the published weights
_GREY, _SCALE = 127.0, 128.0  # the detector's input is (x - 127) / 128
_OUR_GREY = _OUR_SCALE = 127.5  # and ours x / 127.5 - 1


def fold(weights: Mapping[str, Tensor], conv: str, norm: str) -> dict[str, Tensor]:
    """Fold a batch norm into the convolution before it: the weight and bias of both."""
    scale = weights[norm + ".weight"] / (weights[norm + ".running_var"] + _EPSILON).sqrt()
    return {
        "weight": weights[conv + ".weight"] * scale[:, None, None, None],
        "bias": weights[norm + ".bias"] - weights[norm + ".running_mean"] * scale,
    }


def fold_published(weights: Mapping[str, Tensor], shape: TrunkShape = LITE0) -> dict[str, Tensor]:
    """The published ImageNet weights as a state of the trunk: without batch norms, turned by half a turn."""
    parts = {"stem": fold(weights, "_conv_stem", "_bn0")}
    for number, (ours, stage) in enumerate(shape.places()):
        theirs = f"_blocks.{number}"
        if stage.expansion > 1:
            parts[f"{ours}.expand"] = fold(weights, f"{theirs}._expand_conv", f"{theirs}._bn0")
        parts[f"{ours}.filter"] = fold(weights, f"{theirs}._depthwise_conv", f"{theirs}._bn1")
        parts[f"{ours}.project"] = fold(weights, f"{theirs}._project_conv", f"{theirs}._bn2")
    return _turned(parts)


def published_shape(weights: Mapping[str, Tensor]) -> TrunkShape | None:
    """The shape that published weights have, by the number of their blocks and the width of their last map."""
    blocks = sum(name.endswith("._project_conv.weight") for name in weights)
    head = weights.get("_conv_head.weight")
    for shape in SHAPES.values():
        if blocks == len(list(shape.places())) and head is not None and head.shape[1:2] == shape.channels[-1:]:
            return shape
    return None


def convert_detector(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The Lite0 of a detector, whose batch norms are folded already, as a state of the trunk.

    The stem is scaled and shifted to our input. Zeros around the photo are a grey of 127 there and of 127.5 here, so
    maps differ a little at the border.
    """

    def pair(name: str) -> dict[str, Tensor]:
        return {each: weights[f"{name}.{each}"].float() for each in ("weight", "bias")}

    stem = pair("stem")
    shift = stem["weight"].sum((1, 2, 3)) * ((_OUR_GREY - _GREY) / _SCALE)
    parts = {"stem": {"weight": stem["weight"] * (_OUR_SCALE / _SCALE), "bias": stem["bias"] + shift}}
    for number, (ours, stage) in enumerate(LITE0.places()):
        theirs = f"blocks.{number}"
        if stage.expansion > 1:
            parts[f"{ours}.expand"] = pair(f"{theirs}.expand")
        parts[f"{ours}.filter"] = pair(f"{theirs}.depthwise")
        parts[f"{ours}.project"] = pair(f"{theirs}.project")
    return _turned(parts)


def _turned(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Convolutions by their names in the trunk, with the kernels turned by half a turn."""
    return {
        f"{part}.{name}": half_turn(tensor) if tensor.dim() == 4 else tensor
        for part, pair in parts.items()
        for name, tensor in pair.items()
    }
