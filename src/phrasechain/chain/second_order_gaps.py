"""KL(q_S ‖ p_S) of a second-order chain where some steps have no label: the others are summed out exactly.

    KL(q_S ‖ p_S) = log Z + Σ q_S log q_S − E_{q_S}[log Σ_rest exp score(y_S, y_rest)].

What is scored among labelled steps alone is linear in q. The rest falls into regions: unlabelled steps that are not
kept apart by two labelled ones in a row. Given the labels around and inside it, a region is summed out by the chain's
own recursion; the expectation is then taken over the combinations of labels that have mass in q. Beside a gap inside a
sequence these are those of four neighbours, about five labels each: ``MOST_COMBINATIONS`` bounds their number. A gap
at an end needs no bound: read from the end, it sends its two labelled neighbours one message of K² numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from phrasechain.chain.autograd import loss
from phrasechain.chain.plain_loss import linear_terms
from phrasechain.chain.recursion import ChainScores, log_matmul
from phrasechain.chain.tracing import is_transformed

#: Combinations of labels with mass beside one gap: four neighbours of eleven labels each, or six of five.
MOST_COMBINATIONS = 1 << 14


def labelled_loss(scores: ChainScores, q: Tensor, labelled: Tensor) -> Tensor:
    """KL(q_S ‖ p_S) over the labelled steps S, (B,); 0 where there are none. In float64, but for the result."""
    assert scores.skips is not None
    alive, valid = scores.alive(), scores.valid()
    labelled = labelled if alive is None else labelled & alive
    dense = is_transformed() or (torch.is_grad_enabled() and q.requires_grad)  # labels of no mass have a gradient
    usable = labelled[:, :, None] if valid is None else labelled[:, :, None] & valid  # q elsewhere may be NaN
    target = torch.where(usable, q.double(), 0.0)
    double = ChainScores(
        scores.emissions.double(), scores.transitions.double(), scores.lengths, scores.label_mask, scores.skips.double()
    )
    support = usable.expand_as(q) if dense else target > 0
    value = loss(double, None) - linear_terms(double, target) - _sum_out(double, target, labelled, support)
    return torch.where(labelled.any(1), value, 0.0).to(q.dtype)


# What torch.compiler.disable does, without loading the compiler: which sums there are depends on the values of q.
labelled_loss._torchdynamo_disable = True  # type: ignore[attr-defined]
labelled_loss._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
    "kl(q, labelled) of a chain with skips depends on where q has mass: compile without fullgraph, or without skips"
)


def _sum_out(scores: ChainScores, q: Tensor, labelled: Tensor, support: Tensor) -> Tensor:
    """E_q[log Σ exp of what touches an unlabelled step], (B,)."""
    chain, (B, T, _) = scores.clean(), scores.emissions.shape
    steps, skips = chain.steps(), chain.skip_steps()
    lengths = [T] * B if scores.lengths is None else scores.lengths.tolist()
    totals = []
    for b, row in enumerate(labelled.tolist()):
        total = chain.emissions.new_zeros(())
        for region in _regions(row[: lengths[b]]):
            choices = {t: support[b, t].nonzero()[:, 0] for t in range(region.start, region.stop) if row[t]}
            _check_size(b, region, row, lengths[b], choices)
            total = (
                total
                + _Region(
                    [chain.emissions[b, t] for t in region],
                    [_of(steps[t - 1], b) for t in region[1:]],
                    [_of(skips[t - 2], b) for t in region[2:]],
                    [(choices[t], q[b, t, choices[t]]) if row[t] else None for t in region],
                )
                .from_the_open_end()
                .expected_log_sum()
            )
        totals.append(total)
    return torch.stack(totals)


def _of(links: Tensor, b: int) -> Tensor:
    return links[b if links.shape[0] > 1 else 0]


def _regions(labelled: Sequence[bool]) -> list[range]:
    """Unlabelled steps with at most one labelled step between them, and the two labelled steps on either side."""
    gaps: list[tuple[int, int]] = []
    for t, known in enumerate(labelled):
        if not known:
            joined = gaps and t - gaps[-1][1] <= 2
            gaps = [*gaps[:-1], (gaps[-1][0], t)] if joined else [*gaps, (t, t)]
    return [range(max(first - 2, 0), min(last + 3, len(labelled))) for first, last in gaps]


def _check_size(b: int, region: range, row: Sequence[bool], length: int, choices: dict[int, Tensor]) -> None:
    gap = [t for t in region if not row[t]]
    at_one_end = len(gap) == gap[-1] - gap[0] + 1 and (gap[0] == 0 or gap[-1] == length - 1)
    count = prod(len(labels) for labels in choices.values())
    if count > MOST_COMBINATIONS and not at_one_end:
        raise ValueError(
            f"labelled: expected at most {MOST_COMBINATIONS:,} combinations of labels with mass in q beside a gap of a "
            f"chain with skips (give q fewer labels there), got {count:,} at steps {sorted(choices)} of sequence {b}"
        )


@dataclass
class _Region:
    """Some steps in a row of one sequence, and for the labelled ones their labels with mass and that mass."""

    emissions: list[Tensor]  # (K,) each
    steps: list[Tensor]  # (K, K) each, into the second step and those after it
    skips: list[Tensor]  # (K, K) each, into the third step and those after it
    known: list[tuple[Tensor, Tensor] | None]

    def from_the_open_end(self) -> _Region:
        """Read backwards where only its end is unlabelled, so that combinations grow as late as they can."""
        if self.known[0] is None or self.known[-1] is not None:
            return self
        steps, skips = ([link.T for link in reversed(links)] for links in (self.steps, self.skips))
        return _Region(self.emissions[::-1], steps, skips, self.known[::-1])

    def expected_log_sum(self) -> Tensor:
        """Σ_n q(n) log Σ_x exp A_n(x) over N combinations n of the known labels.

        A (N, X, Y) is the log filter over the labels of the last two steps; a known step has one label for each n.
        """
        K = len(self.emissions[0])
        A, weights = self.emissions[0].new_zeros(1, 1, 1), self.emissions[0].new_ones(1)
        x: Tensor | None = None  # (N,): the known labels of the last step but one, and of the last
        y: Tensor | None = None
        for t, known in enumerate(self.known):
            every = torch.arange(K, device=A.device) if known is None else known[0]  # labels of this step, (Z,)
            A = self._through_skip(t, A, x, known, every)  # (N, Y, Z)
            if t > 0 and (known is None or self.known[t - 1] is None):
                step = self.steps[t - 1][:, every]  # (K, Z)
                A = A + (step if y is None else step[y][:, None, :])
            if known is None:
                A, x, y = A + self.emissions[t], y, None
            else:
                N, Y, Z = A.shape
                A = A.transpose(1, 2).reshape(N * Z, Y, 1)
                x = None if y is None else y.repeat_interleave(Z)
                y = every.repeat(N)
                weights = (weights[:, None] * known[1]).flatten()
        return (weights * torch.logsumexp(A, (1, 2))).sum()

    def _through_skip(self, t: int, A: Tensor, x: Tensor | None, known: object, every: Tensor) -> Tensor:
        """The sum over the last step but one, (N, X, Y) to (N, Y, Z)."""
        before = self.known[t - 2] if t > 1 else None
        if t < 2 or (known is not None and before is not None):
            return A.transpose(1, 2).expand(-1, -1, len(every))  # X = 1, and nothing new is scored
        skip = self.skips[t - 2][:, every]  # (K, Z)
        if x is not None:
            return A.transpose(1, 2) + skip[x][:, None, :]
        return log_matmul(A.transpose(1, 2), skip[None])
