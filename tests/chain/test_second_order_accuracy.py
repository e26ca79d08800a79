"""Chains with skips: float32 on both backends against the plain recursion in float64, derivatives, compilers."""

import shutil

import pytest
import torch
from torch import Tensor, nn

from phrasechain import ChainCRF
from phrasechain.chain import kernel, second_order_scaled
from phrasechain.chain.plain_loss import plain_loss
from phrasechain.chain.recursion import ChainScores

FORMS = ("shared", "sequence", "step", "full")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


def batch(sizes: tuple[int, int, int], form: str, scale: float, skips_as: str = "full") -> list[Tensor]:
    """Emissions, transitions, skips and targets."""
    B, T, K = sizes
    generator = torch.Generator().manual_seed(0)

    def links(steps: int, form: str) -> Tensor:
        shape = {"shared": (1, 1), "sequence": (B, 1), "step": (1, steps), "full": (B, steps)}[form]
        return torch.randn(*shape, K, K, generator=generator) * scale

    q = torch.randn(B, T, K, generator=generator).mul(3).softmax(-1)
    q = torch.where(q < 0.02, 0.0, q)
    emissions = torch.randn(B, T, K, generator=generator) * scale
    return [emissions, links(T - 1, form), links(T - 2, skips_as), q / q.sum(-1, keepdim=True)]


def errors(
    emissions: Tensor, transitions: Tensor, skips: Tensor, q: Tensor, *where: Tensor | None
) -> tuple[float, ...]:
    """Of the loss: relative to the larger of loss and log Z, and absolute; and the largest of the gradient."""
    single = [x.clone().requires_grad_() for x in (emissions, transitions, skips)]
    double = [x.double().requires_grad_() for x in (emissions, transitions, skips)]
    found = ChainCRF(single[0], single[1], *where, skips=single[2]).kl(q)
    exact_scores = ChainScores(double[0], double[1], *(where or (None, None)), double[2])
    exact, log_z = plain_loss(exact_scores, q.double()), plain_loss(exact_scores, None)
    difference = (found.double() - exact).abs().detach()
    relative = difference / torch.maximum(exact.abs(), log_z.abs()).detach()
    weights = torch.linspace(0.5, 1.5, len(found))  # gradients of the sequences that differ
    grads = [torch.autograd.grad((value * weights).sum(), x) for value, x in ((found, single), (exact, double))]
    gradient = max(
        float((one.double() - other).abs().max() / other.abs().max().clamp(min=1))
        for one, other in zip(*grads, strict=True)
    )
    return float(relative.max()), float(difference.max()), gradient


def assert_accurate(found: tuple[float, ...]) -> None:
    assert found[0] <= 1e-6
    assert found[2] <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 8.0, 100.0, 1e4])
@pytest.mark.parametrize("sizes", [(8, 5, 30), (3, 40, 10), (2, 9, 7), (3, 4, 1)])
def test_at_every_scale(each_backend: str, sizes: tuple[int, int, int], scale: float, form: str) -> None:
    """By float32, float64 and the log domain: the range of the scores decides."""
    assert_accurate(errors(*batch(sizes, form, scale, skips_as="full" if form != "full" else "step")))


@pytest.mark.parametrize("form", FORMS)
def test_with_a_large_constant_in_all_scores(each_backend: str, form: str) -> None:
    emissions, transitions, skips, q = batch((4, 9, 20), form, 1.0, form)
    _, absolute, gradient = errors(emissions + 1e4, transitions + 1e4, skips + 1e4, q)
    assert absolute <= 5e-4
    assert gradient <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("junk", [1e30, float("nan")])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_with_junk_at_masked_labels(each_backend: str, scale: float, junk: float, form: str) -> None:
    emissions, transitions, skips, q = batch((3, 6, 12), form, scale, form)
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[:, [0, 7, 11]] = False
    pairs = mask[:1, None, :, None] & mask[:1, None, None, :]
    emissions = torch.where(mask[:, None, :], emissions, junk)
    transitions, skips = (torch.where(pairs, links, junk) for links in (transitions, skips))
    q = torch.where(mask[:, None, :], q + 0.01, 0.0)
    q = q / q.sum(-1, keepdim=True)
    assert_accurate(errors(emissions, transitions, skips, q, torch.tensor([6, 3, 1]), mask))


@pytest.mark.parametrize("form", FORMS)
def test_with_forbidden_links(each_backend: str, form: str) -> None:
    """The floor of -1e4 leaves probability exactly 0 and costs no accuracy."""
    emissions, transitions, skips, q = batch((3, 6, 9), form, 1.0, form)
    transitions[..., 2, 5] = skips[..., 1, 5] = -1e4
    q[:, :, 5] = 0
    q = (q + 0.01) / (q + 0.01).sum(-1, keepdim=True)
    assert_accurate(errors(emissions, transitions, skips, q))
    crf = ChainCRF(emissions, transitions, skips=skips)
    assert (crf.pair_marginals[..., 2, 5] == 0).all()
    assert (crf.skip_marginals[..., 1, 5] == 0).all()


@pytest.mark.parametrize("floor", [-1e4, -1e20])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_with_floors_in_the_emissions(each_backend: str, scale: float, floor: float) -> None:
    emissions, transitions, skips, q = batch((3, 6, 12), "full", scale)
    emissions[:, ::2, [0, 5]] = floor
    q[:, :, [0, 5]] = 0.0
    assert_accurate(errors(emissions, transitions, skips, q / q.sum(-1, keepdim=True)))


@pytest.mark.parametrize("spread", [(31.9, 0.0), (0.0, 21.3), (12.0, 13.3), (33.0, 22.0)])
def test_at_the_edge_of_the_range_of_float32(each_backend: str, spread: tuple[float, float]) -> None:
    """The worst that the guard lets pass: a label far ahead on the way in and out whose own emission undoes it."""
    emissions = torch.zeros(2, 5, 9)
    emissions[:, [0, 4], 3] = -200.0
    emissions[:, 1:4, 3] = -torch.tensor([60.0, 104.0, 60.0])
    transitions, skips = (torch.full((2, n, 9, 9), -size / 2) for n, size in zip((4, 3), spread, strict=True))
    for links, size in ((transitions, spread[0]), (skips, spread[1])):
        links[..., 3] = links[..., 3, :] = size / 2
    assert_accurate(errors(emissions, transitions, skips, torch.full((2, 5, 9), 1 / 9)))


def test_a_label_that_underflows_can_come_back(each_backend: str) -> None:
    """Step 1 all but excludes label 1, by e^-200; the skip to step 3 demands it, by e^400."""
    emissions, transitions, skips = torch.zeros(1, 4, 9), torch.zeros(9, 9), torch.zeros(1, 2, 9, 9)
    emissions[0, 0, 1] = -200.0
    skips[0, 0, 1, 3] = 400.0
    assert_accurate(errors(emissions, transitions[None, None], skips, torch.full((1, 4, 9), 1 / 9)))
    labels = ChainCRF(emissions, transitions, skips=skips).viterbi()[0][0]
    assert labels[0] == 1
    assert labels[2] == 3


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
@pytest.mark.parametrize(
    "quantity", ["kl of labelled steps", "marginals", "pair_marginals", "skip_marginals", "entropy"]
)
def test_what_goes_through_the_plain_recursion(quantity: str, scale: float) -> None:
    emissions, transitions, skips, q = batch((3, 6, 9), "full", scale)
    q = torch.where(q >= q.topk(3, -1).values[..., -1:], q, 0.0)
    q = q / q.sum(-1, keepdim=True)
    labelled = torch.tensor([True, False, True, True, False, False]).expand(3, 6)
    found = []
    for dtype in (torch.float32, torch.float64):
        inputs = [x.to(dtype).requires_grad_() for x in (emissions, transitions, skips)]
        crf = ChainCRF(inputs[0], inputs[1], skips=inputs[2])
        target = q.double() / q.double().sum(-1, keepdim=True)
        value = crf.kl(target.to(dtype), labelled) if quantity == "kl of labelled steps" else getattr(crf, quantity)
        assert value.dtype == dtype
        size = torch.maximum(crf.log_partition.abs().max(), value.abs().max()).item() if value.dim() == 1 else 1.0
        weights = torch.linspace(0.5, 1.5, value.numel(), dtype=dtype).view_as(value)
        found.append((value.detach() / size, *torch.autograd.grad((value * weights).sum(), inputs)))
    for single, double, tolerance in zip(*found, (1e-6, 1e-5, 1e-5, 1e-5), strict=True):
        assert (single - double).abs().max() <= tolerance * double.abs().max().clamp(min=1)


def test_not_a_number_is_not_hidden(each_backend: str) -> None:
    emissions, transitions, skips, q = batch((2, 4, 9), "full", 1.0)
    skips[0, 1, 4, 2] = torch.nan
    found = ChainCRF(emissions, transitions, skips=skips, validate=False).kl(q)
    assert found[0].isnan()
    assert found[1].isfinite()


def test_variants_and_threads_of_the_kernel_agree() -> None:
    library = kernel.load()
    if library is None:
        pytest.skip("the compiled kernel was not built here")

    def everything() -> list[Tensor]:
        found = []
        for sizes in ((5, 6, 37), (3, 5, 5), (9, 4, 16), (40, 9, 40)):
            for form in FORMS:
                *scores, q = batch(sizes, form, 1.0, form)
                inputs = [x.requires_grad_() for x in scores]
                lengths = torch.arange(sizes[0]) % sizes[1] + 1
                value = ChainCRF(inputs[0], inputs[1], lengths, skips=inputs[2]).kl(q)
                found += [value.detach(), *torch.autograd.grad(value.sum(), inputs)]
        return found

    before, here = torch.get_num_threads(), everything()
    try:
        torch.set_num_threads(3)
        together = everything()
        library.phrasechain_use_any(1)
        plain = everything()
    finally:
        torch.set_num_threads(before)
        library.phrasechain_use_any(0)
    with kernel.disabled():
        pure = everything()
    for one, *others in zip(here, together, plain, pure, strict=True):
        for other in others:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_batch_larger_than_a_cache_is_worked_on_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_order_scaled, "BLOCK", 200)
    with kernel.disabled():
        for form in FORMS:
            assert_accurate(errors(*batch((7, 5, 9), form, 1.0, form), torch.tensor([5, 1, 2, 3, 4, 5, 5]), None))


QUANTITIES = {
    "log_partition": lambda crf: crf.log_partition,
    "kl": lambda crf: crf.kl(torch.full((2, 4, 3), 1 / 3, dtype=crf.log_partition.dtype)),
    "kl_of_labelled": lambda crf: crf.kl(
        torch.full((2, 4, 3), 1 / 3, dtype=crf.log_partition.dtype), torch.tensor([[1, 0, 1, 1], [0, 0, 1, 0]]).bool()
    ),
    "nll": lambda crf: crf.nll(torch.tensor([[0, 2, 1, 1], [1, 1, 0, 2]])),
    "partial_nll": lambda crf: crf.partial_nll(torch.tensor([True, False, True]).expand(2, 4, 3)),
    "marginals": lambda crf: crf.marginals,
    "pair_marginals": lambda crf: crf.pair_marginals,
    "skip_marginals": lambda crf: crf.skip_marginals,
    "entropy": lambda crf: crf.entropy,
    "viterbi_score": lambda crf: crf.viterbi()[1],
    "kbest_scores": lambda crf: crf.kbest(4)[1],
    "kl_chain": lambda crf: crf.kl_chain(
        ChainCRF(torch.ones(2, 4, 3).cumsum(2).double(), torch.eye(3).double(), torch.tensor([4, 3]))
    ),
}


def scores(form: str, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"shared": ((3, 3), (3, 3)), "full": ((2, 3, 3, 3), (2, 2, 3, 3)), "mixed": ((2, 1, 3, 3), (1, 2, 3, 3))}
    return [
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((2, 4, 3), *shapes[form])
    ]


@pytest.mark.parametrize("form", ["shared", "full", "mixed"])
@pytest.mark.parametrize("name", QUANTITIES)
def test_derivatives(name: str, form: str) -> None:
    def value(emissions: Tensor, transitions: Tensor, skips: Tensor) -> Tensor:
        found = QUANTITIES[name](ChainCRF(emissions, transitions, torch.tensor([4, 3]), skips=skips))
        return found[torch.isfinite(found)]

    inputs = scores(form)
    assert torch.autograd.gradcheck(value, inputs)
    if name in ("kl", "log_partition", "marginals", "kl_of_labelled"):
        assert torch.autograd.gradgradcheck(value, inputs)


@pytest.mark.parametrize("labelled", [None, torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0]]).bool()])
def test_gradient_reaches_the_target(labelled: Tensor | None) -> None:
    logits = torch.zeros(2, 4, 3, dtype=torch.float64, requires_grad=True)

    def kl(emissions: Tensor, transitions: Tensor, skips: Tensor, logits: Tensor) -> Tensor:
        return ChainCRF(emissions, transitions, torch.tensor([4, 3]), skips=skips).kl(logits.softmax(-1), labelled)

    assert torch.autograd.gradcheck(kl, (*scores("shared"), logits))


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["kl", "nll", "partial_nll", "log_partition"])
def test_losses_compile_in_one_graph(each_backend: str, name: str) -> None:
    def value(emissions: Tensor, transitions: Tensor, skips: Tensor, lengths: Tensor) -> Tensor:
        return QUANTITIES[name](ChainCRF(emissions * 2, transitions, lengths, skips=skips)).sum()

    torch.compiler.reset()
    compiled = torch.compile(value, fullgraph=True)
    for form in ("shared", "full"):
        inputs = scores(form, torch.float32)
        expected, found = (each(*inputs, torch.tensor([4, 3])) for each in (value, compiled))
        torch.testing.assert_close(found, expected)
        for one, other in zip(*(torch.autograd.grad(each, inputs) for each in (found, expected)), strict=True):
            torch.testing.assert_close(one, other)


class Decode(nn.Module):
    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def forward(self, emissions: Tensor, transitions: Tensor, skips: Tensor, lengths: Tensor) -> Tensor:
        crf = ChainCRF(emissions, transitions, lengths, skips=skips)
        return crf.viterbi()[0] if self.method == "viterbi" else crf.smoothing()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("method", ["viterbi", "smoothing"])
def test_decoding_exports(each_backend: str, method: str) -> None:
    T = 4
    batch_size, labels = torch.export.Dim("B", min=2), torch.export.Dim("K", min=2)

    def inputs(B: int, K: int) -> tuple[Tensor, ...]:
        torch.manual_seed(B * K)
        lengths = torch.randint(1, T + 1, (B,))
        return torch.randn(B, T, K), torch.randn(B, T - 1, K, K), torch.randn(K, K), lengths

    dynamic = {
        "emissions": {0: batch_size, 2: labels},
        "transitions": {0: batch_size, 2: labels, 3: labels},
        "skips": {0: labels, 1: labels},
        "lengths": {0: batch_size},
    }
    program = torch.export.export(Decode(method), inputs(3, 5), dynamic_shapes=dynamic)
    for B, K in ((3, 5), (7, 11), (2, 2)):
        arguments = inputs(B, K)
        assert torch.equal(program.module()(*arguments), Decode(method)(*arguments))
