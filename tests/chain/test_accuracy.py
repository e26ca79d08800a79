"""float32 on both backends against float64 on the same (float32-rounded) scores."""

import pytest
import torch
from torch import Tensor

from phrasechain import ChainCRF
from phrasechain.chain.plain_loss import plain_loss
from phrasechain.chain.recursion import ChainScores

FORMS = ("shared", "sequence", "step", "full")


def batch(B: int, T: int, K: int, form: str, scale: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = {"shared": (1, 1), "sequence": (B, 1), "step": (1, T - 1), "full": (B, T - 1)}[form]
    emissions = torch.randn(B, T, K, generator=generator) * scale
    transitions = torch.randn(*shape, K, K, generator=generator) * scale
    q = torch.randn(B, T, K, generator=generator).mul(3).softmax(-1)
    q = torch.where(q < 0.02, 0.0, q)
    return emissions, transitions, q / q.sum(-1, keepdim=True)


def errors(emissions: Tensor, transitions: Tensor, q: Tensor, *where: Tensor | None) -> tuple[float, float, float]:
    """Of the loss: relative to the larger of loss and log Z, and absolute; and the largest of the gradient.

    A gradient that sums many probabilities (shared transitions) is measured relative to its largest entry.
    """
    single = emissions.clone().requires_grad_(), transitions.clone().requires_grad_()
    double = emissions.double().requires_grad_(), transitions.double().requires_grad_()
    found = ChainCRF(*single, *where).kl(q)
    exact = plain_loss(ChainScores(*double, *where), q.double())
    log_z = plain_loss(ChainScores(*double, *where), None)
    difference = (found.double() - exact).abs().detach()
    relative = difference / torch.maximum(exact.abs(), log_z.abs()).detach()
    grads = [torch.autograd.grad(value.sum(), inputs) for value, inputs in ((found, single), (exact, double))]
    gradient = max(
        float((one.double() - other).abs().max() / other.abs().max().clamp(min=1))
        for one, other in zip(*grads, strict=True)
    )
    return float(relative.max()), float(difference.max()), gradient


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("sizes", [(8, 5, 30), (4, 128, 10), (2, 9, 7), (3, 4, 1)])
def test_at_every_scale(each_backend: str, sizes: tuple[int, int, int], scale: float, form: str) -> None:
    relative, _, gradient = errors(*batch(*sizes, form, scale))
    assert relative <= 1e-6
    assert gradient <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", [2, 16])
def test_with_a_large_constant_in_all_scores(each_backend: str, steps: int, form: str) -> None:
    emissions, transitions, q = batch(4, steps, 20, form, 1.0)
    _, absolute, gradient = errors(emissions + 1e4, transitions + 1e4, q)
    assert absolute <= 5e-4
    assert gradient <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("junk", [1e30, -1e30])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_with_junk_at_masked_labels(each_backend: str, scale: float, junk: float, form: str) -> None:
    emissions, transitions, q = batch(3, 6, 12, form, scale)
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[:, [0, 7, 11]] = False
    emissions = torch.where(mask[:, None, :], emissions, junk)
    transitions = torch.where(mask[:1, None, :, None] & mask[:1, None, None, :], transitions, junk)
    q = torch.where(mask[:, None, :], q, 0.0)
    q = q / q.sum(-1, keepdim=True)
    relative, _, gradient = errors(emissions, transitions, q, torch.tensor([6, 3, 1]), mask)
    assert relative <= 1e-6
    assert gradient <= 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_with_forbidden_transitions(each_backend: str, form: str) -> None:
    """The floor of -1e4 leaves probability exactly 0 and costs no accuracy."""
    emissions, transitions, q = batch(3, 6, 9, form, 1.0)
    transitions[..., 2, 5] = -1e4
    q[:, :, 5] = 0
    q = (q + 0.01) / (q + 0.01).sum(-1, keepdim=True)
    relative, _, gradient = errors(emissions, transitions, q)
    assert relative <= 1e-6
    assert gradient <= 1e-5
    assert (ChainCRF(emissions, transitions).pair_marginals[..., 2, 5] == 0).all()


def test_a_label_that_underflows_can_come_back(each_backend: str) -> None:
    """Step 1 all but excludes label 1, by e^-200; step 2 demands it, by e^400."""
    emissions = torch.zeros(1, 3, 9)
    emissions[0, 0, 1] = -200.0
    transitions = torch.zeros(1, 2, 9, 9)
    transitions[0, 0, 1, 3] = 400.0
    q = torch.full((1, 3, 9), 1 / 9)
    relative, _, gradient = errors(emissions, transitions, q)
    assert relative <= 1e-6
    assert gradient <= 1e-5
    assert ChainCRF(emissions, transitions).viterbi()[0][0, :2].tolist() == [1, 3]


@pytest.mark.parametrize("form", FORMS)
def test_emissions_that_undo_what_transitions_demand(each_backend: str, form: str) -> None:
    """Label 3 is far ahead on the way in and on the way out, and its own emission lies below what exp can hold."""
    emissions = torch.zeros(2, 3, 9)
    emissions[:, 0, 3] = emissions[:, 2, 3] = -200.0  # it can only be in the middle
    emissions[:, 1, 3] = -104.0
    transitions = torch.full_like(batch(2, 3, 9, form, 1.0)[1], -29.0)
    transitions[..., 3] = transitions[..., 3, :] = 29.0
    relative, _, gradient = errors(emissions, transitions, torch.full((2, 3, 9), 1 / 9))
    assert relative <= 1e-6
    assert gradient <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("floor", [-1e4, -1e9, -1e20])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_with_floors_in_the_emissions(each_backend: str, scale: float, floor: float, form: str) -> None:
    """A label forbidden by a very low score costs the others no digits, the first label included."""
    emissions, transitions, q = batch(3, 6, 12, form, scale)
    emissions[:, ::2, [0, 5]] = floor
    q[:, :, [0, 5]] = 0.0
    relative, _, gradient = errors(emissions, transitions, q / q.sum(-1, keepdim=True))
    assert relative <= 1e-6
    assert gradient <= 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_hard_labels_beside_forbidden_transitions(each_backend: str, form: str) -> None:
    emissions, transitions, _ = batch(5, 3, 40, form, 5.0)
    transitions[..., 0] = -1e4
    q = torch.nn.functional.one_hot(emissions[..., 1:].argmax(-1) + 1, 40).float()
    relative, _, gradient = errors(emissions, transitions, q)
    assert relative <= 1e-6
    assert gradient <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("quantity", ["kl of labelled steps", "marginals", "pair_marginals", "entropy"])
def test_what_goes_through_the_plain_recursion(quantity: str, scale: float, form: str) -> None:
    emissions, transitions, q = batch(3, 6, 9, form, scale)
    labelled = torch.tensor([True, False, True, True, False, False]).expand(3, 6)
    found = []
    for dtype in (torch.float32, torch.float64):
        inputs = emissions.to(dtype).requires_grad_(), transitions.to(dtype).requires_grad_()
        crf = ChainCRF(*inputs)
        value = crf.kl(q.to(dtype), labelled) if quantity == "kl of labelled steps" else getattr(crf, quantity)
        assert value.dtype == dtype
        size = torch.maximum(crf.log_partition.abs().max(), value.abs().max()).item() if value.dim() == 1 else 1.0
        weights = torch.linspace(0.5, 1.5, value.numel(), dtype=dtype).view_as(value)
        found.append((value.detach() / size, *torch.autograd.grad((value * weights).sum(), inputs)))
    for single, double, tolerance in zip(*found, (1e-6, 1e-5, 1e-5), strict=True):
        assert (single - double).abs().max() <= tolerance * double.abs().max().clamp(min=1)


def test_not_a_number_is_not_hidden(each_backend: str) -> None:
    emissions, transitions, q = batch(2, 3, 9, "full", 1.0)
    transitions[0, 1, 4, 2] = torch.nan
    found = ChainCRF(emissions, transitions, validate=False).kl(q)
    assert found[0].isnan()
    assert found[1].isfinite()
