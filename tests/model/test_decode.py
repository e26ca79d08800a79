"""Decoding against every sequence of regions of small chains, and boxes against loops."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.model import decode as module
from phrasechain.model.batch import Batch
from phrasechain.model.decode import DECODERS, consensus_boxes, decode, kbest, marginals, ranked, refine
from phrasechain.model.scores import Scores
from tiny_batches import tiny_batch


@pytest.fixture
def batch() -> Batch:
    return tiny_batch(1, regions=(2, 4))


def make_scores(batch: Batch, chain: bool = True) -> Scores:
    torch.manual_seed(4)
    P, K = len(batch.spans), batch.boxes.shape[1]
    transitions = 2 * torch.randn(len(batch.lengths), batch.steps - 1, K, K)
    offsets = torch.randn(P, K, 4) / 3
    return Scores(torch.randn(P, K), offsets, transitions if chain else None)


def sequences(scores: Scores, batch: Batch, caption: int) -> list[tuple[float, tuple[int, ...]]]:
    """Every sequence of regions of a caption with its score, best first."""
    phrases = (batch.phrase_caption == caption).nonzero()[:, 0].tolist()
    found = []
    for path in itertools.product(batch.label_mask[caption].nonzero()[:, 0].tolist(), repeat=len(phrases)):
        score = sum(float(scores.emissions[p, k]) for p, k in zip(phrases, path, strict=True))
        if scores.transitions is not None:
            score += sum(float(scores.transitions[caption, t, path[t], path[t + 1]]) for t in range(len(path) - 1))
        found.append((score, path))
    return sorted(found, reverse=True)


def true_marginals(scores: Scores, batch: Batch) -> Tensor:
    rows = torch.zeros(len(batch.lengths), batch.steps, batch.boxes.shape[1])
    for caption in range(len(batch.lengths)):
        every = sequences(scores, batch, caption)
        total = math.fsum(math.exp(score) for score, _ in every)
        for score, path in every:
            for step, region in enumerate(path):
                rows[caption, step, region] += math.exp(score) / total
    return batch.to_phrases(rows)


@pytest.mark.parametrize("chain", [True, False])
def test_regions_and_probabilities_by_enumeration(batch: Batch, chain: bool) -> None:
    scores = make_scores(batch, chain)
    found = {method: decode(scores, batch, method) for method in DECODERS}
    best = [region for caption in range(5) for region in sequences(scores, batch, caption)[0][1]]
    assert found["viterbi"].region.tolist() == best
    joint, alone = true_marginals(scores, batch), true_marginals(replace(scores, transitions=None), batch)
    assert found["smoothing"].region.tolist() == joint.argmax(1).tolist()
    assert found["independent"].region.tolist() == alone.argmax(1).tolist()
    for method, decoded in found.items():
        expected = alone if method == "independent" else joint
        torch.testing.assert_close(decoded.probabilities, expected, atol=1e-5, rtol=1e-4)
        assert (decoded.probabilities[~batch.region_mask[batch.phrase_image]] == 0).all()
        if method != "consensus":
            assert torch.equal(decoded.boxes, decoded.refined[torch.arange(len(best)), decoded.region])
    if chain:
        assert len({tuple(each.region.tolist()) for each in found.values()}) > 1  # else these prove little


def test_boxes_are_refined_and_kept_within_the_image(batch: Batch) -> None:
    scores = make_scores(batch)
    plain = refine(replace(scores, offsets=None), batch)
    assert torch.equal(plain, batch.boxes[batch.phrase_image])
    torch.testing.assert_close(
        refine(replace(scores, offsets=torch.zeros(len(batch.spans), batch.boxes.shape[1], 4)), batch), plain
    )
    p, k = 2, 1
    x0, y0, x1, y1 = batch.boxes[batch.phrase_image[p], k].tolist()
    dx, dy, dw, dh = scores.offsets[p, k].tolist() if scores.offsets is not None else ()
    x, y = (x0 + x1) / 2 + dx * (x1 - x0), (y0 + y1) / 2 + dy * (y1 - y0)
    w, h = (x1 - x0) * math.exp(dw) / 2, (y1 - y0) * math.exp(dh) / 2
    expected = [max(x - w, 0), max(y - h, 0), min(x + w, 100), min(y + h, 80)]
    assert refine(scores, batch)[p, k].tolist() == pytest.approx(expected, rel=1e-4)
    far = refine(replace(scores, offsets=torch.full((len(batch.spans), batch.boxes.shape[1], 4), 3.0)), batch)
    assert (far >= 0).all()
    assert (far <= torch.tensor([100.0, 80, 100, 80])).all()


@pytest.mark.parametrize("chunk", [1, 1 << 22])
def test_consensus_by_loops(batch: Batch, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    scores = make_scores(batch)
    p, boxes = marginals(scores, batch), refine(scores, batch)
    regions, medians = consensus_boxes(p, boxes)
    for row in range(len(p)):
        real = batch.region_mask[batch.phrase_image[row]].nonzero()[:, 0].tolist()

        def agree(k: int, other: int, row: int = row) -> float:
            return 1 / (1 + math.exp(-12 * (float(iou_xyxy(boxes[row, k], boxes[row, other])) - 0.5)))

        best = max(real, key=lambda k: sum(float(p[row, other]) * agree(k, other) for other in real))
        weights = [float(p[row, other]) * agree(best, other) for other in real]
        assert regions[row] == best
        for side in range(4):
            pairs = sorted(zip(boxes[row, real, side].tolist(), weights, strict=True))
            below = [value for value, _ in pairs if sum(w for v, w in pairs if v <= value) < sum(weights) / 2]
            assert medians[row, side].item() == pytest.approx(pairs[len(below)][0], abs=1e-4)


def test_consensus_prefers_many_that_agree_to_one_that_is_likelier() -> None:
    box, other = [10.0, 10, 50, 50], [60.0, 10, 90, 60]
    boxes = torch.tensor([[box, [12.0, 10, 52, 50], [10.0, 12, 50, 52], other]])
    region, median = consensus_boxes(torch.tensor([[0.2, 0.2, 0.2, 0.4]]), boxes)
    assert region.item() in (0, 1, 2)
    assert median[0].tolist() == box


def test_ranked_regions_fall_in_probability_and_are_the_images_own(batch: Batch) -> None:
    decoded = decode(make_scores(batch), batch, "smoothing")
    lists = ranked(decoded, batch, 3)
    counts = batch.region_mask.sum(1)[batch.phrase_image].tolist()
    assert min(counts) < 3 < max(counts)
    for row, (boxes, chances) in enumerate(lists):
        assert len(boxes) == len(chances) == min(3, counts[row])
        expected = sorted(decoded.probabilities[row, : counts[row]].tolist(), reverse=True)[:3]
        assert chances.tolist() == pytest.approx(expected)
        assert torch.equal(boxes[0], decoded.boxes[row])
    assert [len(boxes) for boxes, _ in ranked(decoded, batch, 100)] == counts


@pytest.mark.parametrize("chain", [True, False])
def test_the_best_groundings_of_each_caption(batch: Batch, chain: bool) -> None:
    scores = make_scores(batch, chain)
    found = kbest(scores, batch, 5)
    for caption in range(5):
        every = sequences(scores, batch, caption)
        total = math.fsum(math.exp(score) for score, _ in every)
        for place, (score, path) in enumerate(every[:5]):
            assert found.regions[caption, place, : len(path)].tolist() == list(path)
            assert found.scores[caption, place].item() == pytest.approx(score, abs=1e-4)
            assert found.probabilities[caption, place].item() == pytest.approx(math.exp(score) / total, rel=1e-3)
        assert (found.probabilities[caption, len(every) :] == 0).all()


def test_unknown_decoders_are_refused(batch: Batch) -> None:
    with pytest.raises(DataError, match=r"no decoder named 'viterby'.*did you mean 'viterbi'"):
        decode(make_scores(batch), batch, "viterby")
