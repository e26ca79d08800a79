"""Bad input is refused at the door: the argument, what was expected, what came."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from phrasechain import ChainCRF

B, T, K = 2, 4, 3
E = torch.zeros(B, T, K)
TR = torch.zeros(K, K)
Q = torch.full((B, T, K), 1 / K)
INF, NAN = float("inf"), float("nan")


def with_value(tensor: torch.Tensor, place: tuple[int, ...], value: float) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


MASK = torch.tensor([[True, True, False], [True, True, True]])
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "emissions not a tensor": (lambda: ChainCRF([[1.0]], TR), "emissions: expected a tensor"),
    "emissions 2-D": (lambda: ChainCRF(E[0], TR), r"emissions: expected shape \(B, T, K\).*got shape \(4, 3\)"),
    "no steps": (lambda: ChainCRF(E[:, :0], TR), "at least 1"),
    "integer emissions": (lambda: ChainCRF(E.long(), TR), "emissions: expected a floating-point dtype"),
    "transitions 3-D": (lambda: ChainCRF(E, TR.expand(B, K, K)), r"unsqueeze\(1\).*unsqueeze\(0\)"),
    "transitions 1-D": (lambda: ChainCRF(E, TR[0]), r"transitions: expected \(K, K\).*got shape \(3,\)"),
    "other K": (lambda: ChainCRF(E, torch.zeros(4, 4)), r"with K = 3, got shape \(4, 4\)"),
    "other T": (lambda: ChainCRF(E, torch.zeros(B, 2, K, K)), r"transitions: expected \(2 or 1, 3 or 1, 3, 3\)"),
    "other B": (lambda: ChainCRF(E, torch.zeros(3, 1, K, K)), "transitions: expected"),
    "integer transitions": (lambda: ChainCRF(E, TR.long()), "transitions: expected a floating-point dtype"),
    "another device": (lambda: ChainCRF(E, TR.to("meta")), "transitions: expected device cpu.*got device meta"),
    "lengths shape": (lambda: ChainCRF(E, TR, torch.tensor([1])), r"lengths: expected shape \(2,\), got shape \(1,\)"),
    "a mask as lengths": (lambda: ChainCRF(E, TR, torch.ones(B, T).bool()), r"mask.sum\(1\)"),
    "float lengths": (lambda: ChainCRF(E, TR, torch.tensor([1.0, 2.0])), "lengths: expected an integer dtype"),
    "length 0": (lambda: ChainCRF(E, TR, torch.tensor([0, 2])), "lengths: expected values from 1 to T = 4, got 0"),
    "length beyond T": (lambda: ChainCRF(E, TR, torch.tensor([5, 2])), "from 1 to T = 4, got 5"),
    "label_mask shape": (lambda: ChainCRF(E, TR, None, MASK[:1]), r"label_mask: expected shape \(2, 3\)"),
    "label_mask dtype": (lambda: ChainCRF(E, TR, None, MASK.long()), "label_mask: expected dtype torch.bool"),
    "no label at all": (lambda: ChainCRF(E, TR, None, MASK & (torch.tensor([[0], [1]]) > 0)), "none in row 0"),
    "NaN emission": (lambda: ChainCRF(with_value(E, (1, 2, 0), NAN), TR), r"emissions: .*got nan at \[1, 2, 0\]"),
    "inf transition": (
        lambda: ChainCRF(E, with_value(TR, (2, 1), -INF)),
        r"transitions: .*-1e4.*got -inf at \[0, 0, 2, 1\]",
    ),
    "late transition": (
        lambda: ChainCRF(E, with_value(torch.zeros(B, T - 1, K, K), (1, 2, 0, 1), INF)),
        r"transitions: .*got inf at \[1, 2, 0, 1\]",
    ),
    "q shape": (lambda: ChainCRF(E, TR).kl(Q[0]), r"q: expected shape \(2, 4, 3\).*got shape \(4, 3\)"),
    "integer q": (lambda: ChainCRF(E, TR).kl(Q.long()), "q: expected a floating-point dtype.*nll"),
    "q no distribution": (lambda: ChainCRF(E, TR).kl(with_value(Q, (1, 3, 0), 0.5)), r"a sum of 1.16667 at \[1, 3\]"),
    "q almost a distribution": (lambda: ChainCRF(E, TR).kl(Q * 1.005), r"a sum of 1.005 at \[0, 0\]"),
    "negative q": (lambda: ChainCRF(E, TR).kl(Q * torch.tensor([-1.0, 2.0, 2.0])), "at least 0, got -0.333"),
    "NaN q": (lambda: ChainCRF(E, TR).kl(with_value(Q, (0, 1, 0), NAN)), "q: expected"),
    "q on a masked label": (lambda: ChainCRF(E, TR, None, MASK).kl(Q), r"no mass on masked labels.*at \[0, 0, 2\]"),
    "labelled shape": (lambda: ChainCRF(E, TR).kl(Q, torch.ones(B, 2).bool()), r"labelled: expected shape \(2, 4\)"),
    "labelled dtype": (lambda: ChainCRF(E, TR).kl(Q, torch.ones(B, T)), "labelled: expected dtype torch.bool"),
    "labels shape": (lambda: ChainCRF(E, TR).nll(torch.zeros(B, K).long()), r"labels: expected shape \(2, 4\)"),
    "float labels": (lambda: ChainCRF(E, TR).nll(torch.zeros(B, T)), "labels: expected an integer dtype"),
    "label too large": (lambda: ChainCRF(E, TR).nll(torch.full((B, T), K)), "values from 0 to K-1 = 2, got 3"),
    "negative label": (lambda: ChainCRF(E, TR).nll(torch.full((B, T), -1)), "values from 0 to K-1 = 2, got -1"),
    "a masked label": (
        lambda: ChainCRF(E, TR, None, MASK).nll(torch.full((B, T), 2)),
        r"the masked label 2 at \[0, 0\]",
    ),
    "nothing allowed": (
        lambda: ChainCRF(E, TR).partial_nll(torch.zeros(B, T, K).bool()),
        r"allowed: .*none at \[0, 0\]",
    ),
    "allowed dtype": (lambda: ChainCRF(E, TR).partial_nll(Q), "allowed: expected dtype torch.bool"),
    "no samples": (lambda: ChainCRF(E, TR).sample(0), "n: expected an integer of at least 1, got 0"),
    "sparse emissions": (lambda: ChainCRF(E.to_sparse(), TR), "emissions: expected a dense tensor"),
    "eight bits": (lambda: ChainCRF(E.to(torch.float8_e4m3fn), TR), "emissions: expected a floating-point dtype of 16"),
    "half a path": (lambda: ChainCRF(E, TR).kbest(1.5), "n: expected an integer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_what_stands_outside_is_not_validated() -> None:
    """Junk past the end and at masked labels, in every argument."""
    lengths = torch.tensor([2, 1])
    alive = torch.arange(T) < lengths[:, None]
    valid = alive[:, :, None] & MASK[:, None, :]
    transitions = torch.where(alive[:, 1:, None, None] & (MASK[:, None, :, None] & MASK[:, None, None, :]), 0.0, NAN)
    crf = ChainCRF(torch.where(valid, E, INF), transitions, lengths, MASK)
    q = torch.where(valid, 1.0, 0.0) / MASK.sum(1)[:, None, None]
    q = torch.where(alive[:, :, None], q, NAN)
    assert crf.kl(q).isfinite().all()
    assert crf.nll(torch.where(alive, 0, -(10**12))).isfinite().all()
    assert crf.partial_nll(valid).isfinite().all()
    labelled = torch.tensor([[True, False, True, True], [False, False, True, True]])
    assert crf.kl(torch.where(labelled[:, :, None], q, NAN), labelled).isfinite().all()


def test_sums_that_overflow_are_no_reason_to_refuse() -> None:
    emissions = torch.zeros(1, 2, 3)
    emissions[0, :, :2] = 3e38
    assert ChainCRF(emissions, torch.zeros(3, 3)) is not None


def test_validation_can_be_switched_off() -> None:
    crf = ChainCRF(with_value(E, (0, 0, 0), NAN), TR, validate=False)
    assert crf.kl(Q * 2).shape == (B,)
    with pytest.raises(ValueError, match=re.escape("q: expected shape")):  # shapes are always checked
        crf.kl(Q[0])


@pytest.mark.parametrize("shape", [(K, K), (B, 1, K, K), (1, 1, K, K), (1, 0, K, K), (B, 0, K, K)])
def test_one_step_takes_any_form_of_transitions(shape: tuple[int, ...]) -> None:
    transitions = torch.zeros(shape, requires_grad=True)
    crf = ChainCRF(torch.randn(B, 1, K), transitions)
    torch.testing.assert_close(
        crf.kl(Q[:, :1]),
        torch.log(torch.tensor(1 / K)) * 1.0 + crf.log_partition - (Q[:, :1] * crf._scores.emissions).sum((1, 2)),
    )
    assert crf.pair_marginals.shape == (B, 0, K, K)
    (grad,) = torch.autograd.grad(crf.kl(Q[:, :1]).sum(), transitions)
    assert torch.equal(grad, torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32])
def test_any_integers_serve_as_labels_and_lengths(dtype: torch.dtype) -> None:
    labels, lengths = torch.tensor([[0, 1, 1, 0], [2, 0, 1, 2]]), torch.tensor([4, 2])
    found = ChainCRF(E, TR, lengths.to(dtype), MASK).nll(labels.to(dtype))
    assert torch.equal(found, ChainCRF(E, TR, lengths, MASK).nll(labels))


def test_any_integer_counts() -> None:
    n = torch.tensor(2)[()]
    assert ChainCRF(E, TR).kbest(n)[0].shape == (B, 2, T)
    assert ChainCRF(E, TR).sample(n).shape == (B, 2, T)
