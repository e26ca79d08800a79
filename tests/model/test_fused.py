"""Every fused operator is its plain reference, in values and gradients, and other devices run the reference."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from phrasechain.model import fused
from phrasechain.model.fused import border, gated_geometry, pair_product, plain_border, relu_dropout, relu_pairs

Operator = Callable[..., Tensor]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def cases() -> Iterator[tuple[str, list[Tensor], Operator, Operator]]:
    """Inputs that have a gradient, and the two operators on them."""
    torch.manual_seed(0)
    starts, counts = torch.tensor([4, 0, 4, 7]), torch.tensor([3, 4, 3, 1])  # the last image has one region
    image = torch.tensor([2, 0, 2, 0])  # the second image has no edge
    features, kept = normal(3, 2, 2, 5), torch.rand(6, 4) < 0.7
    yield (
        "pair_product",
        [normal(4, 3), normal(8, 3)],
        lambda u, v: pair_product(u, v, starts, counts),
        lambda u, v: fused.plain_pair_product(u, v, starts, counts),
    )
    for name, mask in (("relu", None), ("relu_dropout", kept)):
        yield (
            name,
            [normal(6, 4)],
            lambda x, mask=mask: relu_dropout(x.clone(), mask),
            lambda x, mask=mask: fused.plain_relu_dropout(x, mask),
        )
    yield "relu_pairs", [normal(3, 5, 4), normal(3, 5, 4), normal(4)], relu_pairs, fused.plain_relu_pairs
    yield (
        "gated_geometry",
        [normal(4, 3), normal(3, 5), normal(3)],
        lambda *given: gated_geometry(*given, features, image),
        lambda *given: fused.plain_gated_geometry(*given, features, image),
    )


CASES = {name: case for name, *case in cases()}


@pytest.mark.parametrize("chunk", [1, 40, 1 << 18])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_reference(
    name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_CHUNK", chunk)
    inputs, operator, plain = CASES[name]
    leaves = [each.clone().requires_grad_() for each in inputs]
    found, expected = operator(*leaves), plain(*leaves)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad((found * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", CASES)
def test_numerical_gradients(name: str) -> None:
    inputs, operator, _ = CASES[name]
    assert gradcheck(operator, tuple(each.clone().requires_grad_() for each in inputs))


@pytest.mark.parametrize("name", CASES)
def test_other_devices_run_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is needed to see that no fused operator is called."""
    inputs, operator, plain = CASES[name]
    expected = plain(*inputs)
    monkeypatch.setattr(fused, "runs_on_cpu", lambda _: False)
    for kind in (fused._PairProduct, fused._ReluDropout, fused._ReluPairs, fused._GatedGeometry):
        monkeypatch.delattr(kind, "forward")
    assert torch.equal(operator(*inputs), expected)


def test_only_the_cpu_runs_what_is_made_for_it() -> None:
    assert fused.runs_on_cpu(torch.zeros(1))
    assert not fused.runs_on_cpu(torch.zeros(1, device="meta"))


@pytest.mark.parametrize("on_cpu", [True, False])
def test_autocast_leaves_the_sums_of_hidden_units_in_float32(on_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "runs_on_cpu", lambda _: on_cpu)
    torch.manual_seed(0)
    pairs = torch.randn(3, 5, 4), torch.randn(3, 5, 4), torch.randn(4)
    geometry = torch.randn(4, 3), torch.randn(3, 5), torch.randn(3), torch.randn(3, 2, 2, 5), torch.tensor([2, 0, 2, 0])
    expected = relu_pairs(*pairs), gated_geometry(*geometry)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(relu_pairs(*pairs), expected[0])
        assert torch.equal(gated_geometry(*geometry), expected[1])


def test_one_more_label_around_transitions() -> None:
    torch.manual_seed(0)
    inner = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    outer = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    whole = border(inner, *outer)
    assert torch.equal(whole, plain_border(inner, *outer))
    out_of, into, both = outer
    assert torch.equal(whole[1, 2, 4], torch.cat([out_of[1, 2].expand(4), both[1, 2, None]]))
    assert torch.equal(whole[1, 2, :4, 4], into[1, 2].expand(4))
    assert gradcheck(border, (inner, *outer))
