"""ChainTagger: learned transitions, start and end scores over ChainCRF, for sequence tagging with a fixed label set."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from phrasechain.chain import checks
from phrasechain.chain.crf import ChainCRF

#: Score of a forbidden transition: finite, and far below any real one.
FORBIDDEN = -1e4


class ChainTagger(nn.Module):
    """Learned (K, K) transitions, start and end scores; calling it with emissions gives a :class:`ChainCRF`.

    Args:
        num_labels: K.
        forbid: pairs (i, j) of labels that may not follow each other; their score is held at ``FORBIDDEN`` (-1e4, a
            finite floor: −inf is refused everywhere).
        forbid_start, forbid_end: labels that may not begin or end a sequence.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> tagger = ChainTagger(3, forbid=[(0, 2)])  # O, B, I: no I right after O
        >>> crf = tagger(torch.randn(2, 5, 3), lengths=torch.tensor([5, 3]))
        >>> loss = crf.nll(torch.tensor([[1, 2, 0, 0, 1], [0, 1, 2, 0, 0]])).mean()
        >>> labels, score = crf.viterbi()
        >>> labels.shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        num_labels: int,
        forbid: Iterable[tuple[int, int]] = (),
        forbid_start: Iterable[int] = (),
        forbid_end: Iterable[int] = (),
    ) -> None:
        super().__init__()
        if not isinstance(num_labels, int) or num_labels < 1:
            checks.refuse("num_labels", "an integer of at least 1", num_labels)
        self.transitions = nn.Parameter(torch.empty(num_labels, num_labels).uniform_(-0.1, 0.1))
        self.start = nn.Parameter(torch.empty(num_labels).uniform_(-0.1, 0.1))
        self.end = nn.Parameter(torch.empty(num_labels).uniform_(-0.1, 0.1))
        K = num_labels
        self.register_buffer("allowed", _without("forbid", torch.ones(K, K, dtype=torch.bool), forbid))
        self.register_buffer("allowed_start", _without("forbid_start", torch.ones(K, dtype=torch.bool), forbid_start))
        self.register_buffer("allowed_end", _without("forbid_end", torch.ones(K, dtype=torch.bool), forbid_end))

    allowed: Tensor
    allowed_start: Tensor
    allowed_end: Tensor

    def forward(
        self,
        emissions: Tensor,
        lengths: Tensor | None = None,
        mask: Tensor | None = None,
        validate: bool = True,
    ) -> ChainCRF:
        """The chain of emissions (B, T, K); sequences end by ``lengths`` (B,) or by a ``mask`` (B, T) without holes."""
        checks.emissions_shape(emissions)
        _, T, K = emissions.shape
        if len(self.start) != K:
            checks.refuse("emissions", f"K = {len(self.start)} labels", f"shape {tuple(emissions.shape)}")
        if mask is not None:
            if lengths is not None:
                checks.refuse("mask", "either lengths or mask", "both")
            lengths = _mask_to_lengths(mask, emissions, validate)
        elif lengths is not None:
            checks.lengths_shape(lengths, emissions)
        transitions = torch.where(self.allowed, self.transitions, FORBIDDEN)
        start = torch.where(self.allowed_start, self.start, FORBIDDEN)
        end = torch.where(self.allowed_end, self.end, FORBIDDEN)
        steps = torch.arange(T, device=emissions.device)
        last = steps == T - 1 if lengths is None else steps == lengths[:, None] - 1  # (T,) or (B, T)
        scores = emissions + (steps == 0)[:, None] * start + last[..., None] * end  # (B, T, K)
        return ChainCRF(scores, transitions, lengths, validate=validate)


def _mask_to_lengths(mask: Tensor, emissions: Tensor, validate: bool) -> Tensor:
    """The lengths (B,) of a mask (B, T); one with holes or with an empty row is refused."""
    checks.mask("mask", mask, tuple(emissions.shape[:2]), emissions)
    lengths = mask.sum(1)
    if validate and not torch.compiler.is_compiling():
        steps = torch.arange(mask.shape[1], device=mask.device)
        holes = (mask != (steps < lengths[:, None])).any(1)
        if bool(holes.any()):
            row = int(holes.nonzero()[0])
            expected = "True up to the end of each sequence and False after it"
            hint = "drop the steps before calling, or leave them in and exclude them from the loss: kl(q, labelled=…)"
            checks.refuse("mask", f"{expected} ({hint})", f"a hole in row {row}")
        if bool((lengths == 0).any()):
            checks.refuse("mask", "at least one step per sequence", f"none in row {int(lengths.argmin())}")
    return lengths


def _without(argument: str, allowed: Tensor, forbidden: Iterable[Any]) -> Tensor:
    labels, pairs = range(len(allowed)), allowed.dim() == 2
    for entry in forbidden:
        try:
            index = tuple(operator.index(label) for label in (entry if pairs else (entry,)))
        except TypeError:
            index = ()
        if len(index) != allowed.dim() or not all(label in labels for label in index):
            checks.refuse(argument, f"{'pairs of ' if pairs else ''}labels from 0 to {labels[-1]}", entry)
        allowed[index] = False
    return allowed
