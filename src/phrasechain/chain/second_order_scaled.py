"""The loss of a second-order chain and its gradient as batched matrix products, three per step, without autograd.

The scaled exponential domain, with Φ_t = exp(φ_t − shift), Ψ_t(j, k) = exp(τ_t(j, k) − shift + ε_t(k) − top_t) and
m_t the largest entry, so that a_t, proportional to p(y_{t-1}, y_t | x_{1..t}), has largest entry 1:

    a_t = Ψ_t ∘ (a_{t-1}ᵀ Φ_t) / m_t                           forwards, from a_2(i, j) = Ψ_2(i, j) exp(ε_1(i)) / m_2
    r_t = Ψ_t ∘ b_t / m_t,     b_{t-1} = Φ_t r_tᵀ              backwards, from b_T = 1 / Σ a_T
    p(y_{t-1}, y_t) = a_t ∘ b_t,   p(y_{t-2}, y_t) = Φ_t ∘ (a_{t-1} r_t).

How much b_t can favour one pair over another is bounded by the ranges of transitions and skips, whatever the
emissions. While 2 range(τ) + 3 range(φ) ≤ ``LIMITS`` nothing that matters underflows. Beyond it float32 is computed in
float64, and where that does not suffice, in the log domain (:mod:`phrasechain.chain.second_order`).

Sequences are worked on a few at a time, so that a step's matrices stay in a cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from phrasechain.chain.memory import empty_in_large_pages
from phrasechain.chain.recursion import ChainScores, CleanScores
from phrasechain.chain.second_order import pair_filters, smooth_pairs
from phrasechain.chain.second_order_steps import Shifts, Steps

Saved = tuple[Tensor, Tensor, Tensor]
LIMITS = {torch.float32: 64.0, torch.float64: 600.0}
BLOCK = 1 << 16  # pairs of labels that are worked on at a time


def forward(scores: ChainScores, q: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``log Z``, or with ``q`` the loss KL(q ‖ p): (B,). Then the three tensors that :func:`backward` needs.

    These are a (T-1, B, K, K), m and the two shifts (T+1, B, 1), 0 where nothing is kept, and Φ (T-2, B, K, K).
    """
    chain, q = scores.clean(), clean_target(scores, q)
    shifts = find_shifts(chain)
    saved = empty_state(chain)
    with torch.autocast(chain.emissions.device.type, enabled=False):
        if shifts is None:
            loss = careful_loss(chain, q)
            saved[1].zero_()
        else:
            loss = _forward(chain, q, shifts, saved)
    return loss.to(scores.emissions.dtype), *saved


def backward(
    grad_loss: Tensor, scores: ChainScores, q: Tensor | None, saved: Saved, links: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """``grad_loss`` times the derivative of the loss: (B, T, K) and, where ``links``, as transitions and skips."""
    chain, q = scores.clean(), clean_target(scores, q)
    with torch.autocast(chain.emissions.device.type, enabled=False):
        *scale, shift, skip_shift = saved[1][:, 0, 0].tolist()
        if scale[0] == 0:
            return careful_gradient(grad_loss, chain, q)
        return _backward(grad_loss, chain, q, (shift, skip_shift), saved, links)


def clean_target(scores: ChainScores, q: Tensor | None) -> Tensor | None:
    valid = scores.valid()
    return q if q is None or valid is None else torch.where(valid, q, 0.0)


def find_shifts(chain: CleanScores) -> Shifts | None:
    """What to take from transitions and skips before exp: often 0. ``None`` where they spread too far."""
    assert chain.skips is not None
    shifts, spread = [], 0.0
    for weight, links in ((2, chain.transitions), (3, chain.skips)):
        low, high = (bound.item() for bound in links.aminmax())
        spread += weight * (high - low)
        shifts.append(0.0 if max(-low, high) <= 16 else high)
    return (shifts[0], shifts[1]) if spread <= LIMITS[chain.emissions.dtype] else None


def empty_state(scores: ChainScores | CleanScores) -> Saved:
    """Room for a, m with the shifts, and Φ."""
    B, T, K = scores.emissions.shape
    new = scores.emissions.new_empty
    return new(T - 1, B, K, K), new(T + 1, B, 1), new(T - 2, B, K, K)


def taken_out(chain: CleanScores, top: Tensor, shifts: Shifts) -> Tensor:
    """What exponentials are relative to, (B,) in float64: the largest emissions (B, T) and the shifts of all steps."""
    lengths = torch.full_like(top[:, 0], top.shape[1]) if chain.alive is None else chain.alive.sum(-1)
    shifted = shifts[0] * (lengths - 1).double() + shifts[1] * (lengths - 2).clamp(min=0).double()
    return top.double().sum(-1) + shifted


def _run_size(K: int) -> int:
    return max(1, BLOCK // (K * K))


def _runs(B: int, K: int) -> Iterator[slice]:
    """Runs of sequences whose pairs of labels fit into a cache."""
    size = _run_size(K)
    return (slice(start, min(start + size, B)) for start in range(0, B, size))


def _forward(chain: CleanScores, q: Tensor | None, shifts: Shifts, saved: Saved) -> Tensor:
    B, T, K = chain.emissions.shape
    a, m, exponentials = saved[0], saved[1][:-2, :, 0], saved[2]
    saved[1][-2], saved[1][-1] = shifts
    top = chain.emissions.amax(-1)  # (B, T)
    work = Steps(chain, q, shifts, (chain.emissions - top[:, :, None]).exp_())
    for run in _runs(B, K):
        work.exponentiate(run, exponentials[:, run])
        phis, now, largest = exponentials[:, run].unbind(0), a[:, run].unbind(0), m[:, run].unbind(0)
        turned = a[:, run].transpose(2, 3).unbind(0)
        for t in range(1, T):
            if t > 1:
                torch.bmm(turned[t - 2], phis[t - 2], out=now[t - 1])
            work.enter(run, t, now[t - 2], now[t - 1], largest[t - 1])
    # log Z = Σ_t (log of what was taken out of step t) + log Σ_jk a_T(j, k)
    log_z = m.double().log().sum(0) + a[-1].flatten(1).sum(1).double().log() + taken_out(chain, top, shifts)
    return log_z if q is None else log_z - work.linear()


def _backward(
    grad_loss: Tensor, chain: CleanScores, q: Tensor | None, shifts: Shifts, saved: Saved, links: bool
) -> tuple[Tensor, Tensor, Tensor]:
    B, T, K = chain.emissions.shape
    a, m, exponentials = saved[0], saved[1][:-2, :, 0], saved[2]
    factors = (chain.emissions - chain.emissions.amax(-1, keepdim=True)).exp_()  # (B, T, K)
    work = Steps(chain, q, shifts, factors, grad_loss, 1 / a[-1].flatten(1).sum(1))
    assert chain.skips is not None
    to_transitions = _LinkGradient(chain.transitions, (B, T - 1), links)
    to_skips = _LinkGradient(chain.skips, (B, T - 2), links)
    marginals = torch.empty_like(chain.emissions)  # (B, T, K)
    room = a.new_empty(3, min(B, _run_size(K)), K, K)
    for run in _runs(B, K):
        r, b, product = room[:, : run.stop - run.start].unbind(0)  # (b, K, K) each
        turned = r.transpose(1, 2)
        phis, now, largest = exponentials[:, run].unbind(0), a[:, run].unbind(0), m[:, run].unbind(0)
        to_steps, to_links = to_transitions.rooms(run, product), to_skips.rooms(run, product)
        for t in range(T - 1, 0, -1):
            work.leave(run, t, now[t - 1], b, largest[t - 1], r, marginals, to_steps[t - 1])
            to_transitions.add(run, t - 1, product)
            if t > 1:
                torch.bmm(phis[t - 2], turned, out=b)
                torch.bmm(now[t - 2], r, out=product)
                work.link(run, t, phis[t - 2], product, to_links[t - 2])
                to_skips.add(run, t - 2, product)
    gradient = marginals if q is None else marginals - q
    if chain.alive is not None:
        gradient = torch.where(chain.alive[:, :, None], gradient, 0.0)
    return gradient * grad_loss[:, None, None], to_transitions.grad, to_skips.grad


class _LinkGradient:
    """The gradient of transitions or skips, in their shape: written in place where each is one's own, else summed."""

    def __init__(self, links: Tensor, whole: tuple[int, int], wanted: bool) -> None:
        self.adds, self.wanted, self.count = tuple(links.shape[:2]) != whole, wanted, whole[1]
        if not wanted:
            self.grad = links.new_empty(0)
        elif self.adds:
            self.grad = links.new_zeros(links.shape)
        elif links.dtype == torch.float32:
            self.grad = empty_in_large_pages(links.shape, links.device)
        else:
            self.grad = links.new_empty(links.shape)

    def rooms(self, run: slice, scratch: Tensor) -> Sequence[Tensor]:
        """Where the gradient of a run of sequences is to be written, (b, K, K) for each step."""
        return self.grad[run].unbind(1) if self.wanted and not self.adds else [scratch] * self.count

    def add(self, run: slice, step: int, part: Tensor) -> None:
        """Take what was written into the scratch, where it was."""
        if self.wanted and self.adds:
            step = step if self.grad.shape[1] > 1 else 0
            if self.grad.shape[0] > 1:
                self.grad[run, step] += part
            else:
                self.grad[0, step] += part.sum(0)


def careful_loss(chain: CleanScores, q: Tensor | None) -> Tensor:
    double = _in_float64(chain)
    shifts = find_shifts(double)
    if shifts is not None:
        return _forward(double, None if q is None else q.double(), shifts, empty_state(double))
    log_z = pair_filters(double)[1]
    if q is None:
        return log_z
    return log_z - Steps(double, q.double(), (0.0, 0.0), double.emissions).linear()


def careful_gradient(grad_loss: Tensor, chain: CleanScores, q: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """In float64, and all of it again: rare, so nothing is kept for it."""
    double, g = _in_float64(chain), grad_loss.double()
    q = None if q is None else q.double()
    shifts = find_shifts(double)
    if shifts is not None:
        saved = empty_state(double)
        _forward(double, None, shifts, saved)
        grads = _backward(g, double, q, shifts, saved, True)
    else:
        grads = _gradient_in_logs(g, double, q)
    return grads[0].to(chain.emissions.dtype), grads[1].to(chain.emissions.dtype), grads[2].to(chain.emissions.dtype)


def _gradient_in_logs(g: Tensor, chain: CleanScores, q: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    assert chain.skips is not None
    moments = smooth_pairs(chain)
    if q is not None:
        targets = q, q[:, :-1, :, None] * q[:, 1:, None, :], q[:, :-2, :, None] * q[:, 2:, None, :]
        moments = moments[0] - targets[0], moments[1] - targets[1], moments[2] - targets[2]
    found = []
    for moment, like in zip(moments, (chain.emissions, chain.transitions, chain.skips), strict=True):
        found.append((moment * g.view(-1, *[1] * (moment.dim() - 1))).sum_to_size(like.shape))
    return found[0], found[1], found[2]


def _in_float64(chain: CleanScores) -> CleanScores:
    assert chain.skips is not None
    return CleanScores(
        chain.emissions.double(), chain.transitions.double(), chain.alive, chain.labels, chain.skips.double()
    )
