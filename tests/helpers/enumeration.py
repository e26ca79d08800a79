"""The truth by brute force: every label sequence of small chains, in float64, with itertools.product."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass
class Case:
    """Scores of a random small batch; unused entries (past the end, masked labels) are NaN."""

    emissions: Tensor  # (B, T, K) float64
    transitions: Tensor  # as given: 2-D or 4-D
    lengths: Tensor | None
    label_mask: Tensor | None
    q: Tensor  # (B, T, K)
    generator: torch.Generator

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        return self.emissions, self.transitions, self.lengths, self.label_mask

    @property
    def alive(self) -> Tensor:
        B, T, _ = self.emissions.shape
        return torch.arange(T) < (torch.full((B,), T) if self.lengths is None else self.lengths)[:, None]

    @property
    def valid(self) -> Tensor:
        labels = True if self.label_mask is None else self.label_mask[:, None, :]
        return self.alive[:, :, None].expand_as(self.emissions) & labels

    def chains(self) -> list[Chain]:
        B, T, K = self.emissions.shape
        four = self.transitions if self.transitions.dim() == 4 else self.transitions[None, None]
        steps = four.expand(B, T - 1, K, K) if T > 1 else four.new_zeros(B, 0, K, K)
        lengths = [T] * B if self.lengths is None else self.lengths.tolist()
        labels = [list(range(K))] * B
        if self.label_mask is not None:
            labels = [row.nonzero()[:, 0].tolist() for row in self.label_mask]
        return [Chain(self.emissions[b, : lengths[b]], steps[b, : lengths[b] - 1], labels[b], T, K) for b in range(B)]


class Chain:
    """One sequence with all its label sequences, their scores and probabilities."""

    def __init__(self, emissions: Tensor, transitions: Tensor, labels: list[int], T: int, K: int) -> None:
        self.T, self.K, self.length = T, K, len(emissions)
        e, tr = emissions.tolist(), transitions.tolist()
        self.paths = list(itertools.product(labels, repeat=self.length))
        self.scores = [
            math.fsum([e[t][y] for t, y in enumerate(path)])
            + math.fsum([tr[t][path[t]][path[t + 1]] for t in range(self.length - 1)])
            for path in self.paths
        ]
        top = max(self.scores)
        self.log_z = top + math.log(math.fsum(math.exp(score - top) for score in self.scores))
        self.probabilities = [math.exp(score - self.log_z) for score in self.scores]

    def kl(self, q: Tensor, steps: list[int] | None = None) -> float:
        """KL(q_S ‖ p_S) over the given steps, by the definition."""
        steps = list(range(self.length)) if steps is None else steps
        p: dict[tuple[int, ...], float] = {}
        for path, probability in zip(self.paths, self.probabilities, strict=True):
            key = tuple(path[t] for t in steps)
            p[key] = p.get(key, 0.0) + probability
        total = 0.0
        for key, probability in p.items():
            target = math.prod(float(q[t, y]) for t, y in zip(steps, key, strict=True))
            if target > 0:
                total += target * (math.log(target) - math.log(probability))
        return total

    def marginals(self) -> Tensor:
        found = torch.zeros(self.T, self.K, dtype=torch.float64)
        for path, probability in zip(self.paths, self.probabilities, strict=True):
            for t, y in enumerate(path):
                found[t, y] += probability
        return found

    def pair_marginals(self) -> Tensor:
        found = torch.zeros(self.T - 1, self.K, self.K, dtype=torch.float64)
        for path, probability in zip(self.paths, self.probabilities, strict=True):
            for t in range(self.length - 1):
                found[t, path[t], path[t + 1]] += probability
        return found

    def entropy(self) -> float:
        return -math.fsum(p * (score - self.log_z) for p, score in zip(self.probabilities, self.scores, strict=True))

    def partial_nll(self, allowed: Tensor) -> float:
        inside = [
            p
            for path, p in zip(self.paths, self.probabilities, strict=True)
            if all(allowed[t, y] for t, y in enumerate(path))
        ]
        return -math.log(math.fsum(inside))

    def ranked(self) -> list[tuple[float, tuple[int, ...]]]:
        return sorted(zip(self.scores, self.paths, strict=True), reverse=True)


FORMS = ("shared", "sequence", "step", "full")


@st.composite
def cases(draw: st.DrawFn, scale: float = 2.0, most: tuple[int, int, int] = (3, 4, 4)) -> Case:
    """Random sizes, transition forms, lengths and masks; targets with zeros among them."""
    B, T, K = (draw(st.integers(1, limit)) for limit in most)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    form = draw(st.sampled_from(FORMS))
    steps = max(T - 1, draw(st.sampled_from([0, 1]))) if form in ("step", "full") and T == 1 else max(T - 1, 1)
    shape = {"shared": (K, K), "sequence": (B, 1, K, K), "step": (1, steps, K, K), "full": (B, steps, K, K)}[form]
    emissions, transitions = normal(B, T, K), normal(*shape)
    lengths = torch.tensor(draw(st.lists(st.integers(1, T), min_size=B, max_size=B))) if draw(st.booleans()) else None
    label_mask = None
    if draw(st.booleans()):
        rows = st.lists(st.booleans(), min_size=K, max_size=K).filter(any)
        label_mask = torch.tensor([draw(rows) for _ in range(B)])
    case = Case(emissions, transitions, lengths, label_mask, torch.empty(0), generator)
    valid = case.valid
    weight = torch.rand(B, T, K, generator=generator, dtype=torch.float64)
    weight = torch.where(torch.rand(B, T, K, generator=generator) < 0.4, 0.0, weight)  # zeros are welcome
    weight = torch.where(valid, weight, 0.0)
    none = (weight.sum(-1, keepdim=True) == 0) & valid  # an empty row becomes uniform
    weight = torch.where(none, 1.0, weight)
    total = weight.sum(-1, keepdim=True)
    case.q = torch.where(total > 0, weight / total, torch.nan)
    case.q = torch.where(valid, case.q, 0.0 if lengths is None else torch.nan)
    case.q = torch.where(case.alive[:, :, None] & ~valid, 0.0, case.q)
    case.emissions = torch.where(valid, emissions, torch.nan)
    if form in ("sequence", "full") and label_mask is not None:
        pairs = label_mask[:, :, None] & label_mask[:, None, :]
        case.transitions = torch.where(pairs[:, None], transitions, torch.nan)
    if form == "full" and lengths is not None and T > 1:
        case.transitions = torch.where(case.alive[:, 1:, None, None], case.transitions, torch.nan)
    return case
