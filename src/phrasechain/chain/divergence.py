"""Cross-entropy and KL between two chains over the same labels, exactly, from the moments of the first."""

from __future__ import annotations

from torch import Tensor

from phrasechain.chain.plain_loss import plain_loss
from phrasechain.chain.recursion import ChainScores, CleanScores, smooth
from phrasechain.chain.second_order import expected_score, skip_marginals_of_first_order, smooth_pairs


def moments(chain: CleanScores, with_skips: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """p(y_t), p(y_{t-1}, y_t) and, where wanted, p(y_{t-2}, y_t) (B, T-2, K, K)."""
    if chain.skip_steps():
        return smooth_pairs(chain)
    return *smooth(chain), skip_marginals_of_first_order(chain) if with_skips else None


def cross_entropy(p: ChainScores, other: ChainScores) -> Tensor:
    """−Σ_y p(y) log p'(y) = log Z' − E_p[score'], (B,) in float64."""
    p, other = _double(p), _double(other)
    found = moments(p.clean(), other.skips is not None)
    return plain_loss(other, None) - expected_score(other.clean(), *found)


def divergence(p: ChainScores, other: ChainScores) -> Tensor:
    """KL(p ‖ p') = log Z' − log Z − E_p[score' − score], (B,) in float64: what both have in common costs no digits."""
    p, other = _double(p), _double(other)
    mine, theirs = p.clean(), other.clean()
    found = moments(mine, other.skips is not None)
    skips = theirs.skips if mine.skips is None else -mine.skips if theirs.skips is None else theirs.skips - mine.skips
    change = CleanScores(
        theirs.emissions - mine.emissions, theirs.transitions - mine.transitions, mine.alive, mine.labels, skips
    )
    return plain_loss(other, None) - plain_loss(p, None) - expected_score(change, *found)


def _double(scores: ChainScores) -> ChainScores:
    skips = None if scores.skips is None else scores.skips.double()
    return ChainScores(scores.emissions.double(), scores.transitions.double(), scores.lengths, scores.label_mask, skips)
