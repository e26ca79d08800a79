"""log Z and KL(q ‖ p) by the plain recursions: slower, but differentiable to any order."""

from __future__ import annotations

import torch
from torch import Tensor

from phrasechain.chain.recursion import ChainScores, filters
from phrasechain.chain.second_order import pair_filters


def plain_loss(scores: ChainScores, q: Tensor | None) -> Tensor:
    """log Z (B,), or with ``q`` (B, T, K) the divergence KL(q ‖ p)."""
    chain = scores.clean()
    value = (pair_filters if chain.skip_steps() else filters)(chain)[1]
    return value if q is None else value - linear_terms(scores, q)


def linear_terms(scores: ChainScores, q: Tensor) -> Tensor:
    """Σ q ε + Σ q_{t-1} τ q_t + Σ q_{t-2} φ q_t − Σ q log q, (B,): KL(q ‖ p) is log Z minus this."""
    chain, valid = scores.clean(), scores.valid()
    emissions = chain.emissions
    if valid is not None:
        q, emissions = torch.where(valid, q, 0.0), torch.where(valid, emissions, 0.0)
    log_q = torch.where(q > 0, q, 1.0).log()  # the derivative of q log q has no limit at 0: it is taken as 0
    value = (q * (emissions - log_q)).sum((1, 2))
    for distance, links in ((1, chain.steps()), (2, chain.skip_steps())):
        for t, link in enumerate(links, start=distance):
            value = value + ((q[:, t - distance, :, None] * link).sum(1) * q[:, t]).sum(-1)
    return value
