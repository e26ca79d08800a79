"""The label ∅ against every sequence of K + 1 labels of small chains."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from phrasechain.model.batch import Batch
from phrasechain.model.decode import DECODERS, chain_with_absent, decode, kbest
from phrasechain.model.presence import PresenceScores, PresenceTransitions, statistics
from phrasechain.model.scores import Scores
from phrasechain.model.targets import Targets
from tiny_batches import terms_of, tiny_batch, tiny_example


def make_scores(batch: Batch, seed: int = 4, chain: bool = True, context: bool = True) -> Scores:
    """Random scores, NaN at regions that an image does not have."""
    torch.manual_seed(seed)
    P, K, B, T = len(batch.spans), batch.boxes.shape[1], len(batch.lengths), batch.steps
    emissions = torch.randn(P, K).double().masked_fill(~batch.region_mask[batch.phrase_image], torch.nan)
    transitions = 2 * torch.randn(B, T - 1 if context else 1, K, K).double()
    labels = batch.label_mask
    transitions.masked_fill_(~(labels[:, None, :, None] & labels[:, None, None, :]), torch.nan)
    edges = torch.randn(B, T - 1, 3).double()
    parts = (transitions, torch.randn(P).double(), edges) if chain else (None, torch.randn(P).double(), None)
    return Scores(emissions, torch.randn(P, K, 4).double() / 3, parts[0], None, *parts[1:])


def paths_of(scores: Scores, batch: Batch, caption: int) -> list[tuple[float, tuple[int, ...]]]:
    """Every sequence of regions and ∅ (−1) of a caption, with exp of its score."""
    phrases = (batch.phrase_caption == caption).nonzero()[:, 0].tolist()
    regions = batch.label_mask[caption].nonzero()[:, 0].tolist()
    assert scores.presence is not None
    found = []
    for path in itertools.product([*regions, -1], repeat=len(phrases)):
        score = 0.0
        for phrase, label in zip(phrases, path, strict=True):
            of_regions = [float(scores.emissions[phrase, k]) for k in regions]
            all_regions = math.log(sum(map(math.exp, of_regions)))
            score += all_regions - float(scores.presence[phrase]) if label < 0 else of_regions[label]
        for step, (one, other) in enumerate(itertools.pairwise(path)):
            if scores.transitions is not None and scores.presence_transitions is not None:
                out_of, into, both = scores.presence_transitions[caption, step].tolist()
                between = scores.transitions[caption, step % scores.transitions.shape[1]]
                score += (
                    (both if other < 0 else out_of) if one < 0 else into if other < 0 else float(between[one, other])
                )
        found.append((math.exp(score), path))
    return found


def truth(scores: Scores, batch: Batch) -> tuple[Tensor, Tensor]:
    """p(k | not ∅) and p(not ∅) of each phrase."""
    P, K = len(batch.spans), batch.boxes.shape[1]
    joint, presence = torch.zeros(P, K).double(), torch.zeros(P).double()
    for caption in range(len(batch.lengths)):
        every = paths_of(scores, batch, caption)
        total = math.fsum(weight for weight, _ in every)
        first = int((batch.phrase_caption == caption).nonzero()[0, 0])
        for weight, path in every:
            for step, label in enumerate(path):
                if label >= 0:
                    joint[first + step, label] += weight / total
                    presence[first + step] += weight / total
    return joint / presence[:, None], presence


@pytest.mark.parametrize(("chain", "context"), [(True, True), (True, False), (False, False)])
def test_probabilities_and_presence_by_enumeration(chain: bool, context: bool) -> None:
    batch = tiny_batch(1, regions=(2, 4))
    scores = make_scores(batch, chain=chain, context=context)
    joint, presence = truth(scores, batch)
    alone, alone_presence = truth(replace(scores, transitions=None), batch)
    for method in DECODERS:
        found = decode(scores, batch, method)
        expected = (alone, alone_presence) if method == "independent" else (joint, presence)
        torch.testing.assert_close(found.probabilities, expected[0])
        torch.testing.assert_close(found.presence, expected[1])
    assert decode(scores, batch, "smoothing").region.tolist() == joint.argmax(1).tolist()


def test_by_itself_presence_is_its_logit_and_moves_no_region() -> None:
    batch = tiny_batch(2, most_phrases=1)
    scores = make_scores(batch)
    assert scores.presence is not None
    without = replace(scores, presence=None, presence_transitions=None)
    for method in DECODERS:
        found, plain = decode(scores, batch, method), decode(without, batch, method)
        torch.testing.assert_close(found.presence, scores.presence.sigmoid())
        torch.testing.assert_close(found.probabilities, plain.probabilities)
        torch.testing.assert_close(found.boxes, plain.boxes)
        assert plain.presence is None


def test_viterbi_and_kbest_leave_the_label_out() -> None:
    batch = tiny_batch(3, regions=(2, 4))
    scores = make_scores(batch)
    without = replace(scores, presence=None, presence_transitions=None)
    assert torch.equal(decode(scores, batch).region, decode(without, batch).region)
    assert torch.equal(kbest(scores, batch, 3).regions, kbest(without, batch, 3).regions)


def test_surely_present_is_the_chain_without_the_label() -> None:
    batch = tiny_batch(3, regions=(2, 4))
    scores = make_scores(batch)
    sure = replace(scores, presence=torch.full_like(scores.presence, 60.0))  # type: ignore[arg-type]
    without = replace(scores, presence=None, presence_transitions=None)
    for method in DECODERS:
        found, plain = decode(sure, batch, method), decode(without, batch, method)
        torch.testing.assert_close(found.probabilities, plain.probabilities)
        torch.testing.assert_close(found.boxes, plain.boxes)


def marked(seed: int) -> tuple[Batch, Targets, Tensor]:
    batch, targets = tiny_example(seed, captions=8, regions=(2, 4), unknown=0.5)
    absent = ~targets.has_box & (torch.arange(len(targets.gold)) % 3 > 0)
    return batch, replace(targets, absent=absent), absent


@pytest.mark.parametrize("chain", [True, False])
def test_the_loss_by_enumeration(chain: bool) -> None:
    """−log of what the chain gives to the true labels, the others summed out; hard targets."""
    batch, targets, absent = marked(5)
    assert 0 < int(absent.sum()) < int((~targets.labelled).sum())
    scores = make_scores(batch, chain=chain)
    leaves = {name: getattr(scores, name).clone().requires_grad_() for name in ("emissions", "presence")}
    terms = terms_of(replace(scores, **leaves), batch, targets, kind="hard")
    labels = torch.where(absent, -1, torch.where(targets.labelled, targets.iou.argmax(1), -2)).tolist()
    expected = 0.0
    for caption in range(len(batch.lengths)):
        mine = [labels[row] for row in (batch.phrase_caption == caption).nonzero()[:, 0].tolist()]
        every = paths_of(scores, batch, caption)
        right = [w for w, path in every if all(b in (-2, a) for a, b in zip(path, mine, strict=True))]
        expected -= math.log(math.fsum(right) / math.fsum(w for w, _ in every))
    assert terms.grounding.item() == pytest.approx(expected, rel=1e-6)
    assert int(terms.count) == int(targets.labelled.sum())
    terms.grounding.backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves.values())


def test_scores_without_the_label_learn_nothing_from_absent_phrases() -> None:
    batch, targets, absent = marked(5)
    without = replace(make_scores(batch, chain=False), presence=None)
    plain = terms_of(without, batch, replace(targets, absent=torch.zeros_like(absent)), kind="hard")
    torch.testing.assert_close(terms_of(without, batch, targets, kind="hard").grounding, plain.grounding)


def test_statistics_against_a_loop() -> None:
    torch.manual_seed(0)
    emissions, matches = torch.randn(3, 4).double(), torch.randn(3, 4).double()
    mask = torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [True] * 3 + [False]])
    found = statistics(emissions, matches * mask, mask)
    for row, count in enumerate((4, 2, 3)):
        e, s = emissions[row, :count], matches[row, :count]
        p = [math.exp(float(x)) / sum(math.exp(float(y)) for y in e) for x in e]
        wanted = [
            sum(a * float(b) for a, b in zip(p, s, strict=True)),
            math.log(sum(math.exp(float(x)) for x in s) / count),
            float(s.mean()),
            math.log(max(p)),
            -sum(a * math.log(a) for a in p),
        ]
        assert found[row].tolist() == pytest.approx(wanted)


def test_presence_does_not_move_how_emissions_rank_regions() -> None:
    batch = tiny_batch(1)
    torch.manual_seed(0)
    P, K = len(batch.spans), batch.boxes.shape[1]
    emissions, matches = torch.randn(P, K, requires_grad=True), torch.randn(P, K, requires_grad=True)
    logits = PresenceScores(6)(torch.randn(P, 6), emissions, matches, batch)
    assert logits.shape == (P,)
    logits.sum().backward()
    assert emissions.grad is None
    assert matches.grad is not None
    assert PresenceTransitions(6, 0)(torch.randn(P, 6), None, batch).shape == (len(batch.lengths), batch.steps - 1, 3)


def test_the_chain_has_one_more_label() -> None:
    batch = tiny_batch(1)
    crf = chain_with_absent(make_scores(batch), batch)
    marginals = batch.to_phrases(crf.marginals)
    assert marginals.shape[1] == batch.boxes.shape[1] + 1
    assert (marginals[:, -1] > 0).all()
    torch.testing.assert_close(marginals.sum(1), torch.ones(len(marginals)).double())
