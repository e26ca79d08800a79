"""Gradients: moment matching, second derivatives, the paper's Algorithm 1, compilation."""

import shutil
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from torch import Tensor

from enumeration import Case, cases
from phrasechain import ChainCRF
from phrasechain.chain import operators

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
Quantity = Callable[[ChainCRF], Tensor]

torch.manual_seed(0)
TARGET = torch.rand(2, 3, 3, dtype=torch.float64).softmax(-1)
LABELLED = torch.tensor([[True, False, True], [False, True, False]])
ALLOWED = torch.tensor([True, False, True]).expand(2, 3, 3)
QUANTITIES: dict[str, Quantity] = {
    "log_partition": lambda crf: crf.log_partition,
    "kl": lambda crf: crf.kl(TARGET.to(crf.log_partition.dtype)),
    "kl_of_labelled": lambda crf: crf.kl(TARGET.to(crf.log_partition.dtype), LABELLED),
    "nll": lambda crf: crf.nll(torch.tensor([[0, 2, 1], [1, 1, 0]])),
    "partial_nll": lambda crf: crf.partial_nll(ALLOWED),
    "marginals": lambda crf: crf.marginals,
    "pair_marginals": lambda crf: crf.pair_marginals,
    "entropy": lambda crf: crf.entropy,
    "viterbi_score": lambda crf: crf.viterbi()[1],
    "kbest_scores": lambda crf: crf.kbest(4)[1],
}
FORMS = {"shared": (3, 3), "sequence": (2, 1, 3, 3), "step": (1, 2, 3, 3), "full": (2, 2, 3, 3)}


def scores(form: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    emissions = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    transitions = torch.randn(*FORMS[form], generator=generator, dtype=torch.float64)
    return emissions.to(dtype).requires_grad_(), transitions.to(dtype).requires_grad_()


@given(cases())
def test_gradients_match_moments(case: Case) -> None:
    """∂KL/∂ε = p(y_t) − q_t and ∂KL/∂τ = p(y_{t-1}, y_t) − q_{t-1} q_tᵀ, from enumeration."""
    B, T, K = case.emissions.shape
    emissions = case.emissions.clone().requires_grad_()
    four = case.transitions if case.transitions.dim() == 4 else case.transitions[None, None]
    full = (four.expand(B, T - 1, K, K) if T > 1 else four.new_zeros(B, 0, K, K)).clone().requires_grad_()
    ChainCRF(emissions, full, case.lengths, case.label_mask).kl(case.q).sum().backward()
    q = torch.where(case.valid, case.q, 0.0)
    expected = torch.stack([chain.marginals() for chain in case.chains()]) - q
    torch.testing.assert_close(emissions.grad, torch.where(case.valid, expected, 0.0), atol=1e-10, rtol=0)
    pairs = torch.stack([chain.pair_marginals() for chain in case.chains()])
    targets = q[:, :-1, :, None] * q[:, 1:, None, :]
    if T > 1:
        torch.testing.assert_close(full.grad, pairs - targets, atol=1e-10, rtol=0)


def algorithm_1(q: Tensor, emissions: Tensor, transitions: Tensor) -> Tensor:
    """The paper's modified forward algorithm for one sequence, with its slips fixed.

    It starts at t = 1, and [ε − log q] stands outside the sum over y^{t-1}.
    """
    T, K = emissions.shape
    log_q = torch.where(q > 0, q, 1.0).log()
    alpha = [emissions[0, y].exp() for y in range(K)]
    g = [emissions[0, y] - log_q[0, y] for y in range(K)]
    for t in range(1, T):
        tau = transitions[t - 1]
        pulled = [sum((g[i] + tau[i, j]) * q[t - 1, i] for i in range(K)) for j in range(K)]
        alpha = [sum(alpha[i] * (tau[i, j] + emissions[t, j]).exp() for i in range(K)) for j in range(K)]
        g = [pulled[j] + emissions[t, j] - log_q[t, j] for j in range(K)]
    total = sum(g[j] * q[-1, j] for j in range(K))
    return torch.as_tensor(sum(alpha)).log() - total


@given(cases(most=(1, 4, 4)))
def test_closed_form_is_the_corrected_algorithm_1(case: Case) -> None:
    (chain,) = case.chains()
    labels = slice(None) if case.label_mask is None else case.label_mask[0]
    T = chain.length
    emissions, q = case.emissions[0, :T, labels], case.q[0, :T, labels]
    four = case.transitions if case.transitions.dim() == 4 else case.transitions[None, None]
    K = case.emissions.shape[2]
    steps = four.expand(1, T - 1, K, K)[0] if T > 1 and four.shape[1] == 1 else four[0, : T - 1]
    steps = steps[:, labels][:, :, labels]
    found = ChainCRF(*case.arguments).kl(case.q)[0]
    torch.testing.assert_close(found, algorithm_1(q, emissions, steps), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", QUANTITIES)
def test_first_and_second_derivatives(name: str, form: str) -> None:
    def quantity(emissions: Tensor, transitions: Tensor) -> Tensor:
        crf = ChainCRF(emissions, transitions, torch.tensor([3, 2]), validate=False)
        return QUANTITIES[name](crf)

    inputs = scores(form)
    assert torch.autograd.gradcheck(quantity, inputs)
    assert torch.autograd.gradgradcheck(quantity, inputs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", QUANTITIES)
def test_float32_derivatives_agree_with_float64(each_backend: str, name: str, form: str) -> None:
    """Also the derivative of a derivative, which leaves the fast path."""

    def derivatives(dtype: torch.dtype) -> list[Tensor]:
        inputs = scores(form, dtype)
        value = QUANTITIES[name](ChainCRF(*inputs, torch.tensor([3, 2])))
        value = value[torch.isfinite(value)]
        weights = torch.linspace(0.5, 1.5, value.numel(), dtype=dtype).view_as(value)
        first = torch.autograd.grad((value * weights).sum(), inputs, create_graph=True)
        if not any(each.requires_grad for each in first):
            return [*first]
        second = torch.autograd.grad(sum((each**2).sum() for each in first), inputs, materialize_grads=True)
        return [*first, *second]

    for single, double in zip(derivatives(torch.float32), derivatives(torch.float64), strict=True):
        torch.testing.assert_close(single.double(), double, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("labelled", [None, LABELLED])
def test_gradient_reaches_the_target(labelled: Tensor | None) -> None:
    inputs = scores("shared")
    logits = torch.zeros(2, 3, 3, dtype=torch.float64, requires_grad=True)

    def kl(emissions: Tensor, transitions: Tensor, logits: Tensor) -> Tensor:
        return ChainCRF(emissions, transitions, torch.tensor([3, 2])).kl(logits.softmax(-1), labelled)

    assert torch.autograd.gradcheck(kl, (*inputs, logits))


def test_a_graph_can_be_walked_twice(each_backend: str) -> None:
    inputs = scores("full", torch.float32)
    value = ChainCRF(*inputs).kl(TARGET.float()).sum()
    first = torch.autograd.grad(value, inputs, retain_graph=True)
    second = torch.autograd.grad(value, inputs)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_the_operators_keep_their_promises(each_backend: str) -> None:
    """torch's own check of schema, fake tensors and autograd registration."""
    emissions, transitions = scores("full", torch.float32)
    arguments = (emissions, transitions, torch.tensor([3, 2]), None, TARGET.float(), None, each_backend == "compiled")
    torch.library.opcheck(operators.forward_op, arguments)


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["kl", "kl_of_labelled", "nll", "partial_nll", "log_partition"])
def test_losses_compile_in_one_graph(each_backend: str, name: str) -> None:
    """One after the other with both backends: graphs kept on disk for one must not serve the other."""

    def value(emissions: Tensor, transitions: Tensor, lengths: Tensor) -> Tensor:
        return QUANTITIES[name](ChainCRF(emissions * 2, transitions, lengths)).sum()

    torch.compiler.reset()
    compiled = torch.compile(value, fullgraph=True)
    for form in ("shared", "full"):
        inputs = scores(form, torch.float32)
        expected, found = (each(*inputs, torch.tensor([3, 2])) for each in (value, compiled))
        torch.testing.assert_close(found, expected)
        for one, other in zip(*(torch.autograd.grad(each, inputs) for each in (found, expected)), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("target_asks", [False, True])
def test_gradients_where_nothing_is_labelled_are_zero(each_backend: str, target_asks: bool) -> None:
    """q may be NaN at every step without a label, in a sequence without any label too."""
    emissions, transitions = scores("full", torch.float32)
    q = torch.where(LABELLED[:, :, None], TARGET.float(), torch.nan)
    q[1] = torch.nan
    q.requires_grad_(target_asks)
    labelled = LABELLED & torch.tensor([[True], [False]])
    value = ChainCRF(emissions, transitions).kl(q, labelled)
    value.sum().backward()
    assert value[1] == 0
    for leaf in (emissions, transitions, q)[: 2 + target_asks]:
        assert leaf.grad is not None
        assert leaf.grad[0].isfinite().all()
        assert (leaf.grad[1] == 0).all()


def test_gradient_of_the_target_is_finite_at_zero(each_backend: str) -> None:
    emissions, transitions = scores("shared", torch.float32)
    logits = torch.tensor([0.0, -200.0, 0.0]).expand(2, 3, 3).clone().requires_grad_()  # the softmax underflows to 0
    ChainCRF(emissions, transitions).kl(logits.softmax(-1)).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
