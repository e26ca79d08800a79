"""The elementwise parts of the second-order recursion (:mod:`phrasechain.chain.second_order_scaled`), in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from phrasechain.chain.recursion import CleanScores
from phrasechain.chain.scaled import expected_links, linear_emissions

Shifts = tuple[float, float]  # taken from transitions and from skips before exp


class Steps:
    """What stands between the matrix products, for a ``run`` of b sequences at step t; past the end nothing happens."""

    def __init__(
        self,
        chain: CleanScores,
        q: Tensor | None,
        shifts: Shifts,
        factors: Tensor,
        grad_loss: Tensor | None = None,
        ends: Tensor | None = None,
    ) -> None:
        """``factors`` (B, T, K) are exp(ε − top), ``ends`` (B,) is b_T."""
        self.chain, self.q, self.shifts, self.factors = chain, q, shifts, factors
        self.grad_loss, self.ends = grad_loss, ends
        self.steps, self.skips = chain.steps(), chain.skip_steps()

    def exponentiate(self, run: slice, out: Tensor) -> None:
        """Φ_t into ``out`` (T-2, b, K, K)."""
        for skip, each in zip(self.skips, out, strict=True):
            each.copy_(_rows(skip, run)).sub_(self.shifts[1]).exp_()

    def enter(self, run: slice, t: int, before: Tensor, a: Tensor, m: Tensor) -> None:
        """From a_{t-1}ᵀ Φ_t in ``a`` (b, K, K) to a_t in its place, and its largest entry before into ``m`` (b,)."""
        weights = (_rows(self.steps[t - 1], run) - self.shifts[0]).exp_()  # (b or 1, K, K)
        if t > 1:
            a.mul_(weights)
        else:
            torch.mul(weights, self.factors[run, 0, :, None], out=a)
        a.mul_(self.factors[run, t, None, :])
        torch.amax(a, (1, 2), out=m)
        a.div_(m[:, None, None])
        if self.chain.alive is not None:
            alive = self.chain.alive[run, t]  # (b,)
            if t == 1:
                before = torch.zeros_like(a)  # a sequence of one step: label 0 in the place of the second
                before[:, :, 0] = self.factors[run, 0]
            a.copy_(torch.where(alive[:, None, None], a, before))
            m.copy_(torch.where(alive, m, 1.0))

    def leave(
        self, run: slice, t: int, a: Tensor, b: Tensor, m: Tensor, r: Tensor, marginals: Tensor, out: Tensor
    ) -> None:
        """From b_t: r_t, p(y_t) into ``marginals`` (B, T, K), and g (a_t ∘ b_t − q_{t-1} q_tᵀ) into ``out``."""
        assert self.ends is not None
        alive, T = self.chain.alive, self.factors.shape[1]
        end = self.ends[run, None, None]  # (b, 1, 1)
        if t == T - 1:
            b.copy_(end.expand_as(b))
        elif alive is not None:
            last = ~alive[run, t + 1]  # of the sequences that have ended, only the last step's b matters
            b.copy_(torch.where(last[:, None, None], end, b))
        weights = (_rows(self.steps[t - 1], run) - self.shifts[0]).exp_()
        torch.mul(b, weights, out=r).mul_((self.factors[run, t] / m[:, None])[:, None, :])
        torch.mul(a, b, out=out)
        torch.sum(out, 1, out=marginals[run, t])
        if t == 1:
            torch.sum(out, 2, out=marginals[run, 0])
        if alive is not None:
            dead = ~alive[run, t, None, None]
            r.masked_fill_(dead, 0.0)
            out.masked_fill_(dead, 0.0)
        self._subtract_targets(run, t, 1, out)

    def link(self, run: slice, t: int, exponentials: Tensor, product: Tensor, out: Tensor) -> None:
        """g (Φ_t ∘ (a_{t-1} r_t) − q_{t-2} q_tᵀ) into ``out`` (b, K, K), which may be ``product``."""
        torch.mul(product, exponentials, out=out)
        self._subtract_targets(run, t, 2, out)

    def _subtract_targets(self, run: slice, t: int, distance: int, out: Tensor) -> None:
        assert self.grad_loss is not None
        if self.q is not None:
            out.addcmul_(self.q[run, t - distance, :, None], self.q[run, t, None, :], value=-1)
        out.mul_(self.grad_loss[run, None, None])

    def linear(self) -> Tensor:
        """What the loss takes from log Z, (B,) in float64: Σ q (ε − log q) + Σ q_{t-1} τ q_t + Σ q_{t-2} φ q_t."""
        assert self.q is not None
        assert self.chain.skips is not None
        q, total = self.q, linear_emissions(self.chain, self.q)
        given = (self.chain.transitions, self.shifts[0]), (self.chain.skips, self.shifts[1])
        for distance, (links, shift) in enumerate(given, start=1):
            before, after = q[:, :-distance], q[:, distance:]
            masses = before.sum(-1, dtype=torch.float64) * after.sum(-1, dtype=torch.float64)  # (B, T - distance)
            total = total + expected_links(links - shift, before, after) + shift * masses.sum(-1)
        return total


def _rows(matrix: Tensor, run: slice) -> Tensor:
    return matrix[run] if matrix.shape[0] > 1 else matrix
