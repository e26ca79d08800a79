"""ChainCRF against brute-force enumeration, method by method, and the conventions of the paper."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from enumeration import Case, cases
from phrasechain import ChainCRF

EXACT = 1e-10
TOY = torch.tensor([[[0.5, -1.0], [2.0, 0.0]]]), torch.tensor([[1.0, -2.0], [0.5, 3.0]])
TOY_TARGET = torch.tensor([[[0.7, 0.3], [0.4, 0.6]]])
slow_data = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def assert_close(found: Tensor, expected: object, tolerance: float = EXACT) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), atol=tolerance, rtol=tolerance)


def test_toy_pins_the_conventions(each_backend: str) -> None:
    crf = ChainCRF(*TOY)
    assert_close(crf.log_partition, [3.811303], 1e-6)
    assert_close(crf.kl(TOY_TARGET), [1.637427], 1e-6)
    transposed = ChainCRF(TOY[0], TOY[1].T)
    assert_close(transposed.log_partition, [3.774843], 1e-6)
    assert_close(transposed.kl(TOY_TARGET), [0.850967], 1e-6)


@slow_data
@given(cases())
def test_losses(case: Case) -> None:
    crf, chains = ChainCRF(*case.arguments), case.chains()
    assert_close(crf.log_partition, [chain.log_z for chain in chains])
    assert_close(crf.kl(case.q), [chain.kl(q) for chain, q in zip(chains, case.q, strict=True)])


@slow_data
@given(cases(), st.data())
def test_kl_of_labelled_steps(case: Case, data: st.DataObject) -> None:
    B, T, _ = case.emissions.shape
    labelled = torch.tensor(
        data.draw(st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=B, max_size=B))
    )
    q = torch.where(labelled[:, :, None], case.q, torch.nan)  # ignored elsewhere
    expected = [
        chain.kl(q[b], [t for t in range(chain.length) if labelled[b, t]]) for b, chain in enumerate(case.chains())
    ]
    assert_close(ChainCRF(*case.arguments).kl(q, labelled), expected)


def test_kl_of_labelled_is_neither_dropping_nor_filling() -> None:
    torch.manual_seed(0)
    emissions, transitions = torch.randn(1, 3, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    q = torch.rand(1, 3, 4, dtype=torch.float64).softmax(-1)
    labelled = torch.tensor([[True, False, True]])
    crf = ChainCRF(emissions, transitions)
    found = crf.kl(q, labelled)
    dropped = ChainCRF(emissions[:, ::2], transitions).kl(q[:, ::2])
    filled = crf.kl(torch.where(labelled[:, :, None], q, crf.marginals))
    assert (found - dropped).abs() > 1e-3
    assert (found - filled).abs() > 1e-3


@slow_data
@given(cases(), st.data())
def test_hard_labels(case: Case, data: st.DataObject) -> None:
    chains = case.chains()
    picks = [data.draw(st.integers(0, len(chain.paths) - 1)) for chain in chains]
    labels = torch.full(case.emissions.shape[:2], 10**9)  # out of range past the end
    for b, (chain, pick) in enumerate(zip(chains, picks, strict=True)):
        labels[b, : chain.length] = torch.tensor(chain.paths[pick])
    crf = ChainCRF(*case.arguments)
    nll = crf.nll(labels)
    assert_close(nll, [chain.log_z - chain.scores[pick] for chain, pick in zip(chains, picks, strict=True)])
    assert_close(crf.log_prob(labels), -nll)
    inside = torch.where(case.alive, labels, 0)
    one_hot = torch.nn.functional.one_hot(inside, case.emissions.shape[2]).double()
    assert_close(crf.kl(one_hot), nll)


@slow_data
@given(cases(), st.data())
def test_partial_labels(case: Case, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**31))
    allowed = torch.rand(case.emissions.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    none = ~(allowed & case.valid).any(-1, keepdim=True)
    allowed = allowed | none
    expected = [chain.partial_nll(allowed[b]) for b, chain in enumerate(case.chains())]
    assert_close(ChainCRF(*case.arguments).partial_nll(allowed), expected)


@slow_data
@given(cases())
def test_expectations(case: Case) -> None:
    crf, chains = ChainCRF(*case.arguments), case.chains()
    assert_close(crf.marginals, torch.stack([chain.marginals() for chain in chains]))
    assert_close(crf.pair_marginals, torch.stack([chain.pair_marginals() for chain in chains]))
    assert_close(crf.entropy, [chain.entropy() for chain in chains])


@slow_data
@given(cases(), st.sampled_from([torch.float32, torch.float64]))
def test_best_paths(case: Case, dtype: torch.dtype) -> None:
    B, T, _ = case.emissions.shape
    tolerance = 1e-5 if dtype == torch.float32 else EXACT
    crf = ChainCRF(case.emissions.to(dtype), case.transitions.to(dtype), case.lengths, case.label_mask)
    labels, score = crf.viterbi()
    many, scores = crf.kbest(6)
    assert many.shape == (B, 6, T)
    for b, chain in enumerate(case.chains()):
        ranked = chain.ranked()
        assert_close(score[b], ranked[0][0], tolerance)
        assert chain.scores[chain.paths.index(tuple(labels[b, : chain.length].tolist()))] == pytest.approx(
            ranked[0][0], abs=tolerance
        )
        found = [tuple(path) for path in many[b, :, : chain.length].tolist()]
        count = min(6, len(ranked))
        assert len(set(found[:count])) == count
        assert_close(scores[b, :count], [each for each, _ in ranked[:count]], tolerance)
        for path, value in zip(found[:count], scores[b, :count].tolist(), strict=True):
            assert chain.scores[chain.paths.index(path)] == pytest.approx(value, abs=tolerance)
        assert torch.isneginf(scores[b, count:]).all()
        assert (many[b, count:] == 0).all()
        assert (labels[b, chain.length :] == 0).all()
        assert (many[b, :, chain.length :] == 0).all()


@slow_data
@given(cases())
def test_smoothing_takes_the_likeliest_label_of_each_step(case: Case) -> None:
    found = ChainCRF(*case.arguments).smoothing()
    for b, chain in enumerate(case.chains()):
        marginals = chain.marginals()
        for t in range(case.emissions.shape[1]):
            assert marginals[t, found[b, t]] == pytest.approx(float(marginals[t].max()), abs=EXACT)
            assert t < chain.length or found[b, t] == 0


def test_kbest_of_tied_sequences_gives_each_once() -> None:
    labels, scores = ChainCRF(torch.zeros(1, 3, 2), torch.zeros(2, 2)).kbest(10)
    assert sorted(map(tuple, labels[0, :8].tolist())) == sorted(
        (a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)
    )
    assert scores.tolist() == [[0.0] * 8 + [-math.inf] * 2]


def test_samples_follow_the_distribution() -> None:
    """A chi-square test of all the sequences of a small ragged chain; it fails by chance once in 10,000 seeds."""
    generator = torch.Generator().manual_seed(7)
    emissions, transitions = torch.randn(2, 3, 3, generator=generator), torch.randn(2, 1, 3, 3, generator=generator)
    case = Case(
        emissions.double(),
        transitions.double(),
        torch.tensor([3, 2]),
        torch.tensor([[True, True, True], [True, False, True]]),
        torch.empty(0),
        generator,
    )
    n = 20_000
    samples = ChainCRF(emissions, transitions, case.lengths, case.label_mask).sample(n, generator)
    assert samples.shape == (2, n, 3)
    assert (samples[1, :, 2] == 0).all()
    for b, (chain, critical) in enumerate(zip(case.chains(), (54.05, 21.11), strict=True)):  # 26 and 3 degrees, 0.001
        counts = dict.fromkeys(chain.paths, 0)
        for path in samples[b, :, : chain.length].tolist():
            counts[tuple(path)] += 1
        chi = sum(
            (counts[path] - n * p) ** 2 / (n * p) for path, p in zip(chain.paths, chain.probabilities, strict=True)
        )
        assert chi < critical


def test_samples_repeat_with_a_generator() -> None:
    crf = ChainCRF(*TOY)
    first, second = (crf.sample(50, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


@slow_data
@given(cases(most=(3, 4, 10)), st.sampled_from([1.0, 1e30, -1e30, math.inf, -math.inf, math.nan]))
def test_padding_never_leaks(each_backend: str, case: Case, junk: float) -> None:
    """Values and gradients are those of the trimmed sequences, whatever the padding contains."""
    emissions = torch.where(case.valid, case.emissions, junk).float().requires_grad_()
    transitions = torch.where(case.transitions.isnan(), junk, case.transitions).float().requires_grad_()
    q = torch.where(case.valid, case.q, junk if case.label_mask is None else 0.0).float()
    crf = ChainCRF(emissions, transitions, case.lengths, case.label_mask)
    value = crf.kl(q)
    value.sum().backward()
    assert emissions.grad is not None
    assert (emissions.grad[~case.valid] == 0).all()
    for b, chain in enumerate(case.chains()):
        labels = slice(None) if case.label_mask is None else case.label_mask[b]
        trimmed = emissions.detach()[b : b + 1, : chain.length, labels].clone().requires_grad_()
        steps = transitions.detach() if transitions.dim() == 4 else transitions.detach()[None, None]
        steps = steps[b if len(steps) > 1 else 0, : max(chain.length - 1, 1)][None][..., labels, :][..., labels]
        alone = ChainCRF(trimmed, steps).kl(q[b : b + 1, : chain.length, labels])
        alone.sum().backward()
        assert_close(value[b : b + 1], alone.detach(), 2e-6)
        assert trimmed.grad is not None
        assert_close(emissions.grad[b, : chain.length, labels], trimmed.grad[0], 2e-6)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_every_quantity_works_without_a_graph(each_backend: str, mode: type) -> None:
    torch.manual_seed(0)
    emissions, transitions = torch.randn(2, 4, 3, requires_grad=True), torch.randn(2, 3, 3, 3, requires_grad=True)
    q, labels = torch.rand(2, 4, 3).softmax(-1), torch.randint(3, (2, 4))
    labelled = torch.tensor([[True, False, True, False], [False, True, True, True]])

    def everything() -> list[Tensor]:
        crf = ChainCRF(emissions, transitions, torch.tensor([4, 2]))
        allowed = torch.ones(2, 4, 3, dtype=torch.bool)
        found = [crf.log_partition, crf.kl(q), crf.kl(q, labelled), crf.nll(labels), crf.log_prob(labels)]
        found += [crf.partial_nll(allowed), crf.marginals, crf.pair_marginals, crf.entropy, crf.smoothing()]
        return [*found, *crf.viterbi(), *crf.kbest(3), crf.sample(2, torch.Generator().manual_seed(0))]

    with_graph = everything()
    with mode():
        without = everything()
    for one, other in zip(with_graph, without, strict=True):
        assert not other.requires_grad
        torch.testing.assert_close(one.detach(), other, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(each_backend: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    emissions, transitions = torch.randn(2, 5, 4, dtype=dtype), torch.randn(4, 4, dtype=dtype)
    q = torch.rand(2, 5, 4).softmax(-1).to(dtype)
    emissions.requires_grad_()
    found = ChainCRF(emissions, transitions).kl(q)
    found.sum().backward()
    exact = ChainCRF(emissions.detach().double(), transitions.double(), validate=False).kl(q.double())
    assert found.dtype == torch.float32
    assert_close(found, exact, 1e-5)
    assert emissions.grad is not None
    assert emissions.grad.dtype == dtype


def test_autocast_leaves_the_chain_in_float32(each_backend: str) -> None:
    torch.manual_seed(0)
    emissions, transitions = torch.randn(3, 4, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    q = torch.rand(3, 4, 5).softmax(-1)
    grads = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            value = ChainCRF(emissions, transitions).kl(q)
        grads.append((value, *torch.autograd.grad(value.sum(), (emissions, transitions))))
    for plain, cast in zip(*grads, strict=True):
        assert torch.equal(plain, cast)


def test_expanded_transitions_and_other_strides(each_backend: str) -> None:
    torch.manual_seed(0)
    shared = torch.randn(5, 5, requires_grad=True)
    emissions, q = torch.randn(3, 4, 5), torch.rand(3, 4, 5).softmax(-1)
    plain = ChainCRF(emissions, shared).kl(q)
    expanded = ChainCRF(emissions, shared.expand(3, 3, 5, 5)).kl(q)
    turned = ChainCRF(emissions.transpose(0, 1).contiguous().transpose(0, 1), shared.T.contiguous().T).kl(q)
    for other in (expanded, turned):
        assert_close(other, plain.detach(), 1e-6)
    (one,), (two,) = (torch.autograd.grad(value.sum(), shared) for value in (plain, expanded))
    assert_close(one, two, 1e-6)


@pytest.mark.parametrize("shape", [(3, 3), (2, 1, 3, 3), (1, 3, 3, 3), (2, 3, 3, 3)])
def test_transitions_that_no_sequence_may_take_hold_anything(each_backend: str, shape: tuple[int, ...]) -> None:
    """Also those that only a sequence of one step could have taken, and all where every sequence has one step."""
    mask = torch.tensor([[True, False, False], [True, True, False]])
    for lengths, used in ((torch.tensor([4, 1]), 1), (torch.tensor([1, 1]), 0)):
        emissions = torch.where(mask[:, None], 0.0, math.nan).expand(2, 4, 3).clone().requires_grad_()
        transitions = torch.full(shape, math.nan)
        transitions[0 if len(shape) == 4 else ..., ..., :used, :used] = 0.0
        transitions.requires_grad_()
        crf = ChainCRF(emissions, transitions, lengths, mask)
        assert_close(crf.log_partition, [0.0, math.log(2)], 1e-6)
        assert_close(crf.marginals[1, 0], [0.5, 0.5, 0.0], 1e-6)
        assert_close(crf.entropy, [0.0, math.log(2)], 1e-6)
        assert crf.viterbi()[0].tolist() == [[0] * 4, [0] * 4]
        crf.log_partition.sum().backward()
        for leaf, count in ((emissions, int(lengths.sum())), (transitions, used * 3)):
            assert leaf.grad is not None
            assert_close(leaf.grad.sum(), float(count), 1e-6)


def test_masked_labels_are_out_of_reach_of_any_score(each_backend: str) -> None:
    """Whatever low scores the allowed labels have."""
    emissions, mask = torch.full((1, 3, 4), -1e12), torch.tensor([[True, True, False, False]])
    crf = ChainCRF(emissions, torch.zeros(4, 4), None, mask)
    assert_close(crf.marginals, torch.tensor([0.5, 0.5, 0.0, 0.0]).expand(1, 3, 4), 1e-6)
    assert int(crf.sample(50, torch.Generator().manual_seed(0)).max()) == 1
    assert int(crf.viterbi()[0].max()) <= 1


def test_defaults_of_torch_do_not_matter(each_backend: str) -> None:
    torch.manual_seed(0)
    emissions, q = torch.randn(3, 4, 9), torch.rand(3, 4, 9).softmax(-1)
    lengths = torch.tensor([4, 2, 1])

    def everything(transitions: Tensor) -> list[Tensor]:
        inputs = emissions.clone().requires_grad_(), transitions.clone().requires_grad_()
        crf = ChainCRF(*inputs, lengths)
        grads = torch.autograd.grad(crf.kl(q).sum(), inputs)
        return [*grads, crf.marginals, crf.entropy, *crf.viterbi(), *crf.kbest(2)]

    for transitions in (torch.randn(9, 9), torch.randn(3, 3, 9, 9)):
        expected = everything(transitions)
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("meta"):
                found = everything(transitions)
        finally:
            torch.set_default_dtype(torch.float32)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_expanded_transitions_are_not_materialised(dtype: torch.dtype) -> None:
    """Nor where a turned or a half-precision matrix has to be copied first."""
    shared = torch.randn(5, 5).to(dtype)
    for transitions in (shared, shared.T):
        crf = ChainCRF(torch.zeros(3, 4, 5), transitions.expand(3, 3, 5, 5))
        assert crf._scores.transitions.untyped_storage().nbytes() == 5 * 5 * 4
        assert_close(crf.log_partition, ChainCRF(torch.zeros(3, 4, 5), transitions.contiguous()).log_partition, 1e-6)
