"""What every text encoder is: captions in, one vector per token out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

Captions = Sequence[Sequence[str]]


class TextEncoder(nn.Module):
    """Turns B captions of tokens into (B, L, D) float32, L the longest caption, zeros past a caption's end.

    An encoder is built from plain values, ``settings``, and a ``state_dict``: both together are all of it.
    """

    dimension: int  # D

    @property
    def settings(self) -> dict[str, Any]:
        """Values for JSON that, given to the class, make an encoder which fits this one's ``state_dict``."""
        raise NotImplementedError

    def forward(self, captions: Captions) -> Tensor:
        raise NotImplementedError


def longest(captions: Captions) -> int:
    """L, the tokens of the longest caption; 0 where there is none."""
    return max(map(len, captions), default=0)
