"""What every step of training sees: it follows from the seed and the step's number alone, for any number of processes.

A group is what always stays together: an image with all its captions, whose regions are then scored once, or a single
caption. A step takes ``batch`` groups; each process gets every n-th of them, perhaps none, never one twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from phrasechain.core.errors import DataError
from phrasechain.core.schema import Phrase
from phrasechain.data.regimes import chain_phrases, has_target
from phrasechain.model.batch import Batch, Group, Item, RegionSource, collate_annotated
from phrasechain.model.targets import Targets, make_targets
from phrasechain.training.grounder.absent import AbsentPhrases

BatchPart = tuple[Batch, Targets]
_ORDER, _THINNING, _DRAWS, _ABSENT = range(4)  # streams of random numbers that have nothing to do with each other


class Steps:
    """The groups of every step. With ``by="draw"`` images are drawn with replacement, with one random caption each."""

    def __init__(self, groups: Sequence[Group], *, by: str, batch: int, window: int = 1, seed: int = 0) -> None:
        self.groups, self.by, self.batch, self.window, self.seed = groups, by, batch, window, seed
        seen = sum(map(len, groups)) if by == "draw" else len(groups)
        self.per_epoch = -(-seen // batch)
        self._sizes = np.array([_size(group) for group in groups])
        self._shuffled: tuple[int, list[NDArray[np.int64]]] = (-1, [])

    def __getitem__(self, step: int) -> list[Group]:
        if self.by == "draw":
            return self._drawn(step)
        epoch, place = divmod(step, self.per_epoch)
        if self._shuffled[0] != epoch:
            self._shuffled = epoch, self._epoch(epoch)
        return [self.groups[number] for number in self._shuffled[1][place]]

    def _epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of a pass: groups in random order, sorted by size within each window, batches shuffled again.

        Batches of one size waste little on padding, and a window is small enough that batches stay random.
        """
        rng = np.random.default_rng([self.seed, _ORDER, epoch])
        order = rng.permutation(len(self.groups))
        if self.window == 1:
            return _cut(order, self.batch)
        windows = _cut(order, self.batch * self.window)
        order = np.concatenate([window[np.argsort(self._sizes[window], kind="stable")] for window in windows])
        batches = _cut(order, self.batch)
        return [batches[place] for place in rng.permutation(len(batches))]

    def _drawn(self, step: int) -> list[Group]:
        rng = np.random.default_rng([self.seed, _DRAWS, step])
        groups = [self.groups[number] for number in rng.integers(len(self.groups), size=self.batch)]
        return [(group[rng.integers(len(group))],) for group in groups]


class ProcessBatches(Dataset[list[BatchPart] | DataError]):
    """This process's part of every step; an error is handed over, to be raised without traces.

    ``unboxed`` is the share of visual phrases without a box that stay in their chain, at random: 0 is the regime
    ``gold``, 1 is ``all``, and between them a model learns both. ``absent`` mixes in phrases that photos do not show.
    With ``read_all`` a text encoder also reads the captions without a phrase, each in a row of its own; a part with no
    other is left out.
    """

    def __init__(
        self,
        steps: Steps,
        regions: RegionSource,
        *,
        unboxed: float = 0.0,
        absent: AbsentPhrases | None = None,
        read_all: bool = False,
        index: int = 0,
        count: int = 1,
        parts: int = 1,
        targets: Callable[[Batch, Sequence[Phrase]], Targets] = make_targets,
    ) -> None:
        self.steps, self.regions, self.unboxed = steps, regions, unboxed
        self.absent, self.read_all = absent, read_all
        self.index, self.count, self.parts, self.targets = index, count, parts, targets

    def __getitem__(self, step: int) -> list[BatchPart] | DataError:
        try:
            return [self._part(items) for items in self.items(step) if not self.read_all or _has_phrases(items)]
        except DataError as error:
            return error

    def _part(self, items: list[Item]) -> BatchPart:
        batch, phrases = collate_annotated(items, self.regions, "all", self.read_all)
        return batch, self.targets(batch, phrases)

    def items(self, step: int) -> Iterator[list[Item]]:
        """The captions of this process, in the parts that it takes them in; parts that would be empty are left out."""
        mine = list(enumerate(self.steps[step]))[self.index :: self.count]
        for number in range(self.parts):
            if part := [item for place, group in mine[number :: self.parts] for item in self._mix(group, step, place)]:
                yield part

    def _mix(self, group: Group, step: int, place: int) -> Iterator[Item]:
        items = self._thin(group, step, place)
        if self.absent is None:
            return items
        return self.absent.mixed(list(items), np.random.default_rng([self.steps.seed, _ABSENT, step, place]))

    def _thin(self, group: Group, step: int, place: int) -> Iterator[Item]:
        rng = np.random.default_rng([self.steps.seed, _THINNING, step, place])
        for example, caption in group:
            kept = [phrase for phrase in caption.phrases if has_target(phrase) or rng.random() < self.unboxed]
            yield example, replace(caption, phrases=tuple(kept))


def _has_phrases(items: Sequence[Item]) -> bool:
    return any(chain_phrases(caption, "all") for _, caption in items)


def _size(group: Group) -> int:
    """What a group costs: the phrases of its longest chain above all, then the words of its longest caption."""
    chain = max(sum(map(has_target, caption.phrases)) for _, caption in group)
    return chain * 1000 + max(len(caption.tokens) for _, caption in group)


def _cut(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [order[start : start + size] for start in range(0, len(order), size)]
