"""The loss and its gradient in pure torch, without autograd: for other devices, and where there is no compiler.

The scaled forward-backward algorithm: a_t(j) ∝ p(y_t = j | x_{1..t}) with largest entry 1, E_t = exp(τ_t − shift) and

    s_t = a_{t-1} E_t,   a_t ∝ s_t ∘ exp(ε_t),   w_t(i, j) = a_{t-1}(i) E_t(i, j) / s_t(j),

so both passes are matrix products. While all transitions lie within ``RANGE`` of each other, float32 is accurate
whatever the emissions: a label whose exp(ε_t) underflows, at e^-87, could gain at most e^RANGE from the transition into
it and as much from the one out of it. Otherwise, and for float64, the same recursion runs in the log domain
(:mod:`phrasechain.chain.recursion`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phrasechain.chain.memory import empty_in_large_pages
from phrasechain.chain.recursion import ChainScores, CleanScores, filters, log_kernel

RANGE = 32.0
BLOCK = 1 << 19  # transitions per block, small enough to stay in the cache


def forward(scores: ChainScores, q: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``log Z``, or with ``q`` the loss KL(q ‖ p): (B,). Then the three tensors that :func:`backward` needs."""
    chain, q = scores.clean(), _clean_target(scores, q)
    shift = _shift(chain)
    exponentials = empty_in_large_pages(chain.transitions.shape, chain.transitions.device)
    with torch.autocast(chain.emissions.device.type, enabled=False):
        if shift is None:
            loss, state = _forward_in_logs(chain, q)
        else:
            loss, state = _forward_scaled(chain, q, shift, exponentials)
    careful = torch.full_like(loss, shift is None, dtype=torch.uint8)
    return loss.to(scores.emissions.dtype), state, careful, exponentials


def backward(
    grad_loss: Tensor,
    scores: ChainScores,
    q: Tensor | None,
    state: Tensor,
    careful: Tensor,
    exponentials: Tensor,
    pairs: bool,
) -> tuple[Tensor, Tensor | None]:
    """``grad_loss`` times the derivative of the loss: (B, T, K), and where ``pairs`` the shape of the transitions."""
    chain, q = scores.clean(), _clean_target(scores, q)
    with torch.autocast(chain.emissions.device.type, enabled=False):
        if bool(careful.any()):
            return _backward_in_logs(grad_loss, chain, q, state, pairs)
        return _backward_scaled(grad_loss, chain, q, state, exponentials, pairs)


def _clean_target(scores: ChainScores, q: Tensor | None) -> Tensor | None:
    valid = scores.valid()
    return q if q is None or valid is None else torch.where(valid, q, 0.0)


def _shift(chain: CleanScores) -> float | None:
    """The shift of the transitions before exp, often 0; ``None`` if their range is too large, or in float64."""
    if chain.emissions.dtype == torch.float64:
        return None
    if chain.emissions.shape[1] == 1:
        return 0.0
    low, high = (bound.item() for bound in chain.transitions.aminmax())
    if not high - low <= RANGE:
        return None
    return 0.0 if max(-low, high) <= RANGE / 2 else high


def linear_emissions(chain: CleanScores, q: Tensor) -> Tensor:
    """Σ q ε − Σ q log q, (B,) in float64; emissions relative to their maximum, so a constant costs no precision."""
    top = chain.emissions.amax(-1)  # (B, T)
    about = (q * (chain.emissions - top[:, :, None])).sum(-1)  # (B, T)
    negative_entropy = (q * q.clamp(min=1e-30).log()).sum(-1)  # (B, T)
    return (about + top.double() * q.sum(-1, dtype=torch.float64) - negative_entropy).sum(-1)


def expected_links(transitions: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Σ_t q_{t-1} τ_t q_t, (B,), of (B or 1, n or 1, K, K) and (B, n, K)."""
    if transitions.shape[-1] < 32:  # many small matrix products are slower than one large sum
        rows = (before[:, :, :, None] * transitions).sum(2)  # (B, n, K)
    else:
        rows = torch.matmul(before[:, :, None, :], transitions)[:, :, 0]
    return (rows * after).sum((1, 2), dtype=torch.float64)


def _is_whole(chain: CleanScores) -> bool:
    """Whether the transitions do not broadcast: one (K, K) for every sequence and step."""
    B, T, _ = chain.emissions.shape
    return chain.transitions.shape[:2] == (B, T - 1)


def _blocks(chain: CleanScores) -> list[tuple[int, int]]:
    """Blocks [start, stop) of steps whose transitions fit into the cache together."""
    B, T, K = chain.emissions.shape
    size = max(1, BLOCK // (B * K * K)) if _is_whole(chain) else max(1, T - 1)
    return [(start, min(start + size, T - 1)) for start in range(0, T - 1, size)]


def _of_block(transitions: Tensor, start: int, stop: int) -> Tensor:
    return transitions[:, start:stop] if transitions.shape[1] > 1 else transitions


def _matrices(block: Tensor, steps: int) -> Sequence[Tensor]:
    """One (B or 1, K, K) per step of (B or 1, n or 1, K, K)."""
    return block.unbind(1) if block.shape[1] == steps else [block[:, 0]] * steps


def _times(a: Tensor, matrix: Tensor) -> Tensor:
    """Σ_i a_i M_ij of (B, K) and (B or 1, K, K): (B, K)."""
    return a @ matrix[0] if matrix.shape[0] == 1 else torch.bmm(a[:, None, :], matrix)[:, 0]


def _halves(state: Tensor) -> tuple[Tensor, Tensor]:
    """The filters a and the sums s, (B, T, K) float32 each, as views of one float64 (B, T, K)."""
    both = state.view(torch.float32)  # (B, T, 2K)
    return both[..., : state.shape[2]], both[..., state.shape[2] :]


def _forward_scaled(chain: CleanScores, q: Tensor | None, shift: float, exponentials: Tensor) -> tuple[Tensor, Tensor]:
    T = chain.emissions.shape[1]
    top = chain.emissions.amax(-1, keepdim=True)  # (B, T, 1)
    state = torch.empty_like(chain.emissions, dtype=torch.float64)
    a, s = _halves(state)
    torch.sub(chain.emissions, top, out=a).exp_()
    one = torch.ones_like(top[:, 0])  # (B, 1)
    a_steps = a.unbind(1)  # views: indexing in the loop would take as long as the sums
    sums, scales = [a_steps[0]], [one]
    linear = 0.0 if q is None else linear_emissions(chain, q)
    for start, stop in _blocks(chain):
        given = _of_block(chain.transitions, start, stop)  # (B or 1, n, K, K)
        given = given if shift == 0 else given - shift
        block = torch.exp(given, out=_of_block(exponentials, start, stop))
        if q is not None:
            before, after = q[:, start:stop], q[:, start + 1 : stop + 1]  # (B, n, K)
            linear = linear + expected_links(given, before, after)
            if shift != 0:
                totals = before.sum(-1, dtype=torch.float64) * after.sum(-1, dtype=torch.float64)  # (B, n)
                linear = linear + shift * totals.sum(-1)
        for t, matrix in enumerate(_matrices(block, stop - start), start + 1):
            into = _times(a_steps[t - 1], matrix)  # (B, K)
            new = a_steps[t].mul_(into)
            scale = new.amax(-1, keepdim=True)  # (B, 1)
            if chain.alive is None:
                new.div_(scale)
            else:
                new.copy_(chain.keep(t, new / scale, a_steps[t - 1]))
                scale = chain.keep(t, scale, one)
            sums.append(into)
            scales.append(scale)
    torch.stack(sums, 1, out=s)
    # log Z = Σ_t (log scale factors of step t) + log Σ_j a_T(j)
    steps = T - 1 if chain.alive is None else chain.alive.sum(-1) - 1
    out = torch.cat(scales, 1).double().log().sum(-1) + top[:, :, 0].double().sum(-1) + shift * steps
    return out + a[:, -1].double().sum(-1).log() - linear, state


def _backward_scaled(
    grad_loss: Tensor, chain: CleanScores, q: Tensor | None, state: Tensor, exponentials: Tensor, pairs: bool
) -> tuple[Tensor, Tensor | None]:
    steps = chain.emissions.shape[1] - 1
    a, s = _halves(state)
    gamma = a[:, -1] / a[:, -1].sum(-1, keepdim=True)  # (B, K)
    gammas, ratios = [gamma], []
    a_steps, sums = a.unbind(1), s.unbind(1)
    matrices = _matrices(exponentials.transpose(2, 3), steps)
    for t in range(steps, 0, -1):
        v = chain.keep(t, gamma / sums[t], 0.0)  # (B, K)
        before = a_steps[t - 1] * _times(v, matrices[t - 1])  # (B, K)
        gamma = chain.keep(t, before / before.sum(-1, keepdim=True), gamma)
        gammas.append(gamma)
        ratios.append(v)
    grad_emissions = _emission_gradient(grad_loss, chain, q, torch.stack(gammas[::-1], 1))
    gammas.clear()  # frees (B, T, K), which for small K is as large as the transitions
    if not pairs:
        return grad_emissions, None
    if not ratios:
        return grad_emissions, torch.zeros_like(chain.transitions)
    return grad_emissions, _pair_gradient(grad_loss, chain, q, exponentials, a, ratios[::-1])


def _pair_gradient(
    grad_loss: Tensor, chain: CleanScores, q: Tensor | None, exponentials: Tensor, a: Tensor, ratios: Sequence[Tensor]
) -> Tensor:
    """g (E ∘ (a_{t-1} ⊗ v_t) − q_{t-1} ⊗ q_t), summed over what the transitions broadcast."""
    whole, g = _is_whole(chain), grad_loss[:, None, None]  # (B, 1, 1)
    grad = empty_in_large_pages(exponentials.shape, exponentials.device) if whole else torch.empty(0)
    for start, stop in _blocks(chain):  # one block where transitions broadcast
        run, after = slice(start, stop), slice(start + 1, stop + 1)
        v = torch.stack(list(ratios[start:stop]), 1) * g  # (B, n, K)
        if whole:
            block = grad[:, run]  # (B, n, K, K)
            torch.mul(exponentials[:, run], a[:, run, :, None], out=block).mul_(v[:, :, None, :])
            if q is not None:
                block.addcmul_(q[:, run, :, None], (q[:, after] * g)[:, :, None, :], value=-1)
        else:
            grad = _outer(a[:, run], v, exponentials).mul_(exponentials)
            if q is not None:
                grad -= _outer(q[:, run], q[:, after] * g, exponentials)
    return grad


def _outer(left: Tensor, right: Tensor, like: Tensor) -> Tensor:
    """Σ left_i right_j of (B, T-1, K) each, over the axes that ``like`` (B or 1, T-1 or 1, K, K) broadcasts."""
    if like.shape[0] == 1 and like.shape[1] == 1:
        return (left.flatten(0, 1).T @ right.flatten(0, 1))[None, None]
    if like.shape[1] == 1:
        return torch.bmm(left.transpose(1, 2), right)[:, None]
    return torch.bmm(left.permute(1, 2, 0), right.transpose(0, 1))[None]


def _emission_gradient(grad_loss: Tensor, chain: CleanScores, q: Tensor | None, marginals: Tensor) -> Tensor:
    gradient = marginals if q is None else marginals - q
    if chain.alive is not None:
        gradient = torch.where(chain.alive[:, :, None], gradient, 0.0)
    return gradient * grad_loss[:, None, None]


def _forward_in_logs(chain: CleanScores, q: Tensor | None) -> tuple[Tensor, Tensor]:
    double = chain.double()
    alphas, log_z = filters(double)
    if q is not None:
        log_z = log_z - linear_emissions(double, q.double())
        for t, step in enumerate(chain.steps(), start=1):
            log_z = log_z - (_times(q[:, t - 1].double(), step.double()) * q[:, t]).sum(-1)
    return log_z, torch.stack(alphas, 1)


def _backward_in_logs(
    grad_loss: Tensor, chain: CleanScores, q: Tensor | None, state: Tensor, pairs: bool
) -> tuple[Tensor, Tensor | None]:
    steps, dtype = chain.steps(), chain.emissions.dtype
    grad = torch.zeros_like(chain.transitions) if pairs else None
    gamma = state[:, -1].exp()  # (B, K)
    gammas = [gamma]
    for t in range(len(steps), 0, -1):
        pair = log_kernel(state[:, t - 1], steps[t - 1]).exp() * gamma[:, None, :]  # (B, K, K)
        gamma = chain.keep(t, pair.sum(-1), gamma)
        gammas.append(gamma)
        if grad is not None:
            change = pair if q is None else pair - q[:, t - 1, :, None] * q[:, t, None, :]
            change = (chain.keep(t, change, 0.0) * grad_loss[:, None, None]).to(dtype)
            change = change if grad.shape[0] > 1 else change.sum(0, keepdim=True)
            grad[:, t - 1 if grad.shape[1] > 1 else 0] += change
    return _emission_gradient(grad_loss, chain, q, torch.stack(gammas[::-1], 1).to(dtype)), grad
