"""The edges of chains: an edge is the pair of phrases t-1 and t of a caption.

All edges of a batch stand one after the other, without the padding of shorter chains.

Axes: B captions, T phrases in a chain, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from phrasechain.model.batch import Batch


@dataclass(frozen=True, slots=True)
class Edges:
    """The neighbouring phrases of a batch."""

    left: Tensor  # (E,) the place of phrase t-1 among the phrases; phrase t stands behind it
    caption: Tensor  # (E,)
    step: Tensor  # (E,) t-1
    image: Tensor  # (E,)

    @staticmethod
    def of(batch: Batch) -> Edges:
        left = (batch.phrase_step + 1 < batch.lengths[batch.phrase_caption]).nonzero()[:, 0]
        caption = batch.phrase_caption[left]
        return Edges(left, caption, batch.phrase_step[left], batch.caption_image[caption])

    def to_chains(self, values: Tensor, batch: Batch) -> Tensor:
        """One row per edge, (E, ...), as (B, T-1, ...) with zeros past each chain's end."""
        chains = values.new_zeros(len(batch.lengths), batch.steps - 1, *values.shape[1:])
        return chains.index_put((self.caption, self.step), values)
