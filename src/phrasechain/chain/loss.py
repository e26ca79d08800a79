"""The soft-label loss, with all or some steps labelled, and marginals without an autograd graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phrasechain.chain import operators
from phrasechain.chain.autograd import loss
from phrasechain.chain.plain_loss import linear_terms
from phrasechain.chain.recursion import ChainScores, contract
from phrasechain.chain.tracing import is_eager, is_transformed


def soft_label_loss(scores: ChainScores, q: Tensor) -> Tensor:
    """KL(q ‖ p), (B,), with a gradient for q as well where one may be asked for."""
    if is_transformed() or (torch.is_grad_enabled() and q.requires_grad):
        return loss(scores, None) - linear_terms(scores, q)
    return loss(scores, q)


def labelled_loss(scores: ChainScores, q: Tensor, labelled: Tensor) -> Tensor:
    """KL(q_S ‖ p_S) over the labelled steps S, (B,); 0 where there are none.

    p_S is the marginal over S, itself a chain: the other steps are summed out.
    """
    chain, positions = contract(scores.clean().double(), labelled)  # in float64: sums of scores become scores; (B, S)
    alive = scores.alive()
    labelled = labelled if alive is None else labelled & alive
    target = q.double().gather(1, positions[:, :, None].expand(-1, -1, q.shape[2]))  # (B, S, K)
    target = torch.where(labelled.gather(1, positions)[:, :, None], target, 0.0)  # q elsewhere may be NaN
    return torch.where(labelled.any(1), soft_label_loss(chain, target), 0.0).to(q.dtype)


def marginals(scores: ChainScores, links: bool) -> tuple[Tensor, Tensor, Tensor]:
    """p(y_t) (B, T, K) and, where ``links``, p(y_{t-1}, y_t) and with skips p(y_{t-2}, y_t).

    The derivatives of log Z, without an autograd graph: in the shapes of the scores, summed where these broadcast.
    """
    tensors = scores.emissions, scores.transitions, scores.lengths, scores.label_mask, None, scores.skips
    eager = is_eager(scores.emissions)
    forward: Any = operators.eager_forward if eager else operators.forward_op
    backward: Any = operators.eager_backward if eager else operators.backward_op
    value, *saved = forward(*tensors, operators.uses_kernel(scores.emissions))
    found: tuple[Tensor, Tensor, Tensor] = backward(torch.ones_like(value), *tensors, *saved, links)
    return found
