"""ChainCRF: the distribution over label sequences that given scores define: losses, marginals, decoding, samples."""

from __future__ import annotations

import dataclasses
import operator

import torch
from torch import Tensor

from phrasechain.chain import checks, divergence, kernel, recursion, second_order, second_order_gaps
from phrasechain.chain.autograd import loss
from phrasechain.chain.loss import labelled_loss, marginals, soft_label_loss
from phrasechain.chain.operators import second_order_viterbi, uses_kernel
from phrasechain.chain.recursion import FLOOR, ChainScores
from phrasechain.chain.tracing import has_values, is_transformed


def backend() -> str:
    """``"compiled"`` where the C kernel computes float32 on the CPU, else ``"torch"``."""
    return "torch" if kernel.load() is None else "compiled"


class ChainCRF:
    r"""A linear-chain conditional random field over given scores; it owns no parameters.

    .. math:: p(y) = \frac{1}{Z} \exp \sum_t \big( ε_t(y_t) + τ_t(y_{t-1}, y_t) + φ_t(y_{t-2}, y_t) \big)

    Args:
        emissions: ε, (B, T, K): B sequences, T steps, K labels. float16, bfloat16 (computed in float32), float32 or
            float64.
        transitions: τ; ``transitions[..., i, j]`` scores label i at t-1 followed by j at t. Broadcasts to
            (B, T-1, K, K) from a shared (K, K), a per-sequence (B, 1, K, K), a per-step (1, T-1, K, K) or the full
            shape, and is not materialised.
        lengths: (B,) integers from 1 to T; all T by default.
        label_mask: (B, K) bool, the labels that a sequence may take; all by default.
        validate: check values too (shapes, dtypes and devices always are). Off where there are none yet: under
            ``torch.compile``, export, tracing and ``torch.func``.
        skips: φ; ``skips[..., i, j]`` scores label i at t-2 together with j at t. Broadcasts to (B, T-2, K, K) as
            transitions do. With it the chain is of second order, and as exact; a step costs products of (K, K)
            matrices.

    Steps at or past ``lengths[b]`` and masked labels may hold any value, NaN included: they are ignored and their
    gradient is exactly 0. In results such steps have label 0 and probability 0. All other scores must be finite;
    forbid a transition with a floor such as -1e4.

    Example:
        >>> emissions = torch.tensor([[[0.5, -1.0], [2.0, 0.0]]])  # one sequence of two steps, two labels
        >>> crf = ChainCRF(emissions, torch.tensor([[1.0, -2.0], [0.5, 3.0]]))
        >>> round(crf.log_partition.item(), 4)
        3.8113
        >>> round(crf.kl(torch.tensor([[[0.7, 0.3], [0.4, 0.6]]])).item(), 4)
        1.6374
        >>> crf.viterbi()[0].tolist()
        [[0, 0]]
    """

    def __init__(
        self,
        emissions: Tensor,
        transitions: Tensor,
        lengths: Tensor | None = None,
        label_mask: Tensor | None = None,
        validate: bool = True,
        *,
        skips: Tensor | None = None,
    ) -> None:
        checks.emissions_shape(emissions)
        checks.transitions_shape(transitions, emissions)
        dtype = torch.promote_types(emissions.dtype, transitions.dtype)
        if skips is not None:
            checks.skips_shape(skips, emissions)
            dtype = torch.promote_types(dtype, skips.dtype)
        dtype = dtype if dtype == torch.float64 else torch.float32
        if lengths is not None:
            checks.lengths_shape(lengths, emissions)
            lengths = lengths.to(torch.int64).contiguous()
        if label_mask is not None:
            checks.mask("label_mask", label_mask, (emissions.shape[0], emissions.shape[2]), emissions)
            label_mask = label_mask.contiguous()
        self.validate = validate and has_values(emissions)
        self._scores = ChainScores(
            emissions.to(dtype).contiguous(),
            _by_rows(transitions, dtype),
            lengths,
            label_mask,
            None if skips is None else _by_rows(skips, dtype),
        )
        if self.validate:
            if lengths is not None:
                checks.lengths_values(lengths, emissions.shape[1])
            if label_mask is not None:
                checks.label_mask_values(label_mask)
            checks.finite(self._scores)

    def __repr__(self) -> str:
        B, T, K = self._scores.emissions.shape
        order = "" if self._scores.skips is None else ", order=2"
        return f"ChainCRF(B={B}, T={T}, K={K}, dtype={self._scores.emissions.dtype}{order})"

    @property
    def _has_gradient(self) -> bool:
        scores = self._scores
        if not torch.is_grad_enabled():
            return False
        from_skips = scores.skips is not None and scores.skips.requires_grad
        return from_skips or scores.emissions.requires_grad or scores.transitions.requires_grad

    @property
    def _second_order(self) -> bool:
        return self._scores.skips is not None and self._scores.emissions.shape[1] > 2

    # ---- losses ----

    @property
    def log_partition(self) -> Tensor:
        """The log-partition function log Z, (B,), by the forward algorithm."""
        return loss(self._scores, None)

    def kl(self, q: Tensor, labelled: Tensor | None = None) -> Tensor:
        r"""KL(q ‖ p) for factorised soft targets, (B,): the soft-label loss, in closed form

        .. math:: \log Z - \sum_t q_t^\top ε_t - \sum_t q_{t-1}^\top τ_t\, q_t + \sum_t \sum_k q_t(k) \log q_t(k),

        and with skips :math:`- \sum_t q_{t-2}^\top φ_t\, q_t` more. Its gradient is the difference of moments:
        p(y_t) − q_t for the emissions, p(y_{t-1}, y_t) − q_{t-1} q_tᵀ for the transitions and
        p(y_{t-2}, y_t) − q_{t-2} q_tᵀ for the skips. It also flows to q if q requires grad.

        Args:
            q: (B, T, K), each row a distribution over the allowed labels; zeros are allowed.
            labelled: (B, T) bool, the steps S that have a target. The result is KL(q_S ‖ p_S) with p_S the model's
                marginal over S: the other steps are marginalised exactly, q there is ignored, and it is 0 where S is
                empty. A gap between two labelled steps costs O(K³). With skips it couples the labelled steps beside it:
                it costs as much as there are combinations of labels with mass in q, and more than 16,384 are refused.
        """
        scores = self._scores
        checks.target_shape(q, scores.emissions)
        if labelled is not None:
            checks.mask("labelled", labelled, tuple(scores.emissions.shape[:2]), scores.emissions)
        if self.validate:
            checks.target_values(q, scores, labelled)
        q = q.to(scores.emissions.dtype)
        if labelled is not None:
            return (second_order_gaps.labelled_loss if self._second_order else labelled_loss)(scores, q, labelled)
        return soft_label_loss(scores, q.contiguous())

    def nll(self, labels: Tensor) -> Tensor:
        """Negative log-likelihood −log p(labels), (B,), of hard labels (B, T) of integers."""
        scores = self._scores
        checks.labels_shape(labels, scores.emissions)
        labels, alive = labels.to(torch.int64), scores.alive()
        if self.validate:
            checks.labels_values(labels, scores)
        labels = labels if alive is None else torch.where(alive, labels, 0)
        one_hot = torch.zeros_like(scores.emissions, requires_grad=False).scatter(2, labels[:, :, None], 1.0)
        return loss(scores, one_hot)

    def log_prob(self, labels: Tensor) -> Tensor:
        """log p(labels), (B,), for hard labels (B, T) of integers."""
        return -self.nll(labels)

    def partial_nll(self, allowed: Tensor) -> Tensor:
        """−log Σ p(y) over the label sequences within the sets ``allowed`` (B, T, K) bool, (B,): partial labels."""
        scores = self._scores
        checks.mask("allowed", allowed, tuple(scores.emissions.shape), scores.emissions)
        if self.validate:
            checks.allowed_values(allowed, scores)
        within = torch.where(allowed, scores.emissions, FLOOR)
        return self.log_partition - loss(dataclasses.replace(scores, emissions=within), None)

    def kl_chain(self, other: ChainCRF) -> Tensor:
        """KL(p ‖ p') from this chain to another over the same steps and labels, (B,); either may have skips."""
        checks.same_chain(other._scores, self._scores, self.validate)
        return divergence.divergence(self._scores, other._scores).to(self._scores.emissions.dtype)

    def cross_entropy_chain(self, other: ChainCRF) -> Tensor:
        """−Σ p(y) log p'(y), (B,), with p' another chain over the same steps and labels; either may have skips."""
        checks.same_chain(other._scores, self._scores, self.validate)
        return divergence.cross_entropy(self._scores, other._scores).to(self._scores.emissions.dtype)

    # ---- expectations ----

    @property
    def marginals(self) -> Tensor:
        """The marginals p(y_t), (B, T, K), by forward-backward."""
        if self._follows_plain_recursion:
            return self._plain_moments()[0].to(self._scores.emissions.dtype)
        return marginals(self._scores, links=False)[0]

    @property
    def pair_marginals(self) -> Tensor:
        """The pairwise marginals p(y_{t-1}, y_t), (B, T-1, K, K), by forward-backward."""
        return self._moment(1)

    @property
    def skip_marginals(self) -> Tensor:
        """The pairwise marginals p(y_{t-2}, y_t) of labels two steps apart, (B, T-2, K, K), with or without skips."""
        if self._second_order:
            return self._moment(2)
        found = second_order.skip_marginals_of_first_order(self._scores.clean().double())
        return found.to(self._scores.emissions.dtype)

    @property
    def entropy(self) -> Tensor:
        """H(p) = −Σ p(y) log p(y), (B,)."""
        entropy = second_order.entropy if self._second_order else recursion.entropy
        return entropy(self._scores.clean().double()).to(self._scores.emissions.dtype)

    @property
    def _follows_plain_recursion(self) -> bool:
        """For moments with a gradient, and where compilers or torch.func must see every operation."""
        if self._second_order:
            return self._has_gradient or is_transformed()
        return self._has_gradient or not has_values(self._scores.emissions)

    def _plain_moments(self) -> tuple[Tensor, ...]:
        return (second_order.smooth_pairs if self._second_order else recursion.smooth)(self._scores.clean().double())

    def _moment(self, distance: int) -> Tensor:
        """The joint distribution of two steps so far apart."""
        scores, (B, T, K) = self._scores, self._scores.emissions.shape
        if distance >= T:
            return scores.emissions.new_zeros(B, 0, K, K)
        if self._follows_plain_recursion:
            return self._plain_moments()[distance].to(scores.emissions.dtype)
        skips = scores.skips if scores.skips is None or T < 3 else scores.skips.expand(B, T - 2, K, K)
        full = scores.transitions.expand(B, T - 1, K, K)  # one for each step: nothing is to be summed
        return marginals(dataclasses.replace(scores, transitions=full, skips=skips), links=True)[distance]

    # ---- decoding and sampling ----

    def viterbi(self) -> tuple[Tensor, Tensor]:
        """The highest-scoring label sequence (B, T) and its score (B,), whose gradient flows along that path."""
        scores = self._scores
        if self._second_order:
            assert scores.skips is not None
            given = scores.emissions, scores.transitions, scores.lengths, scores.label_mask, scores.skips
            labels = second_order_viterbi(*(None if tensor is None else tensor.detach() for tensor in given))
        elif uses_kernel(scores.emissions) and has_values(scores.emissions):
            labels, score = kernel.viterbi(scores)
            if not self._has_gradient:
                return labels, score.to(self._scores.emissions.dtype)
        else:
            labels = recursion.viterbi(self._scores.clean())
        return labels, recursion.path_score(self._scores.clean(), labels[:, None])[:, 0]

    def smoothing(self) -> Tensor:
        """The most probable label of each step, (B, T): the argmax of the marginals (posterior decoding)."""
        with torch.no_grad():
            return self.marginals.argmax(-1)  # 0 past the end, where all marginals are 0

    def kbest(self, n: int) -> tuple[Tensor, Tensor]:
        """The n best label sequences (B, n, T), best first, and their scores (B, n).

        Exact; the sequences are distinct, and ties are in no particular order. Where a chain has fewer than n
        sequences the rest have score −inf and labels 0.
        """
        n, chain = _count(n), self._scores.clean()
        with torch.no_grad():
            labels, exists = (second_order if self._second_order else recursion).kbest(chain, n)
        score = recursion.path_score(chain, labels)
        return labels, torch.where(exists, score, -torch.inf)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n independent exact samples, (B, n, T), by forward filtering, backward sampling (FFBS)."""
        with torch.no_grad():
            sample = second_order.sample if self._second_order else recursion.sample
            return sample(self._scores.clean(), _count(n), generator)


def _by_rows(links: Tensor, dtype: torch.dtype) -> Tensor:
    """Four dimensions, cast to ``dtype`` with each (K, K) contiguous; expanded dimensions stay expanded."""
    links = links if links.dim() == 4 else links[None, None]
    K = links.shape[-1]
    if links.dtype == dtype and links.stride(-1) == 1 and links.stride(-2) == K:
        return links
    over_b, over_t = (1 if stride == 0 else None for stride in links.stride()[:2])
    return links[:over_b, :over_t].to(dtype).contiguous().expand(links.shape)


def _count(n: int) -> int:
    try:
        count = operator.index(n)
    except TypeError:
        count = 0
    if count < 1:
        checks.refuse("n", "an integer of at least 1", n)
    return count
