"""The losses under torch.func, make_fx, torch.jit.trace, functional_call, and for meta and fake tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from phrasechain import ChainCRF

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
B, T, K = 2, 4, 3
LENGTHS = torch.tensor([4, 3])
LOSSES = {
    "log_partition": lambda crf: crf.log_partition,
    "kl": lambda crf: crf.kl(torch.full((B, T, K), 1 / K)),
    "nll": lambda crf: crf.nll(torch.tensor([[0, 2, 1, 1], [1, 1, 0, 2]])),
    "partial_nll": lambda crf: crf.partial_nll(torch.tensor([True, False, True]).expand(B, T, K)),
}
each_loss = pytest.mark.parametrize("name", LOSSES)
each_order = pytest.mark.parametrize("order", [1, 2])
each_form = pytest.mark.parametrize("form", ["shared", "full"])


def inputs(order: int, form: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    links = [(K, K)] * 2 if form == "shared" else [(B, T - 1, K, K), (B, T - 2, K, K)]
    shapes = [(B, T, K), *links]
    return tuple(torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes[: order + 1])


def loss_of(name: str) -> Callable[..., Tensor]:
    def value(emissions: Tensor, transitions: Tensor, skips: Tensor | None = None) -> Tensor:
        return LOSSES[name](ChainCRF(emissions, transitions, LENGTHS, skips=skips))

    return value


def assert_close(found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def gradients(name: str, scores: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in scores]
    return torch.autograd.grad(loss_of(name)(*leaves).sum(), leaves)


@each_loss
@each_order
@each_form
def test_grad_and_vmap(each_backend: str, name: str, order: int, form: str) -> None:
    scores, places, value = inputs(order, form), tuple(range(order + 1)), loss_of(name)
    assert_close(grad(lambda *x: value(*x).sum(), places)(*scores), gradients(name, scores))
    many = [inputs(order, form, seed) for seed in range(3)]
    stacked = tuple(torch.stack(x) for x in zip(*many, strict=True))
    assert_close(vmap(value)(*stacked), torch.stack([value(*x) for x in many]))
    found = vmap(grad(lambda *x: value(*x).sum(), places))(*stacked)
    expected = [gradients(name, x) for x in many]
    assert_close(found, tuple(torch.stack(x) for x in zip(*expected, strict=True)))
    outside = grad(lambda *x: vmap(value)(*x).sum(), places)(*stacked)
    assert_close(outside, found)


@each_loss
@each_order
@each_form
def test_vmap_over_some_arguments(each_backend: str, name: str, order: int, form: str) -> None:
    emissions, *links = inputs(order, form)
    many = torch.stack([emissions, emissions + 1, emissions * 2], 1)  # the axis of vmap is the second
    value = loss_of(name)
    found = vmap(lambda x: value(x, *links), in_dims=1)(many)
    assert_close(found, torch.stack([value(x, *links) for x in many.unbind(1)]))
    found = vmap(lambda x: value(emissions, x, *links[1:]))(torch.stack([links[0], links[0] * 2]))
    assert_close(found, torch.stack([value(emissions, x, *links[1:]) for x in (links[0], links[0] * 2)]))


@each_loss
@each_order
@each_form
def test_jacobians_and_tangents(each_backend: str, name: str, order: int, form: str) -> None:
    scores, places, value = inputs(order, form), tuple(range(order + 1)), loss_of(name)
    expected = torch.autograd.functional.jacobian(value, scores)
    assert_close(jacrev(value, places)(*scores), expected)
    assert_close(jacfwd(value, places)(*scores), expected)
    tangents = inputs(order, form, 9)
    found, tangent = jvp(value, scores, tangents)
    assert_close(found, value(*scores))
    sums = [(j * dx).flatten(1).sum(1) for j, dx in zip(expected, tangents, strict=True)]
    assert_close(tangent, torch.stack(sums).sum(0))


@each_order
@each_form
def test_second_derivatives(each_backend: str, order: int, form: str) -> None:
    scores, value = inputs(order, form, dtype=torch.float64), loss_of("log_partition")
    expected = torch.autograd.functional.hessian(lambda x: value(x, *scores[1:]).sum(), scores[0])
    for way in (hessian, lambda f: jacrev(jacrev(f)), lambda f: jacrev(grad(f))):
        assert_close(way(lambda x: value(x, *scores[1:]).sum())(scores[0]), expected)


def test_tangents_of_targets() -> None:
    emissions, transitions, skips = inputs(2, "full")
    q, change = torch.full((B, T, K), 1 / K), torch.tensor([0.1, -0.1, 0.0]).expand(B, T, K)

    def value(q: Tensor) -> Tensor:
        return ChainCRF(emissions, transitions, LENGTHS, skips=skips).kl(q)

    step = 1e-2
    expected = (value(q + step * change) - value(q - step * change)) / (2 * step)
    torch.testing.assert_close(jvp(value, (q,), (change,))[1], expected, atol=1e-3, rtol=1e-3)


@each_loss
@each_order
@each_form
def test_make_fx(each_backend: str, name: str, order: int, form: str) -> None:
    """Traced with some numbers, run with others: values and gradients."""
    value = loss_of(name)

    def both(*scores: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in scores]
        found = value(*leaves)
        return found, *torch.autograd.grad(found.sum(), leaves)

    graph, other = make_fx(both)(*inputs(order, form)), inputs(order, form, 5)
    assert_close(graph(*other), (value(*other), *gradients(name, other)))
    graph = make_fx(grad(lambda *x: value(*x).sum()))(*inputs(order, form))
    assert_close(graph(*other), gradients(name, other)[0])


@each_order
@each_form
def test_make_fx_with_fake_tensors(each_backend: str, order: int, form: str) -> None:
    def value(lengths: Tensor, emissions: Tensor, *links: Tensor) -> Tensor:
        emissions = emissions.detach().requires_grad_()
        crf = ChainCRF(emissions, links[0], lengths, skips=links[1] if order == 2 else None)
        return torch.autograd.grad(crf.kl(torch.full((B, T, K), 1 / K)).sum(), emissions)[0]

    graph, other = make_fx(value, tracing_mode="fake")(LENGTHS, *inputs(order, form)), inputs(order, form, 5)
    assert_close(graph(LENGTHS, *other), gradients("kl", other)[0])


@each_loss
@each_order
@each_form
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_jit_trace(each_backend: str, name: str, order: int, form: str) -> None:
    value = loss_of(name)
    traced = torch.jit.trace(value, inputs(order, form), check_trace=False)
    other = inputs(order, form, 5)
    assert_close(traced(*other), value(*other))
    leaves = [x.clone().requires_grad_() for x in other]
    assert_close(torch.autograd.grad(traced(*leaves).sum(), leaves), gradients(name, other))


@each_order
def test_make_fx_of_decoding(each_backend: str, order: int) -> None:
    def answers(*scores: Tensor) -> tuple[Tensor, ...]:
        crf = ChainCRF(*scores[:2], LENGTHS, skips=None if order == 1 else scores[2])
        return crf.viterbi()[0], crf.smoothing(), crf.marginals, crf.pair_marginals

    graph = make_fx(answers)(*inputs(order, "full"))
    other = inputs(order, "full", 5)
    assert_close(graph(*other), answers(*other))


@each_loss
@each_order
def test_meta_tensors(name: str, order: int) -> None:
    leaves = [x.to("meta").requires_grad_() for x in inputs(order, "full")]
    with torch.device("meta"):
        crf = ChainCRF(*leaves[:2], torch.empty(B, dtype=torch.int64), skips=None if order == 1 else leaves[2])
        found = {
            "kl": lambda: crf.kl(torch.empty(B, T, K)),
            "nll": lambda: crf.nll(torch.empty(B, T, dtype=torch.int64)),
            "partial_nll": lambda: crf.partial_nll(torch.empty(B, T, K, dtype=torch.bool)),
        }.get(name, lambda: crf.log_partition)()
    assert found.shape == (B,)
    assert found.is_meta
    found.sum().backward()
    assert all(leaf.grad is not None and leaf.grad.shape == leaf.shape for leaf in leaves)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, K)
        self.transitions, self.skips = nn.Parameter(torch.zeros(K, K)), nn.Parameter(torch.zeros(K, K))

    def forward(self, x: Tensor) -> Tensor:
        crf = ChainCRF(self.linear(x), self.transitions, skips=self.skips)
        return crf.kl(torch.full((*x.shape[:2], K), 1 / K)).mean()


def test_functional_call_and_gradients_per_sample(each_backend: str) -> None:
    torch.manual_seed(0)
    tagger, x = Tagger(), torch.randn(6, T, 5)
    parameters = {name: each.detach() for name, each in tagger.named_parameters()}

    def value(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        return functional_call(tagger, parameters, one[None])

    found = vmap(grad(value), in_dims=(None, 0))(parameters, x)
    for b in range(6):
        tagger.zero_grad()
        tagger(x[b : b + 1]).backward()
        for name, each in tagger.named_parameters():
            assert_close(found[name][b], each.grad)
