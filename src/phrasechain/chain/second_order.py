"""The second-order chain's recursions in plain torch: :mod:`phrasechain.chain.recursion` with skips φ_t(y_{t-2}, y_t).

The log filter is now over pairs, α_t(j, k) = log p(y_{t-1} = j, y_t = k | x_{1..t}), normalised at every step:

    α_t(j, k) = τ_t(j, k) + ε_t(k) + log Σ_i exp(α_{t-1}(i, j) + φ_t(i, k)) − norm_t,

a matrix product in the log domain, and so are the messages back. Nothing of K³ numbers is stored. Chains here have at
least three steps; with fewer there are no skips. A sequence of one step has its pairs with label 0.

Axes: B sequences, T steps, K labels, n answers per sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phrasechain.chain import kernel
from phrasechain.chain.recursion import FLOOR, CleanScores, filters, log_kernel, log_matmul, smooth
from phrasechain.chain.tracing import has_values


def pair_filters(chain: CleanScores) -> tuple[list[Tensor], Tensor]:
    """The T-1 log filters α_t (B, K, K), frozen past the end of a sequence, and log Z (B,)."""
    emissions, steps = chain.emissions.unbind(1), chain.steps()
    x = chain.keep(1, emissions[0][:, :, None] + steps[0] + emissions[1][:, None, :], _alone(emissions[0], FLOOR))
    log_z = torch.logsumexp(x, (1, 2))  # (B,)
    alphas = [x - log_z[:, None, None]]
    for t, skip in enumerate(chain.skip_steps(), start=2):
        x = log_matmul(alphas[-1].transpose(1, 2), skip) + steps[t - 1] + emissions[t][:, None, :]  # (B, K, K)
        norm = torch.logsumexp(x, (1, 2))  # (B,)
        log_z = log_z + chain.keep(t, norm, 0.0)
        alphas.append(chain.keep(t, x - norm[:, None, None], alphas[-1]))
    return alphas, log_z


def _alone(first: Tensor, nothing: float) -> Tensor:
    """The pairs (B, K, K) of sequences of one step: its label (B, K), and label 0 in the place of the second."""
    columns = torch.arange(first.shape[1], device=first.device)
    return torch.where(columns == 0, first[:, :, None], nothing)


def smooth_pairs(chain: CleanScores) -> tuple[Tensor, Tensor, Tensor]:
    """p(y_t) (B, T, K), p(y_{t-1}, y_t) (B, T-1, K, K) and p(y_{t-2}, y_t) (B, T-2, K, K); 0 past the end.

    With ρ_t = τ_t + ε_t + β_t: β_{t-1}(i, j) = log Σ_k exp(φ_t(i, k) + ρ_t(j, k)), p(y_{t-1}, y_t) = exp(α_t + β_t) and
    p(y_{t-2} = i, y_t = k) = Σ_j exp(φ_t(i, k) + α_{t-1}(i, j) + ρ_t(j, k)).
    """
    alphas, _ = pair_filters(chain)
    emissions, steps, skips = chain.emissions.unbind(1), chain.steps(), chain.skip_steps()
    beta = torch.zeros_like(alphas[-1])  # (B, K, K)
    pair = alphas[-1].exp()
    pairs, ends = [pair], []
    for t in range(len(steps), 1, -1):
        rho = steps[t - 1] + emissions[t][:, None, :] + beta  # (B, K, K)
        before = log_matmul(skips[t - 2].expand_as(rho), rho.transpose(1, 2))
        norm = torch.logsumexp(alphas[t - 2] + before, (1, 2))[:, None, None]
        end = (log_matmul(alphas[t - 2], rho) + skips[t - 2] - norm).exp()
        ends.append(chain.keep(t, end, 0.0))
        beta = chain.keep(t, before - norm, beta)
        pairs.append((alphas[t - 2] + beta).exp())
    pairs = pairs[::-1]
    marginals = torch.stack([pairs[0].sum(2), *(pair.sum(1) for pair in pairs)], 1)  # (B, T, K)
    if chain.alive is not None:
        marginals = torch.where(chain.alive[:, :, None], marginals, 0.0)
    pairs = [chain.keep(t, pair, 0.0) for t, pair in enumerate(pairs, start=1)]
    return marginals, torch.stack(pairs, 1), torch.stack(ends[::-1], 1)


def skip_marginals_of_first_order(chain: CleanScores) -> Tensor:
    """p(y_{t-2}, y_t) (B, T-2, K, K) of a chain without skips: Σ_j w_{t-1}(i, j) p(y_{t-1} = j, y_t = k)."""
    alphas, steps = filters(chain)[0], chain.steps()
    _, pairs = smooth(chain)
    ends = [log_kernel(alphas[t], steps[t]).exp() @ pairs[:, t + 1] for t in range(len(steps) - 1)]
    return torch.stack(ends, 1) if ends else pairs[:, :0]


def entropy(chain: CleanScores) -> Tensor:
    """H(p) (B,) = log Z − E[score], of scores about the largest of each step: a constant costs no digits."""
    assert chain.skips is not None
    emissions, transitions, skips = (_about_the_top(x) for x in (chain.emissions, chain.transitions, chain.skips))
    centred = CleanScores(emissions, transitions, chain.alive, chain.labels, skips)
    return pair_filters(centred)[1] - expected_score(centred, *smooth_pairs(centred))


def _about_the_top(scores: Tensor) -> Tensor:
    scores = scores.double()
    return scores - scores.detach().amax(tuple(range(2, scores.dim())), keepdim=True)


def expected_score(chain: CleanScores, marginals: Tensor, pairs: Tensor, ends: Tensor | None) -> Tensor:
    """Σ_t E[ε_t(y_t) + τ_t(y_{t-1}, y_t) + φ_t(y_{t-2}, y_t)] (B,) under a distribution with these marginals."""
    total = torch.where(marginals > 0, marginals * chain.emissions, 0.0).sum((1, 2))
    if chain.steps():
        total = total + (pairs * chain.transitions).sum((1, 2, 3))
    if ends is not None and chain.skips is not None and chain.skip_steps():
        total = total + (ends * chain.skips).sum((1, 2, 3))
    return total


def max_plus(left: Tensor, right: Tensor) -> Tensor:
    """max_i left(i, j) + right(i, k) of (B, K, K) and (B or 1, K, K) in float64, one i at a time."""
    if left.device.type == "cpu" and kernel.load() is not None and has_values(left):
        return kernel.max_plus(left, right)
    rows = zip(left.unbind(1), right.unbind(1), strict=True)
    first, second = next(rows)
    best = first[:, :, None] + second[:, None, :]  # (B, K, K)
    for first, second in rows:
        best = torch.maximum(best, first[:, :, None] + second[:, None, :])
    return best


def best_prefixes(chain: CleanScores) -> list[Tensor]:
    """δ_t(j, k) (B, K, K) for T-1 steps: the score of the best labels up to t that end with j, k; float64."""
    emissions, steps = chain.emissions.double(), chain.steps()
    if chain.labels is not None:
        emissions = emissions.masked_fill(~chain.labels[:, None, :], -torch.inf)
    each = emissions.unbind(1)
    deltas = [chain.keep(1, each[0][:, :, None] + steps[0] + each[1][:, None, :], _alone(each[0], -torch.inf))]
    for t, skip in enumerate(chain.skip_steps(), start=2):
        new = max_plus(deltas[-1], skip.double()) + steps[t - 1] + each[t][:, None, :]
        deltas.append(chain.keep(t, new, deltas[-1]))
    return deltas


def viterbi(chain: CleanScores) -> Tensor:
    """The labels (B, T) of the best path."""
    return kbest(chain, 1)[0][:, 0]


def kbest(chain: CleanScores, n: int) -> tuple[Tensor, Tensor]:
    """The n best paths (B, n, T), best first, and whether each exists (B, n).

    A beam search from the end. A suffix is judged by its best completion, rest + δ_t, which is known exactly: so a beam
    of n loses none of the n best paths.
    """
    deltas, steps, skips = best_prefixes(chain), chain.steps(), chain.skip_steps()
    B, T, K = chain.emissions.shape
    top, place = _topk(deltas[-1].flatten(1), n)  # (B, n)
    x, y, rest = place // K, place % K, torch.where(top > -torch.inf, 0.0, top)  # labels of t-1 and t; what follows
    path = y.new_zeros(B, n, 0)
    same = torch.arange(n, device=y.device).expand(B, n)
    for t in range(T - 1, 1, -1):
        own = chain.emissions[:, t].gather(1, y) + _columns(steps[t - 1], y, n).gather(2, x[:, :, None])[:, :, 0]
        link = _columns(skips[t - 2], y, n)  # (B, n, K): φ_t(·, y)
        total = (rest + own)[:, :, None] + link + _columns(deltas[t - 2], x, n)
        new, place = _topk(total.flatten(1), n)  # (B, n) of n · K
        origin, i = chain.keep(t, place // K, same), chain.keep(t, place % K, x)
        grown = (rest + own).gather(1, origin) + link.flatten(1).gather(1, origin * K + i)
        path = torch.cat([y[:, :, None], path], 2).gather(1, origin[:, :, None].expand(B, n, T - t))
        y = chain.keep(t, x.gather(1, origin), y)
        rest, top = chain.keep(t, torch.where(new > -torch.inf, grown, new), rest), chain.keep(t, new, top)
        x = i
    exists = top > -torch.inf
    shown = exists[:, :, None] if chain.alive is None else exists[:, :, None] & chain.alive[:, None, :]
    return torch.where(shown, torch.cat([x[:, :, None], y[:, :, None], path], 2), 0), exists


def _topk(scores: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n largest of (B, m) and their places; −inf at place 0 where there are fewer."""
    top, place = scores.topk(min(n, scores.shape[1]), 1)
    missing = (0, n - top.shape[1])
    return torch.nn.functional.pad(top, missing, value=-torch.inf), torch.nn.functional.pad(place, missing)


def _columns(matrix: Tensor, at: Tensor, n: int) -> Tensor:
    """matrix(·, at) as (B, n, K), of (B or 1, K, K) and labels (B, n)."""
    B, K = at.shape[0], matrix.shape[-1]
    return matrix.expand(B, K, K).transpose(1, 2).gather(1, at[:, :, None].expand(B, n, K))


def sample(chain: CleanScores, n: int, generator: torch.Generator | None) -> Tensor:
    """n exact samples (B, n, T): y_{T-1} and y_T from the last filter, then backwards y_{t-2} given the two after it.

    Its distribution is the softmax over i of α_{t-1}(i, y_{t-1}) + φ_t(i, y_t).
    """
    alphas, _ = pair_filters(chain)
    skips, (B, T, K) = chain.skip_steps(), chain.emissions.shape
    place = torch.multinomial(alphas[-1].flatten(1).exp(), n, replacement=True, generator=generator)  # (B, n)
    x, y = place // K, place % K
    labels = []
    for t in range(T - 1, 1, -1):
        weights = (_columns(alphas[t - 2], x, n) + _columns(skips[t - 2], y, n)).softmax(-1)  # (B, n, K)
        i = torch.multinomial(weights.flatten(0, 1), 1, generator=generator).view(B, n)
        labels.append(y)
        x, y = chain.keep(t, i, x), chain.keep(t, x, y)
    found = torch.stack([x, y, *labels[::-1]], 2)  # (B, n, T)
    return found if chain.alive is None else torch.where(chain.alive[:, None, :], found, 0)
