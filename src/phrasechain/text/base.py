"""The interface of text encoders: captions in, one vector per token out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

Captions = Sequence[Sequence[str]]


class TextEncoder(nn.Module):
    """From B captions of tokens to (B, L, D) float32, L the longest caption, zeros past a caption's end.

    ``settings`` and the ``state_dict`` together define an encoder. A ``stateful`` one starts a row of a batch from what
    the same row of the batch before left, until it is ``reset``.
    """

    dimension: int  # D
    stateful: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The constructor's arguments, as values for JSON."""
        raise NotImplementedError

    def forward(self, captions: Captions) -> Tensor:
        raise NotImplementedError

    def reset(self) -> None:
        """Clear the state that earlier batches left."""


def longest(captions: Captions) -> int:
    """L, the tokens of the longest caption; 0 without captions."""
    return max(map(len, captions), default=0)
