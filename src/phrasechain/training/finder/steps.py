"""What every step of the phrase finder's training sees; it follows from the seed and the step's number alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from torch.utils.data import Dataset

from phrasechain.training.finder.sentences import TaggedSentence, join, vary
from phrasechain.training.finder.variety import unlike_captions

_POOL = 50  # batches whose captions are sorted by length together
_ORDER, _CHANGES = range(2)  # independent streams of random numbers


class FinderBatches(Dataset[list[list[TaggedSentence]]]):
    """The sentences of every step, by its number, out of those of each caption in its ways of writing.

    A share ``unlike`` of the captions is changed to be unlike captions, and a share ``paragraphs`` of the batches has
    its captions joined by fours.
    """

    def __init__(
        self,
        sentences: Sequence[Sequence[TaggedSentence]],
        *,
        batch: int,
        unlike: float = 0.0,
        paragraphs: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.sentences, self.batch, self.unlike, self.paragraphs, self.seed = sentences, batch, unlike, paragraphs, seed
        self.per_epoch = -(-len(sentences) // batch)
        self._order = lru_cache(maxsize=1)(self._of_epoch)

    def __getitem__(self, step: int) -> list[list[TaggedSentence]]:
        """Each in some way of writing; now and then all of them in paragraphs."""
        epoch, place = divmod(step, self.per_epoch)
        rng = np.random.default_rng([self.seed, _CHANGES, step])
        mine = (self.sentences[number] for number in self._order(epoch)[place])
        sentences = [self._vary(ways[int(rng.integers(len(ways)))], rng) for ways in mine]
        if rng.random() < self.paragraphs:
            sentences = [join(sentences[first : first + 4]) for first in range(0, len(sentences), 4)]
        return [sentences]

    def _vary(self, sentence: TaggedSentence, rng: np.random.Generator) -> TaggedSentence:
        is_unlike = rng.random() < self.unlike
        return vary(unlike_captions(sentence, rng) if is_unlike else sentence, rng)

    def _of_epoch(self, epoch: int) -> list[list[int]]:
        """All captions in an order of this epoch's own, those of a batch of like length."""
        rng = np.random.default_rng([self.seed, _ORDER, epoch])
        order, batch = rng.permutation(len(self.sentences)).tolist(), self.batch
        for start in range(0, len(order), _POOL * batch):
            pool = slice(start, start + _POOL * batch)
            order[pool] = sorted(order[pool], key=lambda number: len(self.sentences[number][0].tokens))
        batches = [order[start : start + batch] for start in range(0, len(order), batch)]
        return [batches[place] for place in rng.permutation(len(batches))]
