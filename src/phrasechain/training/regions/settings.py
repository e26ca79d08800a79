"""What the training of a region network can be told."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

from phrasechain.core.errors import DataError, require_name
from phrasechain.core.settings import Values, setting
from phrasechain.regions.network import RegionNetwork

PRECISIONS = ("float32", "bf16")
_STRIDE = 32  # of the coarsest map


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The shape of a new network."""

    dimension: int = setting(256, "features of a region", 1, 4096)
    size: int = setting(384, "the side that photos are squashed to, a multiple of 32", 64, 2048)
    anchors: int = setting(9, "anchors at each place of the two maps", 1, 64)


@dataclass(frozen=True, slots=True)
class DataSettings:
    """What is learnt from."""

    fit: str = setting("fit", "the split that is learnt from; `train` is `fit` and `dev`")
    rare_word: int = setting(5, "words that occur less often are not learnt", 1)
    limit: int = setting(0, "only the first photos of that split, of `dev` and of `--boxes`; 0: all", 0)
    partial_weight: float = setting(1.0, "weight of a photo of `--boxes`, where that of another is 1", 0, 1)
    unmarked_rivals: bool = setting(
        False, "a phrase of such a photo competes with regions far from all marked boxes, too: what is there is unknown"
    )


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How it is trained."""

    epochs: int = setting(16, "passes over the photos", 1)
    head_epochs: int = setting(
        3,
        "epochs at the beginning in which the trunk keeps its ImageNet weights, or a network to start from all of its "
        "own, while the embeddings of words learn; at least one is left for all layers",
        0,
    )
    batch: int = setting(16, "photos of a step", 1, 1 << 16)
    rate: float = setting(2e-3, "learning rate of the heads, at its peak", 0)
    trunk_rate: float = setting(
        2e-3,
        "of the trunk, as a share of each weight tensor's root mean square: folded ones differ by a factor of fifty",
        0,
    )
    fine_tune: float = setting(
        0.1, "learning rates of a network to start from, as a share of those of a new one; words keep theirs", 0, 1
    )
    weight_decay: float = setting(0.05, "of AdamW", 0)
    clip: float = setting(10.0, "bound of the gradient's 2-norm; 0: none", 0)
    frozen_stages: int = setting(
        3,
        "stages of the trunk that keep their weights, with its first convolution; depthwise convolutions always do",
        0,
    )
    drop_path: float = setting(0.15, "stochastic depth: the rate of the trunk's last block, rising linearly", 0, 0.99)
    precision: str = setting("bf16", "of the matrix products: `bf16`, or `float32`")
    ema: float = setting(0.0, "largest decay of the EMA of the weights, which is then the result; 0: none", 0, 0.999999)
    save_every: int = setting(200, "steps between checkpoints; each epoch ends with one too", 1)
    seed: int = setting(0, "of the weights, the order and the views", 0, (1 << 32) - 1)


@dataclass(frozen=True, slots=True)
class RegionSettings:
    """All that a run depends on, besides the data and the weights that it starts from."""

    network: NetworkSettings = NetworkSettings()
    data: DataSettings = DataSettings()
    train: TrainSettings = TrainSettings()

    #: Keys that came later, and the values that say what was done before.
    ADDED: ClassVar[Values] = {
        "data.fit": "fit",
        "data.partial_weight": 1.0,
        "data.unmarked_rivals": False,
        "train.fine_tune": 1.0,
    }


def check_settings(settings: RegionSettings) -> None:
    if settings.network.size % _STRIDE:
        raise DataError(f"network.size is a multiple of {_STRIDE}, not {settings.network.size}")
    require_name("precision", settings.train.precision, PRECISIONS)


def with_shape_of(settings: RegionSettings, network: RegionNetwork) -> RegionSettings:
    """The settings for a network to start from, which keeps its shape; another one that was asked for is refused."""
    shape = NetworkSettings(network.dimension, network.size, network.sides.shape[1])
    for part in fields(shape):
        own, wanted = getattr(shape, part.name), getattr(settings.network, part.name)
        if wanted not in (part.default, own):
            raise DataError(f"network.{part.name}: the network to start from has {own}, not {wanted}; leave it out")
    return replace(settings, network=shape)
