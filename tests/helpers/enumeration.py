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
    skips: Tensor | None = None  # as given: 2-D or 4-D

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
        skips = torch.zeros(B, max(T - 2, 0), K, K, dtype=torch.float64)
        if self.skips is not None and T > 2:
            skips = (self.skips if self.skips.dim() == 4 else self.skips[None, None]).expand_as(skips)
        lengths = [T] * B if self.lengths is None else self.lengths.tolist()
        labels = [list(range(K))] * B
        if self.label_mask is not None:
            labels = [row.nonzero()[:, 0].tolist() for row in self.label_mask]
        return [
            Chain(
                self.emissions[b, : lengths[b]],
                steps[b, : lengths[b] - 1],
                labels[b],
                T,
                K,
                skips[b, : max(lengths[b] - 2, 0)],
            )
            for b in range(B)
        ]


class Chain:
    """One sequence with all its label sequences, their scores and probabilities."""

    def __init__(
        self, emissions: Tensor, transitions: Tensor, labels: list[int], T: int, K: int, skips: Tensor
    ) -> None:
        self.T, self.K, self.length = T, K, len(emissions)
        e, tr, sk = emissions.tolist(), transitions.tolist(), skips.tolist()
        self.paths = list(itertools.product(labels, repeat=self.length))
        self.scores = [
            math.fsum([e[t][y] for t, y in enumerate(path)])
            + math.fsum([tr[t][path[t]][path[t + 1]] for t in range(self.length - 1)])
            + math.fsum([sk[t][path[t]][path[t + 2]] for t in range(self.length - 2)])
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
        return self._joint(1)

    def skip_marginals(self) -> Tensor:
        return self._joint(2)

    def _joint(self, distance: int) -> Tensor:
        found = torch.zeros(max(self.T - distance, 0), self.K, self.K, dtype=torch.float64)
        for path, probability in zip(self.paths, self.probabilities, strict=True):
            for t in range(self.length - distance):
                found[t, path[t], path[t + distance]] += probability
        return found

    def cross_entropy(self, other: Chain) -> float:
        return math.fsum(p * (other.log_z - score) for p, score in zip(self.probabilities, other.scores, strict=True))

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
def cases(
    draw: st.DrawFn, scale: float = 2.0, most: tuple[int, int, int] = (3, 4, 4), second_order: bool = False
) -> Case:
    """Random sizes, forms of transitions and skips, lengths and masks; targets with zeros among them."""
    B, T, K = (draw(st.integers(1, limit)) for limit in most)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    def links(distance: int) -> Tensor:
        form = draw(st.sampled_from(FORMS))
        steps = T - distance if distance < T else draw(st.sampled_from([0, 1])) if form in ("step", "full") else 1
        shapes = {"shared": (K, K), "sequence": (B, 1, K, K), "step": (1, steps, K, K), "full": (B, steps, K, K)}
        return normal(*shapes[form])

    emissions, transitions = normal(B, T, K), links(1)
    skips = links(2) if second_order else None
    lengths = torch.tensor(draw(st.lists(st.integers(1, T), min_size=B, max_size=B))) if draw(st.booleans()) else None
    label_mask = None
    if draw(st.booleans()):
        rows = st.lists(st.booleans(), min_size=K, max_size=K).filter(any)
        label_mask = torch.tensor([draw(rows) for _ in range(B)])
    case = Case(emissions, transitions, lengths, label_mask, torch.empty(0), generator, skips)
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
    case.transitions = _with_junk(case, transitions, 1)
    case.skips = None if skips is None else _with_junk(case, skips, 2)
    return case


def _with_junk(case: Case, links: Tensor, distance: int) -> Tensor:
    """NaN where no sequence may go: between masked labels and past the end, of links that are each sequence's own."""
    B, T, _ = case.emissions.shape
    if links.dim() == 4 and links.shape[0] == B and case.label_mask is not None:
        pairs = case.label_mask[:, :, None] & case.label_mask[:, None, :]
        links = torch.where(pairs[:, None], links, torch.nan)
    if links.dim() == 4 and links.shape[:2] == (B, T - distance) and case.lengths is not None and distance < T:
        links = torch.where(case.alive[:, distance:, None, None], links, torch.nan)
    return links
