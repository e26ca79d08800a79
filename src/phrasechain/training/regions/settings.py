"""How a region network is trained: the numbers of a run, from ImageNet weights or going on from a network."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from phrasechain.core.errors import DataError, unknown_name

PRECISIONS = ("float32", "bf16")
_WARM_UP, _LAST_RATE = 0.05, 0.01
_STRIDE = 32  # of the coarsest map
_SHAPE = ("dimension", "size", "anchors")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that a run depends on, besides the data and the weights that it starts from."""

    dimension: int = 256
    size: int = 384
    anchors: int = 9  # for each of the two maps
    head_epochs: int = 3  # in which the trunk keeps its weights
    epochs: int = 16  # in all
    batch: int = 16
    rate: float = 2e-3
    trunk_rate: float = 2e-3  # as a share of each weight tensor's size: folded ones differ by a factor of fifty
    weight_decay: float = 0.05
    frozen_stages: int = 3  # of the trunk, with its first convolution; filters of single channels never learn
    rare_word: int = 5  # words that occur less often are not taught
    left_out: float = 0.15  # how often the trunk's blocks are left out while it learns, rising towards this at its end
    precision: str = "bf16"  # of the network's matrix products while it learns, or float32
    last_rate: float = 0.01  # as a share of the highest; 1 for a rate that stays
    word_epochs: int = 0  # in which the words learn alone, of a network that knows much already
    word_rate: float = 1e-2  # in these
    deeper: int = 0  # proposals, further down the list than the best, that the region head learns to judge too
    average: float = 0.0  # how much of the averaged weights a step keeps, 0 for the last weights instead
    seed: int = 0
    checkpoint_steps: int = 200


#: How a network that has learnt goes on: at a rate that stays, towards the average of what it comes by.
GOING_ON = Recipe(
    head_epochs=0, epochs=9, rate=5e-4, trunk_rate=5e-4, last_rate=1.0, word_epochs=1, deeper=48, average=0.9995
)


def make_recipe(start: Path, epochs: int | None = None, **settings: Any) -> Recipe:
    """The recipe for what a run starts from, with settings that differ from it; ``None`` stands for one that does not.

    Of few epochs at least one is left for the whole network. A network to go on from keeps its own shape.
    """
    goes_on = is_region_network(start)
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given:
        if goes_on and name in _SHAPE:
            raise DataError(f"--{name}: a network to go on from keeps its own; leave it out")
    recipe = replace(GOING_ON if goes_on else Recipe(), **given)
    if epochs is None:
        return recipe
    words = min(recipe.word_epochs, epochs - 1)
    return replace(recipe, epochs=epochs, word_epochs=words, head_epochs=min(recipe.head_epochs, epochs - 1 - words))


def is_region_network(start: Path) -> bool:
    """Whether a file to start from holds a region network rather than ImageNet weights."""
    return start.suffix.lower() == ".safetensors"


def check_recipe(recipe: Recipe) -> None:
    if recipe.size % _STRIDE:
        raise DataError(f"the size must be a multiple of {_STRIDE}, not {recipe.size}")
    if not 0 <= recipe.left_out < 1:
        raise DataError(f"blocks are left out at a rate from 0 to below 1, not {recipe.left_out}")
    if recipe.precision not in PRECISIONS:
        raise DataError(unknown_name("precision", recipe.precision, PRECISIONS))
    for epochs, who in zip(learning_starts(recipe), ("words", "heads"), strict=True):
        if not 0 <= epochs < recipe.epochs:
            raise DataError(f"of {recipe.epochs} epochs, {epochs} cannot be for the {who} alone")


def learning_starts(recipe: Recipe) -> tuple[int, int]:
    """The epochs after which the heads, and the trunk, begin to learn."""
    return recipe.word_epochs, recipe.word_epochs + recipe.head_epochs


def rate_at(done: float, last: float = _LAST_RATE) -> float:
    """The learning rate as a share of its peak: none before the start, up in a straight line, down along a cosine."""
    if done < 0:
        return 0.0
    if done < _WARM_UP:
        return max(done, 1e-3) / _WARM_UP
    rest = (done - _WARM_UP) / (1 - _WARM_UP)
    return last + (1 - last) * (1 + math.cos(math.pi * min(rest, 1.0))) / 2


def in_precision(name: str) -> torch.autocast:
    """Matrix products in bfloat16, if ``name`` is bf16; they take half of the time where a processor knows it."""
    return torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16")
