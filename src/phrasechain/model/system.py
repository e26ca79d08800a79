"""What training, evaluation and the grounder ask of a model: the chain's, or one of the compared systems'."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from phrasechain.model.batch import Batch
from phrasechain.model.decode import Decoded, decode
from phrasechain.model.scores import Scores
from phrasechain.text.base import TextEncoder


class HasEncoder(Protocol):
    """The part of a model that reads captions."""

    encoder: TextEncoder


class GroundingSystem(nn.Module):
    """A batch in, scores of its phrases and regions out, and boxes from those."""

    text: HasEncoder

    def forward(self, batch: Batch) -> Scores:
        raise NotImplementedError

    def decode(self, scores: Scores, batch: Batch, method: str = "viterbi") -> Decoded:
        """Ground every phrase, see :func:`phrasechain.model.decode.decode`."""
        return decode(scores, batch, method)
