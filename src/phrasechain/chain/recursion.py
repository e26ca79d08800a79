"""The chain's recursions in plain torch: forward-backward and Viterbi in the log domain, differentiable, exportable.

Everything follows from the log filter α_t(j) = log p(y_t = j | x_{1..t}), the forward variable normalised at every step
(float32 keeps its precision), and from the backward kernel w_t(i, j) = p(y_{t-1} = i | y_t = j, x_{1..t}), a softmax of
α_{t-1}(i) + τ_t(i, j) over i.

Axes: B sequences, T steps, K labels, n paths per sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from phrasechain.chain.tracing import has_values

#: Emission of a masked label: finite, and exp of it is 0 next to any real score.
FLOOR = -1e30


@dataclass(frozen=True, slots=True)
class ChainScores:
    """The scores of a batch; steps past ``lengths`` and masked labels may hold any value."""

    emissions: Tensor  # (B, T, K)
    transitions: Tensor  # (B or 1, T-1 or 1, K, K), [..., i, j] from i to j
    lengths: Tensor | None = None  # (B,), None: all T
    label_mask: Tensor | None = None  # (B, K), None: all labels
    skips: Tensor | None = None  # (B or 1, T-2 or 1, K, K), [..., i, j] for i at t-2 and j at t; None: first order

    def alive(self) -> Tensor | None:
        """(B, T): the steps before the end of each sequence; ``None`` where all are."""
        if self.lengths is None:
            return None
        steps = torch.arange(self.emissions.shape[1], device=self.lengths.device)
        return steps < self.lengths[:, None]

    def valid(self) -> Tensor | None:
        """(B, T, K): the emissions in use; ``None`` where all are."""
        alive, labels = self.alive(), self.label_mask
        if alive is None or labels is None:
            given = alive[:, :, None] if alive is not None else labels[:, None, :] if labels is not None else None
            return None if given is None else given.expand_as(self.emissions)
        return alive[:, :, None] & labels[:, None, :]

    def pairs(self) -> Tensor | None:
        """(B or 1, T-1 or 1, K or 1, K or 1): the transitions in use; ``None`` where all are."""
        return self._taken(self.transitions, 1)

    def skip_pairs(self) -> Tensor | None:
        """(B or 1, T-2 or 1, K or 1, K or 1): the skips in use; ``None`` where all are."""
        return None if self.skips is None else self._taken(self.skips, 2)

    def _taken(self, links: Tensor, distance: int) -> Tensor | None:
        """Which of the ``links`` between steps t - distance and t are in use."""
        alive, labels = self.alive(), self.label_mask
        B, T, _ = self.emissions.shape
        over_b, over_t = links.shape[:2]
        if distance >= T or (alive is None and labels is None):
            return None
        every = torch.ones(B, 1, dtype=torch.bool, device=self.emissions.device)
        reached = every if alive is None else alive[:, distance : over_t + distance]  # (B, T-1 or 1)
        labels = every if labels is None else labels  # (B, K or 1)
        if over_b > 1:
            return reached[:, :, None, None] & labels[:, None, :, None] & labels[:, None, None, :]
        takers = torch.einsum("bt,bi,bj->tij", reached.float(), labels.float(), labels.float())
        return (takers > 0)[None]

    def clean(self) -> CleanScores:
        """The scores with all unused values replaced.

        ``where`` rather than a product (0 · NaN is NaN), so the gradient of unused values is exactly 0. Transitions
        keep their broadcast shape: the emissions' ``FLOOR`` alone excludes a masked label.
        """
        emissions, transitions, skips = self.emissions, self.transitions, self.skips
        alive, labels, pairs, skip_pairs = self.alive(), self.label_mask, self.pairs(), self.skip_pairs()
        if labels is not None:
            emissions = torch.where(labels[:, None, :], emissions, FLOOR)  # (B, T, K)
        if alive is not None:
            emissions = torch.where(alive[:, :, None], emissions, 0.0)
        if pairs is not None:
            transitions = torch.where(pairs, transitions, 0.0)
        if skips is not None and skip_pairs is not None:
            skips = torch.where(skip_pairs, skips, 0.0)
        return CleanScores(emissions, transitions, alive, labels, skips)


@dataclass(frozen=True, slots=True)
class CleanScores:
    """Scores that are finite everywhere: ``FLOOR`` at masked labels, 0 past the end."""

    emissions: Tensor  # (B, T, K)
    transitions: Tensor  # (B or 1, T-1 or 1, K, K)
    alive: Tensor | None  # (B, T)
    labels: Tensor | None  # (B, K)
    skips: Tensor | None = None  # (B or 1, T-2 or 1, K, K)

    def double(self) -> CleanScores:
        """For recursions in float64; the transitions stay as they are and are promoted where they are added."""
        return CleanScores(self.emissions.double(), self.transitions, self.alive, self.labels, self.skips)

    def steps(self) -> list[Tensor]:
        """T - 1 transitions (B or 1, K, K); ``unbind``, since indexing in a loop makes backward quadratic in T."""
        return _unbind(self.transitions, self.emissions.shape[1] - 1)

    def skip_steps(self) -> list[Tensor]:
        """T - 2 skips (B or 1, K, K), the first of which ends at the third step."""
        return [] if self.skips is None else _unbind(self.skips, self.emissions.shape[1] - 2)

    def keep(self, t: int, new: Tensor, old: Tensor | float) -> Tensor:
        """``new`` (B, ...) where step t is within the sequence, ``old`` where it is past the end."""
        if self.alive is None:
            return new
        alive = self.alive[:, t]
        return torch.where(alive.view(-1, *[1] * (new.dim() - 1)), new, old)


def _unbind(links: Tensor, steps: int) -> list[Tensor]:
    if steps <= 0:
        return []
    return list(links.unbind(1)) if links.shape[1] == steps else [links[:, 0]] * steps


def filters(chain: CleanScores) -> tuple[list[Tensor], Tensor]:
    """The forward algorithm: T log filters α_t (B, K), constant past the end of a sequence, and log Z (B,)."""
    x = chain.emissions[:, 0]  # (B, K)
    log_z = torch.logsumexp(x, -1)  # (B,)
    alphas = [x - log_z[:, None]]
    for t, step in enumerate(chain.steps(), start=1):
        x = torch.logsumexp(alphas[-1][:, :, None] + step, 1) + chain.emissions[:, t]  # (B, K, K) -> (B, K)
        norm = torch.logsumexp(x, -1)  # (B,)
        log_z = log_z + chain.keep(t, norm, 0.0)
        alphas.append(chain.keep(t, x - norm[:, None], alphas[-1]))
    return alphas, log_z


def log_kernel(alpha: Tensor, step: Tensor) -> Tensor:
    """log w(i, j) (B, K, K) from the previous filter (B, K) and the transitions (B or 1, K, K)."""
    return torch.log_softmax(alpha[:, :, None] + step, 1)


def smooth(chain: CleanScores) -> tuple[Tensor, Tensor]:
    """p(y_t) (B, T, K) and p(y_{t-1}, y_t) (B, T-1, K, K); 0 past the end.

    The backward pass, from the last filter: p(y_{t-1} = i, y_t = j) = w_t(i, j) p(y_t = j).
    """
    alphas, _ = filters(chain)
    steps = chain.steps()
    gamma = alphas[-1].exp()  # (B, K)
    gammas, pairs = [gamma], []
    for t in range(len(steps), 0, -1):
        pair = log_kernel(alphas[t - 1], steps[t - 1]).exp() * gamma[:, None, :]  # (B, K, K)
        gamma = chain.keep(t, pair.sum(-1), gamma)  # (B, K)
        gammas.append(gamma)
        pairs.append(chain.keep(t, pair, 0.0))
    marginals = torch.stack(gammas[::-1], 1)  # (B, T, K)
    if chain.alive is not None:
        marginals = torch.where(chain.alive[:, :, None], marginals, 0.0)
    B, _, K = marginals.shape
    return marginals, torch.stack(pairs[::-1], 1) if pairs else marginals.new_zeros(B, 0, K, K)


def entropy(chain: CleanScores) -> Tensor:
    """H(p) (B,) = H(y_T) + Σ_t H(y_{t-1} | y_t), forwards: H_t(j) = Σ_i w_t(i, j) (H_{t-1}(i) − log w_t(i, j)).

    Only probabilities and their logarithms enter, so there is no catastrophic cancellation.
    """
    alphas, _ = filters(chain)
    total = torch.zeros_like(alphas[0])  # (B, K)
    for t, step in enumerate(chain.steps(), start=1):
        log_w = log_kernel(alphas[t - 1], step)  # (B, K, K)
        total = chain.keep(t, (log_w.exp() * (total[:, :, None] - log_w)).sum(1), total)
    return (alphas[-1].exp() * (total - alphas[-1])).sum(-1)


def path_score(chain: CleanScores, labels: Tensor) -> Tensor:
    """Σ_t ε_t(y_t) + τ_t(y_{t-1}, y_t) + φ_t(y_{t-2}, y_t) of labels (B, n, T): (B, n), differentiable."""
    each = chain.emissions.gather(2, labels.transpose(1, 2)).double()  # (B, T, n)
    total = (each if chain.alive is None else torch.where(chain.alive[:, :, None], each, 0.0)).sum(1)  # (B, n)
    B = labels.shape[0]
    rows = torch.arange(B, device=labels.device)[:, None]
    for t, step in enumerate(chain.steps(), start=1):
        each = step.expand(B, -1, -1)[rows, labels[:, :, t - 1], labels[:, :, t]]  # (B, n)
        total = total + chain.keep(t, each, 0.0)
    for t, skip in enumerate(chain.skip_steps(), start=2):
        each = skip.expand(B, -1, -1)[rows, labels[:, :, t - 2], labels[:, :, t]]  # (B, n)
        total = total + chain.keep(t, each, 0.0)
    return total.to(chain.emissions.dtype)


def viterbi(chain: CleanScores) -> Tensor:
    """The labels (B, T) of the best path: max forwards, then backtracking by argmax along that path only."""
    steps = chain.steps()
    deltas = [chain.emissions[:, 0]]  # (B, K) each
    for t, step in enumerate(steps, start=1):
        new = (deltas[-1][:, :, None] + step).amax(1) + chain.emissions[:, t]  # (B, K)
        deltas.append(chain.keep(t, new - new.amax(-1, keepdim=True), deltas[-1]))
    label = deltas[-1].argmax(-1)  # (B,)
    labels = [label]
    for t in range(len(steps), 0, -1):
        B, K = deltas[0].shape
        into = steps[t - 1].expand(B, K, K).gather(2, label[:, None, None].expand(B, K, 1))[:, :, 0]  # (B, K)
        label = chain.keep(t, (deltas[t - 1] + into).argmax(-1), label)
        labels.append(label)
    path = torch.stack(labels[::-1], 1)  # (B, T)
    return path if chain.alive is None else torch.where(chain.alive, path, 0)


def kbest(chain: CleanScores, n: int) -> tuple[Tensor, Tensor]:
    """The n best paths (B, n, T), best first, and whether each exists (B, n)."""
    B, _, K = chain.emissions.shape
    emissions = chain.emissions.double()
    if chain.labels is not None:
        emissions = emissions.masked_fill(~chain.labels[:, None, :], -torch.inf)
    best = emissions.new_full((B, K, n), -torch.inf)  # the n best paths into each label
    best[:, :, 0] = emissions[:, 0]
    stay = torch.arange(K * n, device=best.device).view(1, K, n)
    origins = []
    for t, step in enumerate(chain.steps(), start=1):
        reach = best[:, :, :, None] + step[:, :, None, :]  # (B, K, n, K)
        new, origin = reach.flatten(1, 2).topk(n, 1)  # (B, n, K): origin = label · n + rank
        new = new.transpose(1, 2) + emissions[:, t, :, None]  # (B, K, n)
        best = chain.keep(t, new, best)
        origins.append(chain.keep(t, origin.transpose(1, 2), stay))
    top, state = best.flatten(1).topk(n, 1)  # (B, n)
    path = [state // n]
    for origin in reversed(origins):
        state = origin.flatten(1).gather(1, state)
        path.append(state // n)
    exists = top > -torch.inf
    shown = exists[:, :, None] if chain.alive is None else exists[:, :, None] & chain.alive[:, None, :]
    return torch.where(shown, torch.stack(path[::-1], 2), 0), exists


def sample(chain: CleanScores, n: int, generator: torch.Generator | None) -> Tensor:
    """n exact samples (B, n, T) by FFBS: y_T from the last filter, then y_{t-1} from w_t(·, y_t)."""
    alphas, _ = filters(chain)
    steps = chain.steps()
    B, K = alphas[0].shape
    label = torch.multinomial(alphas[-1].exp(), n, replacement=True, generator=generator)  # (B, n)
    labels = [label]
    for t in range(len(steps), 0, -1):
        w = log_kernel(alphas[t - 1], steps[t - 1]).exp()  # (B, K, K)
        rows = w.transpose(1, 2).gather(1, label[:, :, None].expand(B, n, K))  # (B, n, K)
        before = torch.multinomial(rows.flatten(0, 1), 1, generator=generator).view(B, n)
        label = chain.keep(t, before, label)
        labels.append(label)
    paths = torch.stack(labels[::-1], 2)  # (B, n, T)
    return paths if chain.alive is None else torch.where(chain.alive[:, None, :], paths, 0)


def contract(chain: CleanScores, labelled: Tensor) -> tuple[ChainScores, Tensor]:
    """The marginal chain over the labelled steps (B, T), and their positions (B, S).

    p_S is a chain again (variable elimination). Unlabelled steps before the first or after the last labelled step
    become a message to it, O(K²) each; a gap between two labelled steps becomes one transition,
    log Σ_j exp(τ(i, j) + ε(j) + τ'(j, k)), O(K³) each, only for the sequences with the gap. A sequence without
    labelled steps keeps one arbitrary step.
    """
    emissions, steps, alive = chain.emissions, chain.steps(), chain.alive
    labelled = labelled if alive is None else labelled & alive
    B, T, K = emissions.shape
    seen = labelled.cumsum(1)  # (B, T): labelled steps so far
    counts = seen[:, -1]  # (B,)
    S = max(int(counts.max()), 1) if has_values(emissions) else T
    nothing = torch.zeros_like(emissions[:, 0])  # (B, K)
    from_left, from_right = [nothing], [nothing]  # messages from the ends of the sequence to each step
    for t in range(T - 2, -1, -1):
        silent = (seen[:, t] == counts) & (True if alive is None else alive[:, t + 1])  # nothing labelled after t
        new = nothing
        if _may_hold(silent):
            new = torch.logsumexp(steps[t] + (emissions[:, t + 1] + from_right[-1])[:, None, :], 2)  # (B, K)
            new = torch.where(silent[:, None], new, 0.0)
        from_right.append(new)
    links: list[Tensor] = []  # (B, K, K) each, from the last labelled step (or the step before) to this one
    for t in range(1, T):
        silent = seen[:, t - 1] == 0  # nothing labelled before t
        new = nothing
        if _may_hold(silent):
            new = torch.logsumexp((emissions[:, t - 1] + from_left[-1])[:, :, None] + steps[t - 1], 1)  # (B, K)
            new = torch.where(silent[:, None], new, 0.0)
        from_left.append(new)
        link = steps[t - 1].expand(B, K, K).to(emissions.dtype)
        gap = ~silent & ~labelled[:, t - 1] & (seen[:, t - 1] < counts)  # (B,)
        if links and _may_hold(gap):
            link = _through(gap, links[-1], emissions[:, t - 1], link)
        links.append(link)
    ends = torch.stack(from_left, 1) + torch.stack(from_right[::-1], 1)  # (B, T, K): 0 between the labelled steps
    positions = labelled.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :S]  # (B, S)
    rows = torch.arange(B, device=positions.device)[:, None]
    picked = (emissions + ends)[rows, positions]  # (B, S, K)
    between = torch.stack(links, 1)[rows, positions[:, 1:] - 1] if S > 1 else emissions.new_zeros(B, 0, K, K)
    return ChainScores(picked, between, counts.clamp(min=1), chain.labels), positions


def _may_hold(condition: Tensor) -> bool:
    """Whether it holds anywhere; True while tracing, when values are unknown."""
    return not has_values(condition) or bool(condition.any())


def _through(gap: Tensor, link: Tensor, emissions: Tensor, step: Tensor) -> Tensor:
    """Where ``gap`` (B,): log Σ_j exp(link(i, j) + ε(j) + step(j, k)), elsewhere ``step`` (B, K, K) unchanged."""
    if not has_values(link):  # compilers fuse this sum; the K³ values are never stored
        inner = (link + emissions[:, None, :])[:, :, :, None] + step[:, None, :, :]
        return torch.where(gap[:, None, None], torch.logsumexp(inner, 2), step)
    rows = gap.nonzero()[:, 0]
    return step.index_put((rows,), log_matmul(link[rows] + emissions[rows, None, :], step[rows]))


def log_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Matrix product in the log semiring: log Σ_j exp(left(i, j) + right(j, k)) of (N, I, J) and (N or 1, J, K).

    A product of float64 exponentials; where the range of the scores exceeds float64 (about 600), and while tracing,
    when values are unknown, logsumexp row by row.
    """
    a, b, dtype = left.double(), right.double(), torch.promote_types(left.dtype, right.dtype)
    if has_values(left):
        top_a, top_b = a.detach().amax(2, keepdim=True), b.detach().amax(1, keepdim=True)
        product = (a - top_a).exp() @ (b - top_b).exp()  # (N, I, K)
        if bool((product.detach() > 1e-280).all()):
            return (product.log() + top_a + top_b).to(dtype)
    exact = [torch.logsumexp(row[:, :, None] + b, 1) for row in a.unbind(1)]  # each (N, K)
    return torch.stack(exact, 1).to(dtype)
