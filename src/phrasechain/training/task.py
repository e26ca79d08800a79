"""What the training loop is given: a task, and a plan of how to train it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from phrasechain.core.errors import DataError

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Weights with a learning rate of their own, a function of the step."""

    weights: Sequence[nn.Parameter]
    rate: Callable[[int], float]
    start: int = 0  # the step from which they learn; before it they get no gradient


@dataclass(frozen=True, slots=True)
class Plan:
    """How a task is trained. Steps are those of all processes together."""

    steps: int
    evaluate_every: int = 1000
    save_every: int = 1000
    seed: int = 0
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    clip: float = 0.0  # 0: no clipping
    clip_by: str = "norm"
    ema: Callable[[int], float] | None = None  # decay of the weights' moving average after so many steps
    patience: int = 0  # early stopping: evaluations without a new best before it stops; 0: none
    workers: int = 0  # processes that prepare batches


class Task(Generic[Part]):
    """What is trained. Each process takes its share of a step in parts, one after the other, perhaps none."""

    model: nn.Module
    batches: Dataset[Sequence[Part] | DataError]  # this process's parts, by the number of the step
    losses: ClassVar[tuple[str, ...]]  # the names of what ``loss`` returns
    counted: ClassVar[tuple[str, ...]] = ()  # the names of what ``counts`` returns
    scores: ClassVar[Mapping[str, float]]  # what the curves show of ``evaluate``, and the factors to percent
    best_by: str = ""  # the score that chooses the best checkpoint; without one it is the last

    def groups(self) -> list[ParameterGroup]:
        """All weights that are trained."""
        raise NotImplementedError

    def counts(self, parts: Sequence[Part]) -> Tensor:
        """What sums of losses are divided by: (C,), added up over processes."""
        return torch.zeros(len(self.counted))

    def loss(self, part: Part, counts: Tensor) -> Tensor:
        """A part's share of the step's losses (F,), sums divided by the step's ``counts``; the first is minimised."""
        raise NotImplementedError

    def check(self, parts: Sequence[Part]) -> None:
        """Raise a DataError if the inputs are to blame for a loss that is not finite."""

    def evaluate(self, is_last: bool) -> dict[str, float]:
        """Scores of the model, which has its EMA weights, in all processes."""
        raise NotImplementedError

    def reset(self) -> None:
        """Drop what the model carries from batch to batch: no checkpoint keeps it."""

    def files(self, step: int, score: float | None) -> dict[str, bytes]:
        """What a checkpoint holds besides the state of the training, by name."""
        return {}

    def finish(self, folder: Path) -> None:
        """Write the result of a finished run."""


def one_cycle(done: float, warm_up: float, last: float = 0.0) -> float:
    """The learning rate as a share of its peak: linear warm-up, then down along a cosine to ``last``.

    >>> [round(one_cycle(done, warm_up=0.1), 2) for done in (0.05, 0.1, 0.55, 1.0)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if done < warm_up:
        return done / warm_up
    falling = (done - warm_up) / (1 - warm_up) if warm_up < 1 else 0.0
    return last + (1 - last) * (1 + math.cos(math.pi * falling)) / 2


def two_steps(done: float, warm_up: float) -> float:
    """DDPN's: a tenth after 40 % of the steps, a hundredth after 80 %.

    >>> [two_steps(done, 0.0) for done in (0.39, 0.41, 0.81)]
    [1.0, 0.1, 0.01]
    """
    return 1.0 if done < 0.4 else 0.1 if done < 0.8 else 0.01


def gradual(done: float, warm_up: float) -> float:
    """BAN's, in thirteenths of the steps for its epochs: ×0.5, 1, 1.5 and 2, then a quarter from 10 and again from 12.

    >>> [gradual(epoch / 13 + 0.01, 0.0) for epoch in (0, 1, 2, 3, 9, 10, 12)]
    [0.5, 1.0, 1.5, 2.0, 2.0, 0.5, 0.125]
    """
    epoch = int(13 * done)
    return min(0.5 * (epoch + 1), 2.0) * 0.25 ** ((epoch >= 10) + (epoch >= 12))


def ema_decay(limit: float) -> Callable[[int], float] | None:
    """The decay after so many steps, which rises to ``limit``: at first the average follows closely. 0: no average."""
    return (lambda step: min(limit, (1 + step) / (10 + step))) if limit else None
