"""What every step of a region network's training sees: random views of photos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from phrasechain.core.errors import DataError
from phrasechain.regions.pixels import read_rgb
from phrasechain.training.regions.augment import random_view, render_view, view_targets
from phrasechain.training.regions.model import RegionTargetBatch, stack_targets
from phrasechain.training.regions.vocabulary import RegionTargets, Vocabulary

#: Pixels (B, S, S, 3) uint8, and what is to be learnt from them.
RegionBatchPart = tuple[Tensor, RegionTargetBatch]
_ORDER, _VIEWS = range(2)  # independent streams of random numbers


class RegionBatches(Dataset[list[RegionBatchPart] | DataError]):
    """The batch of every step, by its number; it follows from the seed and that number alone."""

    def __init__(
        self,
        photos: Sequence[Path],
        targets: Sequence[RegionTargets],
        vocabulary: Vocabulary,
        size: int,
        batch: int,
        seed: int,
        partial_weight: float = 1.0,
    ) -> None:
        self.photos, self.targets, self.vocabulary = photos, targets, vocabulary
        self.size, self.batch, self.seed, self.partial_weight = size, batch, seed, partial_weight
        self.per_epoch = max(1, len(photos) // batch)

    def __getitem__(self, step: int) -> list[RegionBatchPart] | DataError:
        epoch, place = divmod(step, self.per_epoch)
        order = np.random.default_rng([self.seed, _ORDER, epoch]).permutation(len(self.photos))
        numbers = order[place * self.batch : (place + 1) * self.batch].tolist()
        rng = np.random.default_rng([self.seed, _VIEWS, step])
        try:
            seen, targets = self._views(numbers, rng)
        except DataError as error:
            return error
        return [(seen, stack_targets(targets, len(self.vocabulary), self.partial_weight))]

    def _views(self, numbers: list[int], rng: np.random.Generator) -> tuple[Tensor, list[RegionTargets]]:
        """Random views of photos: (B, S, S, 3) uint8."""
        views, targets = [], []
        for number in numbers:
            view = random_view(rng)
            views.append(render_view(read_rgb(self.photos[number]), view, self.size))
            targets.append(view_targets(self.targets[number], view, self.vocabulary))
        return torch.from_numpy(np.stack(views)), targets
