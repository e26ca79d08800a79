"""The edges of chains: an edge is the pair of phrases t-1 and t of a caption or, in a second-order chain, t-2 and t.

All edges of a batch stand one after the other, without the padding of shorter chains.

Axes: B captions, T phrases in a chain, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from phrasechain.model.batch import Batch


@dataclass(frozen=True, slots=True)
class Edges:
    """The phrases of a batch that are ``distance`` apart: neighbours, unless said otherwise."""

    left: Tensor  # (E,) the place of the edge's first phrase among the phrases
    right: Tensor  # (E,) of its second
    caption: Tensor  # (E,)
    step: Tensor  # (E,) of the first phrase
    image: Tensor  # (E,)
    distance: int

    @staticmethod
    def of(batch: Batch, distance: int = 1) -> Edges:
        left = (batch.phrase_step + distance < batch.lengths[batch.phrase_caption]).nonzero()[:, 0]
        caption = batch.phrase_caption[left]
        image = batch.caption_image[caption]
        return Edges(left, left + distance, caption, batch.phrase_step[left], image, distance)

    def to_chains(self, values: Tensor, batch: Batch) -> Tensor:
        """One row per edge, (E, ...), as (B, T - distance, ...) with zeros past each chain's end."""
        chains = values.new_zeros(len(batch.lengths), batch.steps - self.distance, *values.shape[1:])
        return chains.index_put((self.caption, self.step), values)
