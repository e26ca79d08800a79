"""Whether a photo shows what a phrase names: the label ∅, "not here", beside the K regions of the photo.

The emission of ∅ is that of all regions together, less the logit of presence that they speak for:

    ε(∅) = log Σ_k exp ε(k) − m,        so that by itself a phrase has p(∅) = sigmoid(−m),

and how the regions share what is left does not depend on m. m comes from the phrase and from what its best regions say.
Transitions to and from ∅ are three numbers of an edge, from its two phrases and its context; ∅ has no place in the
photo, so geometry says nothing of it, and it has no offsets.

Axes: B captions, T phrases in a chain, P phrases, K regions, E edges, d numbers of a phrase vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from phrasechain.model.batch import Batch
from phrasechain.model.edges import Edges
from phrasechain.model.fused import border
from phrasechain.model.scores import Scores, widen

_LARGEST = 12.0  # of a logit of presence: p(k | present) is a quotient, and must not be 0 / 0
_STATISTICS = 5


class PresenceScores(nn.Module):
    """m = v·s + w·relu(A p + B s + b), with s what the regions say: statistics of their emissions and of their matches.

    A match is one more score of a pair of a phrase and a region, of which only its level counts. s has the mean match
    by the softmax of the emissions, the highest match, the mean match, the largest share of that softmax (in log) and
    its entropy. Emissions are taken as they are: presence has no gradient to how they rank regions.
    """

    def __init__(self, text_dimension: int, hidden: int = 32) -> None:
        super().__init__()
        self.text = nn.Linear(text_dimension, hidden)
        self.regions = nn.Linear(_STATISTICS, hidden, bias=False)
        self.out = nn.Linear(hidden + _STATISTICS, 1)

    def forward(self, phrases: Tensor, emissions: Tensor, matches: Tensor, batch: Batch) -> Tensor:
        """Phrases (P, d), emissions and matches (P, K) give logits (P,)."""
        said = statistics(emissions.detach(), matches, batch.region_mask[batch.phrase_image])  # (P, S)
        hidden = (self.text(phrases) + self.regions(said)).relu()
        logit = widen(self.out(torch.cat([hidden, said.to(hidden)], -1)))[:, 0]
        return _LARGEST * torch.tanh(logit / _LARGEST)


def statistics(emissions: Tensor, matches: Tensor, mask: Tensor) -> Tensor:
    """What regions say of a phrase: emissions, matches and which regions there are, (P, K) each, to (P, 5)."""
    log_p = emissions.masked_fill(~mask, -torch.inf).log_softmax(-1)
    p = log_p.exp()
    count = mask.sum(-1)
    return torch.stack(
        [
            (p * matches).sum(-1),
            matches.masked_fill(~mask, -torch.inf).logsumexp(-1) - count.log(),
            (matches * mask).sum(-1) / count,
            log_p.amax(-1),
            -torch.xlogy(p, p).sum(-1),
        ],
        -1,
    )


class PresenceTransitions(nn.Module):
    """τ(∅→k), τ(k→∅) and τ(∅→∅) of every edge, the same for all regions k: two layers on [p_{t-1} ; p_t ; ctx]."""

    def __init__(self, text_dimension: int, context_dimension: int, hidden: int = 32) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * text_dimension + context_dimension, hidden)
        self.out = nn.Linear(hidden, 3)

    def forward(self, phrases: Tensor, context: Tensor | None, batch: Batch) -> Tensor:
        """Phrases (P, d) and contexts (B, T-1, c) give (B, T-1, 3)."""
        edges = Edges.of(batch)
        text = [phrases[edges.left], phrases[edges.right]]
        text += [] if context is None else [context[edges.caption, edges.step]]
        return edges.to_chains(widen(self.out(self.hidden(torch.cat(text, -1)).relu())), batch)


def with_absent_label(scores: Scores, batch: Batch) -> Scores:
    """The scores over K + 1 labels, ∅ the last: emissions (P, K + 1), transitions (B, T-1, K + 1, K + 1)."""
    assert scores.presence is not None
    mask = batch.region_mask[batch.phrase_image]
    total = scores.emissions.masked_fill(~mask, -torch.inf).logsumexp(-1)
    emissions = torch.cat([scores.emissions, (total - scores.presence)[:, None]], -1)
    if scores.transitions is None or scores.presence_transitions is None:
        return Scores(emissions, None, None)
    B, T = len(batch.lengths), batch.steps
    between = scores.transitions.expand(B, T - 1, -1, -1)
    skips = None if scores.skips is None else pad(scores.skips, (0, 1, 0, 1))  # 0 with ∅
    return Scores(emissions, None, border(between, *scores.presence_transitions.unbind(-1)), skips)


def with_absent_mask(mask: Tensor) -> Tensor:
    """Which labels there are: (B, K) to (B, K + 1), ∅ always."""
    return torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
