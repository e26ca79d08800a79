"""The loss of a second-order chain and its gradient by the compiled kernel: float32 on a CPU, one call for a batch.

The same two doors as :mod:`phrasechain.chain.second_order_scaled`, which serves where scores spread too far.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phrasechain.chain import kernel
from phrasechain.chain.memory import empty_in_large_pages
from phrasechain.chain.recursion import ChainScores
from phrasechain.chain.second_order_scaled import (
    Saved,
    careful_gradient,
    careful_loss,
    clean_target,
    find_shifts,
    taken_out,
)
from phrasechain.chain.second_order_steps import Shifts


def forward(scores: ChainScores, q: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``log Z``, or with ``q`` the loss KL(q ‖ p): (B,). Then the three tensors that :func:`backward` needs.

    These are a (B, T-1, K, K), m and the two shifts (B, T+1), 0 where nothing is kept, and Φ (B, T-2, K, K).
    """
    chain, q = scores.clean(), clean_target(scores, q)
    shifts = find_shifts(chain)
    saved = empty_state(scores)
    if shifts is None:
        saved[1].zero_()
        return careful_loss(chain, q).to(torch.float32), *saved
    top = chain.emissions.amax(-1)  # (B, T)
    factors = (chain.emissions - top[:, :, None]).exp_()
    score = top.new_empty(len(top), dtype=torch.float64)
    given = ChainScores(chain.emissions, chain.transitions, scores.lengths, chain.labels, chain.skips)
    call = _describe(given, q, shifts, factors, saved)
    call.score = score.data_ptr()
    kernel.call("phrasechain_second_forward", call)
    saved[1][:, -2], saved[1][:, -1] = shifts
    return (score + taken_out(chain, top, shifts)).to(torch.float32), *saved


def backward(
    grad_loss: Tensor, scores: ChainScores, q: Tensor | None, saved: Saved, links: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """``grad_loss`` times the derivative of the loss: (B, T, K) and, where ``links``, as transitions and skips."""
    chain, q = scores.clean(), clean_target(scores, q)
    assert chain.skips is not None
    *scale, shift, skip_shift = saved[1][0].tolist()
    if scale[0] == 0:
        return careful_gradient(grad_loss, chain, q)
    B, T, _ = chain.emissions.shape
    factors = (chain.emissions - chain.emissions.amax(-1, keepdim=True)).exp_()
    given = ChainScores(chain.emissions, chain.transitions, scores.lengths, chain.labels, chain.skips)
    call = _describe(given, q, (shift, skip_shift), factors, saved)
    to_emissions = torch.empty_like(chain.emissions)
    call.grad_loss, call.grad_emissions = grad_loss.data_ptr(), to_emissions.data_ptr()
    to_transitions, to_skips = grad_loss.new_empty(0), grad_loss.new_empty(0)
    if links:
        to_transitions, call.grad_adds = _empty_gradient(chain.transitions, (B, T - 1))
        to_skips, call.skip_adds = _empty_gradient(chain.skips, (B, T - 2))
        call.grad_transitions, call.grad_skips = to_transitions.data_ptr(), to_skips.data_ptr()
        call.grad_stride_b, call.grad_stride_t = kernel.strides(to_transitions)
        call.grad_skip_stride_b, call.grad_skip_stride_t = kernel.strides(to_skips)
    kernel.call("phrasechain_second_backward", call)
    return to_emissions, to_transitions, to_skips


def empty_state(scores: ChainScores) -> Saved:
    """Room for a, m with the shifts, and Φ."""
    B, T, K = scores.emissions.shape
    new = scores.emissions.new_empty
    return new(B, T - 1, K, K), new(B, T + 1), new(B, T - 2, K, K)


def _describe(scores: ChainScores, q: Tensor | None, shifts: Shifts, factors: Tensor, saved: Saved) -> kernel.Chain:
    call = kernel.describe(scores, q)
    call.shift, call.skip_shift = shifts
    call.factors = factors.data_ptr()
    call.filters, call.scales, call.exponentiated = (tensor.data_ptr() for tensor in saved)
    call.scales_stride = saved[1].shape[1]
    return call


def _empty_gradient(links: Tensor, whole: tuple[int, int]) -> tuple[Tensor, bool]:
    """Room for a gradient in the shape of the links, and whether sequences or steps add up in it."""
    adds = tuple(links.shape[:2]) != whole
    return links.new_zeros(links.shape) if adds else empty_in_large_pages(links.shape), adds
