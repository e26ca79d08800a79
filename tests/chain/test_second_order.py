"""Chains with skips against brute-force enumeration, method by method."""

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from enumeration import Case, cases
from phrasechain import ChainCRF
from phrasechain.chain import second_order, second_order_gaps
from phrasechain.chain.recursion import ChainScores

EXACT = 1e-10
slow_data = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
skip_cases = cases(most=(3, 5, 3), second_order=True)


def crf_of(case: Case) -> ChainCRF:
    return ChainCRF(*case.arguments, skips=case.skips)


def assert_close(found: Tensor, expected: object, tolerance: float = EXACT) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), atol=tolerance, rtol=tolerance)


@slow_data
@given(skip_cases)
def test_losses(case: Case) -> None:
    crf, chains = crf_of(case), case.chains()
    assert_close(crf.log_partition, [chain.log_z for chain in chains])
    assert_close(crf.kl(case.q), [chain.kl(q) for chain, q in zip(chains, case.q, strict=True)])


@slow_data
@given(cases(most=(2, 7, 3), second_order=True), st.data())
def test_kl_of_labelled_steps(case: Case, data: st.DataObject) -> None:
    """Gaps of any length at the ends, inside, and with one labelled step between them."""
    B, T, _ = case.emissions.shape
    labelled = torch.tensor(
        data.draw(st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=B, max_size=B))
    )
    q = torch.where(labelled[:, :, None], case.q, torch.nan)  # ignored elsewhere
    expected = [
        chain.kl(q[b], [t for t in range(chain.length) if labelled[b, t]]) for b, chain in enumerate(case.chains())
    ]
    assert_close(crf_of(case).kl(q, labelled), expected)


@slow_data
@given(skip_cases, st.data())
def test_hard_labels(case: Case, data: st.DataObject) -> None:
    chains = case.chains()
    picks = [data.draw(st.integers(0, len(chain.paths) - 1)) for chain in chains]
    labels = torch.full(case.emissions.shape[:2], 10**9)  # out of range past the end
    for b, (chain, pick) in enumerate(zip(chains, picks, strict=True)):
        labels[b, : chain.length] = torch.tensor(chain.paths[pick])
    crf = crf_of(case)
    expected = [chain.log_z - chain.scores[pick] for chain, pick in zip(chains, picks, strict=True)]
    assert_close(crf.nll(labels), expected)
    assert_close(-crf.log_prob(labels), expected)


@slow_data
@given(skip_cases, st.integers(0, 2**31))
def test_partial_labels(case: Case, seed: int) -> None:
    allowed = torch.rand(case.emissions.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    allowed = allowed | ~(allowed & case.valid).any(-1, keepdim=True)
    expected = [chain.partial_nll(allowed[b]) for b, chain in enumerate(case.chains())]
    assert_close(crf_of(case).partial_nll(allowed), expected)


@slow_data
@given(skip_cases, st.booleans())
def test_expectations(case: Case, with_gradient: bool) -> None:
    case.emissions.requires_grad_(with_gradient)
    crf, chains = crf_of(case), case.chains()
    assert_close(crf.marginals, torch.stack([chain.marginals() for chain in chains]))
    assert_close(crf.pair_marginals, torch.stack([chain.pair_marginals() for chain in chains]))
    assert_close(crf.skip_marginals, torch.stack([chain.skip_marginals() for chain in chains]))
    assert_close(crf.entropy, [chain.entropy() for chain in chains])


@slow_data
@given(cases(most=(3, 5, 3)))
def test_skip_marginals_without_skips(case: Case) -> None:
    expected = torch.stack([chain.skip_marginals() for chain in case.chains()])
    assert_close(ChainCRF(*case.arguments).skip_marginals, expected)


@slow_data
@given(skip_cases, st.sampled_from([torch.float32, torch.float64]), st.sampled_from([1, 6, 30]))
def test_best_paths(each_backend: str, case: Case, dtype: torch.dtype, n: int) -> None:
    tolerance = 1e-5 if dtype == torch.float32 else EXACT
    assert case.skips is not None
    given_skips = case.skips.to(dtype)
    crf = ChainCRF(
        case.emissions.to(dtype), case.transitions.to(dtype), case.lengths, case.label_mask, skips=given_skips
    )
    labels, score = crf.viterbi()
    many, scores = crf.kbest(n)
    for b, chain in enumerate(case.chains()):
        ranked = chain.ranked()
        assert_close(score[b], ranked[0][0], tolerance)
        best = tuple(labels[b, : chain.length].tolist())
        assert chain.scores[chain.paths.index(best)] == pytest.approx(ranked[0][0], abs=tolerance)
        found = [tuple(path) for path in many[b, :, : chain.length].tolist()]
        count = min(n, len(ranked))
        assert len(set(found[:count])) == count
        assert_close(scores[b, :count], [each for each, _ in ranked[:count]], tolerance)
        for path, value in zip(found[:count], scores[b, :count].tolist(), strict=True):
            assert chain.scores[chain.paths.index(path)] == pytest.approx(value, abs=tolerance)
        assert torch.isneginf(scores[b, count:]).all()
        assert (many[b, count:] == 0).all()
        assert (labels[b, chain.length :] == 0).all()
        assert (many[b, :, chain.length :] == 0).all()


@slow_data
@given(skip_cases)
def test_smoothing(case: Case) -> None:
    found = crf_of(case).smoothing()
    for b, chain in enumerate(case.chains()):
        marginals = chain.marginals()
        for t in range(case.emissions.shape[1]):
            assert marginals[t, found[b, t]] == pytest.approx(float(marginals[t].max()), abs=EXACT)
            assert t < chain.length or found[b, t] == 0


def test_kbest_of_tied_sequences_gives_each_once() -> None:
    labels, scores = ChainCRF(torch.zeros(1, 3, 2), torch.zeros(2, 2), skips=torch.zeros(2, 2)).kbest(10)
    assert len(set(map(tuple, labels[0, :8].tolist()))) == 8
    assert scores.tolist() == [[0.0] * 8 + [-math.inf] * 2]


def test_samples_follow_the_distribution() -> None:
    """A chi-square test of all the sequences of a small ragged chain; it fails by chance once in 1,000 seeds."""
    generator = torch.Generator().manual_seed(7)
    emissions, transitions, skips = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 3, 3), (2, 1, 3, 3), (3, 3))
    )
    mask = torch.tensor([[True, True, True], [True, False, True]])
    case = Case(emissions, transitions, torch.tensor([3, 2]), mask, torch.empty(0), generator, skips)
    n = 20_000
    samples = crf_of(case).sample(n, generator)
    assert samples.shape == (2, n, 3)
    assert (samples[1, :, 2] == 0).all()
    for b, (chain, critical) in enumerate(zip(case.chains(), (54.05, 16.27), strict=True)):  # 26 and 3 degrees, 0.001
        counts = dict.fromkeys(chain.paths, 0)
        for path in samples[b, :, : chain.length].tolist():
            counts[tuple(path)] += 1
        expected = [(path, n * p) for path, p in zip(chain.paths, chain.probabilities, strict=True)]
        assert sum((counts[path] - mean) ** 2 / mean for path, mean in expected) < critical


@slow_data
@given(skip_cases)
def test_gradients_match_moments(case: Case) -> None:
    """∂KL/∂φ = p(y_{t-2}, y_t) − q_{t-2} q_tᵀ, and those of emissions and transitions, from enumeration."""
    B, T, K = case.emissions.shape
    assert case.skips is not None

    def full(links: Tensor, distance: int) -> Tensor:
        four = links if links.dim() == 4 else links[None, None]
        return (four.expand(B, T - distance, K, K) if distance < T else four.new_zeros(B, 0, K, K)).clone()

    emissions = case.emissions.clone().requires_grad_()
    links = [full(case.transitions, 1).requires_grad_(), full(case.skips, 2).requires_grad_()]
    ChainCRF(emissions, links[0], case.lengths, case.label_mask, skips=links[1]).kl(case.q).sum().backward()
    q, chains = torch.where(case.valid, case.q, 0.0), case.chains()
    expected = torch.stack([chain.marginals() for chain in chains]) - q
    assert emissions.grad is not None
    assert_close(emissions.grad, torch.where(case.valid, expected, 0.0))
    for distance, leaf in enumerate(links, start=1):
        assert leaf.grad is not None
        if distance < T:
            joints = [chain.pair_marginals() if distance == 1 else chain.skip_marginals() for chain in chains]
            joint = torch.stack(joints)
            assert_close(leaf.grad, joint - q[:, :-distance, :, None] * q[:, distance:, None, :])


@slow_data
@given(cases(most=(3, 5, 8), second_order=True), st.sampled_from([1.0, 1e30, math.inf, math.nan]))
def test_padding_never_leaks(each_backend: str, case: Case, junk: float) -> None:
    """Values and gradients are those of the trimmed sequences, whatever stands in the padding."""
    assert case.skips is not None
    emissions = torch.where(case.valid, case.emissions, junk).float().requires_grad_()
    given_links = [torch.where(links.isnan(), junk, links).float() for links in (case.transitions, case.skips)]
    links = [each.requires_grad_() for each in given_links]
    q = torch.where(case.valid, case.q, junk if case.label_mask is None else 0.0).float()
    value = ChainCRF(emissions, links[0], case.lengths, case.label_mask, skips=links[1]).kl(q)
    value.sum().backward()
    assert emissions.grad is not None
    assert (emissions.grad[~case.valid] == 0).all()
    for before, leaf in zip((case.transitions, case.skips), links, strict=True):
        assert leaf.grad is not None
        assert (leaf.grad[before.isnan()] == 0).all()
        assert leaf.grad.isfinite().all()
    for b, chain in enumerate(case.chains()):
        assert_close(value[b], chain.kl(case.q[b]), 2e-5)


@slow_data
@given(skip_cases, st.booleans(), st.booleans())
def test_divergence_between_chains(case: Case, mine: bool, theirs: bool) -> None:
    """With and without skips on either side."""
    torch.manual_seed(0)
    B, T, K = case.emissions.shape
    other = Case(
        torch.randn(B, T, K, dtype=torch.float64),
        torch.randn(K, K, dtype=torch.float64),
        case.lengths,
        case.label_mask,
        case.q,
        case.generator,
        torch.randn(K, K, dtype=torch.float64) if theirs else None,
    )
    case.skips = case.skips if mine else None
    p, r = crf_of(case), crf_of(other)
    pairs = list(zip(case.chains(), other.chains(), strict=True))
    cross = [one.cross_entropy(two) for one, two in pairs]
    assert_close(p.cross_entropy_chain(r), cross)
    assert_close(p.kl_chain(r), [value - one.entropy() for value, (one, _) in zip(cross, pairs, strict=True)])
    assert_close(p.kl_chain(p), [0.0] * B)


def test_divergence_refuses_another_kind_of_chain() -> None:
    crf = ChainCRF(torch.zeros(2, 3, 4), torch.zeros(4, 4), torch.tensor([3, 2]))
    with pytest.raises(ValueError, match="other: expected a chain of emissions"):
        crf.kl_chain(ChainCRF(torch.zeros(2, 3, 5), torch.zeros(5, 5)))
    with pytest.raises(ValueError, match="other: expected a chain of the same lengths"):
        crf.cross_entropy_chain(ChainCRF(torch.zeros(2, 3, 4), torch.zeros(4, 4)))


def test_too_many_combinations_beside_a_gap_are_refused() -> None:
    q = torch.full((1, 5, 12), 1 / 12)
    crf = ChainCRF(torch.zeros(1, 5, 12), torch.zeros(12, 12), skips=torch.zeros(12, 12))
    labelled = torch.tensor([[True, True, False, True, True]])
    message = r"at most 16,384 combinations .* got 20,736 at steps \[0, 1, 3, 4\] of sequence 0"
    with pytest.raises(ValueError, match=message):
        crf.kl(q, labelled)
    assert second_order_gaps.MOST_COMBINATIONS == 16_384
    for gap in (slice(0, 3), slice(3, 5)):  # at the ends there is no bound
        labelled = torch.ones(1, 5, dtype=torch.bool)
        labelled[:, gap] = False
        assert_close(crf.kl(q, labelled), [0.0], 1e-6)


@pytest.mark.parametrize("steps", [1, 2])
def test_short_chains_take_any_form_of_skips(each_backend: str, steps: int) -> None:
    q = torch.full((2, steps, 3), 1 / 3)
    expected = ChainCRF(torch.ones(2, steps, 3), torch.ones(3, 3)).kl(q)
    for shape in ((3, 3), (2, 1, 3, 3), (1, 1, 3, 3), (1, 0, 3, 3), (2, 0, 3, 3)):
        skips = torch.zeros(shape, requires_grad=True)
        crf = ChainCRF(torch.ones(2, steps, 3), torch.ones(3, 3), skips=skips)
        assert_close(crf.kl(q).detach(), expected)
        (grad,) = torch.autograd.grad(crf.kl(q).sum(), skips)
        assert torch.equal(grad, torch.zeros(shape))
        assert crf.skip_marginals.shape == (2, 0, 3, 3)


@pytest.mark.parametrize(
    ("skips", "message"),
    [
        (torch.zeros(2, 3, 3), "skips: expected .* 4 dimensions"),
        (torch.zeros(2, 3, 3, 3), r"skips: expected \(2 or 1, 2 or 1, 3, 3\)"),
        (torch.zeros(4, 4), "skips: expected .* with K = 3"),
        (torch.full((3, 3), math.nan), "skips: expected finite scores"),
        (torch.zeros(3, 3, dtype=torch.int64), "skips: expected a floating-point dtype"),
    ],
)
def test_refused(skips: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChainCRF(torch.zeros(2, 4, 3), torch.zeros(3, 3), skips=skips)


def test_three_steps_are_the_fully_connected_model() -> None:
    """Every pair of labels is scored: a permutation of the steps permutes the answers."""
    torch.manual_seed(0)
    emissions = torch.randn(1, 3, 4, dtype=torch.float64)
    ab, bc, ac = (torch.randn(4, 4, dtype=torch.float64) for _ in range(3))
    straight = ChainCRF(emissions, torch.stack([ab, bc])[None], skips=ac)
    turned = ChainCRF(emissions[:, [1, 0, 2]], torch.stack([ab.T, ac])[None], skips=bc)
    assert_close(straight.log_partition, turned.log_partition)
    assert_close(straight.marginals[:, [1, 0, 2]], turned.marginals)


class LargestTensor(TorchDispatchMode):
    """Watches how many values the largest tensor has that any operation makes."""

    largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return found


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_nothing_of_the_size_of_all_triples_is_built(scale: float) -> None:
    """Neither by Viterbi and k-best nor in the log domain, its gradient included."""
    B, T, K, n = 2, 4, 24, 3
    torch.manual_seed(0)
    scores = ChainScores(
        torch.randn(B, T, K) * scale,
        torch.randn(B, T - 1, K, K) * scale,
        None,
        None,
        torch.randn(B, T - 2, K, K) * scale,
    )
    for call in (
        lambda: second_order.viterbi(scores.clean()),
        lambda: second_order.kbest(scores.clean(), n),
        lambda: second_order.smooth_pairs(scores.clean().double()),
        lambda: second_order.entropy(scores.clean().double()),
        lambda: second_order.sample(scores.clean(), n, None),
    ):
        with LargestTensor() as watch:
            call()
        assert 0 < watch.largest <= B * T * K * K
