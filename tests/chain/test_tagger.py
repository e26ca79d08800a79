"""ChainTagger: against pytorch-crf, and what it forbids."""

import itertools

import pytest
import torch
from torchcrf import CRF

from phrasechain import ChainTagger
from phrasechain.chain.tagger import FORBIDDEN

B, T, K = 5, 7, 6
LENGTHS = torch.tensor([7, 1, 4, 2, 6])
MASK = torch.arange(T) < LENGTHS[:, None]


def pair() -> tuple[ChainTagger, CRF]:
    torch.manual_seed(0)
    ours, theirs = ChainTagger(K), CRF(K, batch_first=True)
    for one, other in zip(
        (ours.transitions, ours.start, ours.end),
        (theirs.transitions, theirs.start_transitions, theirs.end_transitions),
        strict=True,
    ):
        torch.nn.init.normal_(other)
        one.data.copy_(other.data)
    return ours, theirs


def test_agrees_with_pytorch_crf(each_backend: str) -> None:
    ours, theirs = pair()
    emissions, labels = torch.randn(B, T, K), torch.randint(K, (B, T))
    crf = ours(emissions, LENGTHS)
    peer = -theirs(emissions, labels, MASK, reduction="none")
    torch.testing.assert_close(crf.nll(labels), peer, atol=1e-5, rtol=1e-5)
    best = [row[:length] for row, length in zip(crf.viterbi()[0].tolist(), LENGTHS.tolist(), strict=True)]
    assert best == theirs.decode(emissions, MASK)
    found = torch.autograd.grad(crf.nll(labels).sum(), (ours.transitions, ours.start, ours.end))
    expected = torch.autograd.grad(peer.sum(), (theirs.transitions, theirs.start_transitions, theirs.end_transitions))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_mask_without_holes_is_as_good_as_lengths() -> None:
    ours, _ = pair()
    emissions = torch.randn(B, T, K)
    assert torch.equal(ours(emissions, mask=MASK).log_partition, ours(emissions, LENGTHS).log_partition)


def test_forbidden_never_happens() -> None:
    torch.manual_seed(0)
    tagger = ChainTagger(3, forbid=[(0, 2), (1, 1)], forbid_start=[2], forbid_end=[0])
    crf = tagger(torch.randn(4, 5, 3) * 3, torch.tensor([5, 4, 3, 2]))
    samples = crf.sample(200, torch.Generator().manual_seed(0)).flatten(0, 1)
    lengths = torch.tensor([5, 4, 3, 2]).repeat_interleave(200)
    for row, length in zip(samples.tolist(), lengths.tolist(), strict=True):
        labels = row[:length]
        assert labels[0] != 2
        assert labels[-1] != 0
        assert not {(0, 2), (1, 1)} & set(itertools.pairwise(labels))
    (grad,) = torch.autograd.grad(crf.log_partition.sum(), tagger.transitions)
    assert grad[0, 2] == 0
    assert FORBIDDEN == -1e4


def test_learns_from_soft_labels() -> None:
    torch.manual_seed(0)
    tagger, q = ChainTagger(3), torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]]])
    emissions = torch.zeros(1, 2, 3, requires_grad=True)
    optimiser = torch.optim.Adam([*tagger.parameters(), emissions], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        tagger(emissions).kl(q).sum().backward()
        optimiser.step()
    torch.testing.assert_close(tagger(emissions).marginals.detach(), q, atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": MASK & (torch.arange(T) != 1)}, "mask: .*a hole in row 0"),
        ({"mask": MASK, "lengths": LENGTHS}, "either lengths or mask, got both"),
        ({"mask": MASK.long()}, "mask: expected dtype torch.bool"),
        ({"mask": MASK & (torch.arange(T) != 0)}, "mask: .*a hole in row 0"),
        ({"mask": MASK & (torch.arange(B)[:, None] != 3)}, "mask: .*at least one step per sequence, got none in row 3"),
        ({"lengths": torch.zeros(B).long()}, "lengths: expected values from 1"),
        ({"lengths": LENGTHS.tolist()}, r"lengths: expected a tensor \(\(B,\) of integers\), got list"),
        ({"lengths": LENGTHS[:, None]}, r"lengths: expected shape \(5,\), got shape \(5, 1\)"),
    ],
)
def test_refused(arguments: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChainTagger(K)(torch.zeros(B, T, K), **arguments)


def test_other_numbers_of_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="emissions: expected K = 6 labels"):
        ChainTagger(K)(torch.zeros(B, T, 4))
    with pytest.raises(ValueError, match="num_labels"):
        ChainTagger(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forbid": [(0, 6)]}, r"forbid: expected pairs of labels from 0 to 5, got \(0, 6\)"),
        ({"forbid": [(-1, 0)]}, r"got \(-1, 0\)"),
        ({"forbid": [2]}, "expected pairs of labels from 0 to 5, got 2"),
        ({"forbid": [(1,)]}, r"got \(1,\)"),
        ({"forbid_start": [-1]}, "forbid_start: expected labels from 0 to 5, got -1"),
        ({"forbid_end": [None]}, "forbid_end: expected labels from 0 to 5, got None"),
    ],
)
def test_what_cannot_be_forbidden_is_refused(arguments: dict[str, list[object]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChainTagger(K, **arguments)


def test_pairs_to_forbid_may_come_in_any_container() -> None:
    for pairs in ([[0, 2]], torch.tensor([[0, 2]]), {(0, 2)}):
        assert (~ChainTagger(3, forbid=pairs).allowed).nonzero().tolist() == [[0, 2]]
