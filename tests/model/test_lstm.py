"""The LSTM over captions of different lengths against torch's own, packed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from phrasechain.model import lstm as module
from phrasechain.model.lstm import read_both_ways, scan

COUNTS = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def make(counts: list[int]) -> tuple[nn.LSTM, Tensor]:
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4, batch_first=True, bidirectional=True).double()
    return lstm, torch.randn(len(counts), max(counts), 3, dtype=torch.float64, requires_grad=True)


@given(COUNTS)
@settings(max_examples=40)
def test_states_and_gradients_are_those_of_torch(counts: list[int]) -> None:
    lstm, tokens = make(counts)
    found, expected = read_both_ways(lstm, tokens, counts), module._packed(lstm, tokens, counts)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(found.shape, dtype=torch.float64)
    leaves = [tokens, *lstm.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad((found * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_each_caption_as_if_it_were_alone() -> None:
    counts = [2, 5, 1]
    lstm, tokens = make(counts)
    found = read_both_ways(lstm, tokens, counts)
    assert found.shape == (3, 6, 8)
    for row, caption, count in zip(found, tokens, counts, strict=True):
        torch.testing.assert_close(row[:count], lstm(caption[None, :count])[0][0])
        assert not row[count:].any()


def test_numerical_gradients() -> None:
    gates = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda g, w: scan(g, w, [3, 2, 1]), (gates, weight))


def test_what_is_given_is_left_as_it_is() -> None:
    gates, weight = torch.randn(5, 8), torch.randn(8, 2)
    before = gates.clone()
    scan(gates, weight, [3, 2])
    assert torch.equal(gates, before)


@pytest.mark.parametrize("frozen", [False, True])
def test_mixed_precision(frozen: bool) -> None:
    counts = [3, 2]
    lstm, tokens = make(counts)
    lstm, tokens = lstm.float().requires_grad_(not frozen), tokens.detach().float().requires_grad_()
    exact = read_both_ways(lstm, tokens, counts)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = read_both_ways(lstm, tokens, counts)
    torch.testing.assert_close(mixed.float(), exact, atol=0.02, rtol=0.02)
    mixed.sum().backward()
    assert tokens.grad is not None
    assert tokens.grad.isfinite().all()
