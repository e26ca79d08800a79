"""The compiled kernel: its variants, threads and life after a fork."""

import multiprocessing
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch
from torch import Tensor

from phrasechain import ChainCRF
from phrasechain.chain import backend, kernel
from phrasechain.chain.recursion import ChainScores

library = kernel.load()
pytestmark = pytest.mark.skipif(library is None, reason="the compiled kernel was not built here")


def everything(seed: int = 0) -> list[Tensor]:
    """Values and gradients of a batch that takes every branch: wide and narrow K, ragged, masked, hard and soft."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for B, T, K, scale in [(9, 6, 37, 1.0), (3, 5, 5, 1.0), (4, 4, 16, 100.0), (5, 1, 8, 1.0), (40, 9, 40, 1.0)]:
        mask = torch.rand(B, K, generator=generator) < 0.8
        mask[:, 0] = True
        lengths = torch.randint(1, T + 1, (B,), generator=generator)
        for shape in ((K, K), (B, 1, K, K), (1, max(T - 1, 1), K, K), (B, max(T - 1, 1), K, K)):
            emissions = (torch.randn(B, T, K, generator=generator) * scale).requires_grad_()
            transitions = (torch.randn(shape, generator=generator) * scale).requires_grad_()
            for where in ((None, None), (lengths, mask)):
                crf = ChainCRF(emissions, transitions, *where)
                q = torch.zeros(B, T, K)
                q[:, :, 0] = 1.0
                value = crf.kl(q)
                grads = torch.autograd.grad(value.sum(), (emissions, transitions))
                with torch.no_grad():
                    found += [value.detach(), *grads, crf.viterbi()[0], crf.viterbi()[1]]
    return found


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_backend_names_it() -> None:
    assert backend() == "compiled"


def test_variant_for_any_machine_agrees() -> None:
    assert library is not None
    here = everything()
    try:
        assert library.phrasechain_use_any(1) == 0
        assert_same(everything(), here)
    finally:
        library.phrasechain_use_any(0)


def test_kernel_agrees_with_pure_torch() -> None:
    compiled = everything()
    with kernel.disabled():
        assert backend() == "torch"
        assert_same(everything(), compiled)


def test_the_gradient_takes_the_path_of_the_loss() -> None:
    """Even where the kernel is switched off for one of them only."""
    emissions, transitions = torch.randn(2, 4, 9, requires_grad=True), torch.randn(2, 3, 9, 9, requires_grad=True)
    expected = torch.autograd.grad(ChainCRF(emissions, transitions).log_partition.sum(), (emissions, transitions))
    with kernel.disabled():
        value = ChainCRF(emissions, transitions).log_partition.sum()
    assert_same(list(torch.autograd.grad(value, (emissions, transitions))), list(expected))


def test_threads_change_nothing() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = everything()
        torch.set_num_threads(3)
        together = everything()
    finally:
        torch.set_num_threads(before)
    assert_same(alone, together)


def _loss_of_a_child(scores: ChainScores, q: Tensor, queue: "multiprocessing.Queue[list[float]]") -> None:
    queue.put(kernel.forward(scores, q)[0].tolist())


@pytest.mark.skipif(sys.platform == "win32", reason="no fork on Windows")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_works_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads live for one call, so a child of a process that used them is none the worse."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    scores, q = ChainScores(torch.randn(8, 6, 50), torch.randn(8, 5, 50, 50)), torch.full((8, 6, 50), 0.02)
    expected = kernel.forward(scores, q)[0].tolist()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_loss_of_a_child, args=(scores, q, queue), daemon=True)
    child.start()
    assert queue.get(timeout=60) == expected
    child.join(timeout=60)
    assert child.exitcode == 0


def test_a_library_that_cannot_be_loaded_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"_kernel{EXTENSION_SUFFIXES[0]}").write_bytes(b"built for another machine")
    monkeypatch.setattr(kernel, "__file__", str(tmp_path / "kernel.py"))
    with pytest.warns(UserWarning, match="using pure torch"):
        assert kernel._open.__wrapped__() is None


@pytest.mark.parametrize("K", [1, 5, 8, 13, 40])
@pytest.mark.parametrize("form", [(1, 1), (3, 1), (1, 3), (3, 3)])
def test_the_scan_sees_every_score(K: int, form: tuple[int, int]) -> None:
    """NaN and infinities at the first, a middle and the last place of each tensor, and no false alarm."""
    for name in ("emissions", "transitions"):
        for place in (0, 0.5, 1):
            for value in (0.0, 3e38, torch.nan, torch.inf, -torch.inf):
                tensors = {"emissions": torch.zeros(3, 4, K), "transitions": torch.zeros(*form, K, K)}
                flat = tensors[name].view(-1)
                flat[int(place * (len(flat) - 1))] = value
                assert kernel.is_finite(ChainScores(**tensors)) == (value in (0.0, 3e38))


@pytest.mark.parametrize("bad", [0, -1, 6, 1 << 40, -(1 << 62)])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("shared", [True, False])
def test_lengths_outside_the_steps_are_refused_even_without_validation(bad: int, order: int, shared: bool) -> None:
    emissions, links = torch.randn(3, 5, 4, requires_grad=True), torch.randn(4, 4)
    transitions = links if shared else links.expand(3, 4, 4, 4).clone()
    skips = links if order == 2 else None
    crf = ChainCRF(emissions, transitions, torch.tensor([5, bad, 2]), validate=False, skips=skips)
    q = torch.full((3, 5, 4), 0.25)
    answers = [lambda: crf.log_partition, lambda: crf.kl(q)]
    if order == 1:  # decoding of second order is torch's
        answers.append(crf.viterbi)
    with torch.no_grad():
        answers += [lambda: crf.marginals, lambda: crf.pair_marginals]
        for answer in answers:
            with pytest.raises(ValueError, match="lengths: expected values from 1 to T = 5"):
                answer()


def test_the_backward_pass_refuses_them_too() -> None:
    emissions, transitions, lengths = torch.randn(2, 3, 4), torch.randn(1, 1, 4, 4), torch.tensor([3, 2])
    scores = ChainScores(emissions, transitions, lengths)
    _, *saved = kernel.forward(scores, None)
    lengths[1] = 4  # between the two
    with pytest.raises(ValueError, match="lengths"):
        kernel.backward(torch.ones(2), scores, None, *saved, pairs=True)


@pytest.mark.parametrize(
    "sizes", [(0, 1, 1), (1, 0, 1), (1, 1, -1), (1 << 40, 1 << 20, 8), (1, 1, 1 << 40), (1, 1, (1 << 63) - 1)]
)
@pytest.mark.parametrize("name", ["scan", "forward", "backward", "shared_forward", "viterbi", "second_forward"])
def test_sizes_whose_product_is_no_index_are_refused_before_anything_is_read(
    name: str, sizes: tuple[int, int, int]
) -> None:
    with pytest.raises(ValueError, match="emissions: expected a shape"):
        kernel.call(f"phrasechain_{name}", kernel.Chain(*sizes, 1))  # all pointers are null
