"""Mass, evidence and alternatives against plain loops; the logistic against known truths and plain counts."""

import itertools
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phrasechain.core.boxes import iou_xyxy
from phrasechain.model.confidence import (
    Calibration,
    auroc,
    calibration_error,
    chosen_evidence,
    fit_logistic,
    rank_boxes,
    reliability_bins,
)
from phrasechain.model.decode import DECODERS, Decoded, decode
from phrasechain.model.scores import Scores
from tiny_batches import tiny_batch


def random_case(seed: int, method: str) -> tuple[Scores, Decoded]:
    batch = tiny_batch(seed, regions=(2, 7))
    generator = torch.Generator().manual_seed(seed)
    P, K = len(batch.phrase_caption), batch.boxes.shape[1]
    B, T = len(batch.lengths), batch.steps
    scores = Scores(
        torch.randn(P, K, generator=generator) * 2,
        torch.randn(P, K, 4, generator=generator) * 0.2,
        torch.randn(B, T - 1, K, K, generator=generator) if T > 1 else None,
    )
    return scores, decode(scores, batch, method)


@settings(max_examples=25)
@given(st.integers(0, 200), st.sampled_from(sorted(DECODERS)))
def test_evidence_is_what_a_loop_finds(seed: int, method: str) -> None:
    scores, decoded = random_case(seed, method)
    found = chosen_evidence(scores, decoded)
    for row, (box, p) in enumerate(zip(decoded.boxes, decoded.probabilities.double(), strict=True)):
        there = [k for k in range(len(p)) if p[k] > 0]
        overlap = {k: float(iou_xyxy(box, decoded.refined[row, k])) for k in there}
        agree = [k for k in there if overlap[k] >= 0.5] or [max(there, key=overlap.__getitem__)]
        mass = sum(float(p[k]) for k in there if overlap[k] >= 0.5)
        mass = min(max(mass, 1e-4), 1 - 1e-4)
        assert found[row, 0] == pytest.approx(math.log(mass / (1 - mass)), abs=1e-5)
        assert found[row, 1] == pytest.approx(max(float(scores.emissions[row, k]) for k in agree))
        assert found[row, 2] == pytest.approx(-sum(float(p[k]) * math.log(p[k]) for k in there), abs=1e-6)


def test_presence_is_evidence_and_bounds_probabilities() -> None:
    scores, decoded = random_case(3, "consensus")
    P = len(decoded.region)
    presence = torch.linspace(0.05, 0.95, P)
    seen = replace(decoded, presence=presence)
    evidence = chosen_evidence(scores, seen)
    assert torch.equal(evidence[:, :3], chosen_evidence(scores, decoded))
    torch.testing.assert_close(evidence[:, 3], torch.logit(presence.double()))
    found = rank_boxes(scores, seen, Calibration(), 3)
    plain = rank_boxes(scores, decoded, Calibration(), 3)
    for one, other, there in zip(found, plain, presence.tolist(), strict=True):
        assert one.presence == pytest.approx(there)
        assert other.presence is None
        assert one.box == other.box
        assert one.probability == pytest.approx(min(other.probability, there))
        assert all(each.probability <= there + 1e-9 for each in one.alternatives)


@settings(max_examples=25)
@given(st.integers(0, 200), st.sampled_from(sorted(DECODERS)), st.integers(0, 8))
def test_alternatives_are_distinct_and_in_order(seed: int, method: str, top_k: int) -> None:
    scores, decoded = random_case(seed, method)
    for row, chosen in enumerate(rank_boxes(scores, decoded, Calibration(), top_k)):
        others = chosen.alternatives
        assert chosen.box == tuple(decoded.boxes[row].tolist())
        p, refined = decoded.probabilities[row].double(), decoded.refined[row]
        for each in (chosen, *others):
            agree = (iou_xyxy(torch.tensor(each.box), refined) >= 0.5) & (p > 0)
            assert each.probability == pytest.approx(min(max(float(p[agree].sum()), 1e-4), 1 - 1e-4), abs=1e-6)
        assert len(others) <= top_k
        assert all(one.probability >= other.probability for one, other in pairwise(others))
        boxes = torch.tensor([chosen.box, *(other.box for other in others)])
        overlaps = iou_xyxy(boxes[:, None], boxes[None]).fill_diagonal_(0)
        assert (overlaps <= 0.5).all()
        if top_k > len(
            refined
        ):  # every region agrees with the chosen box, with an alternative, or with nothing probable
            overlap = iou_xyxy(refined[:, None], boxes[None]).amax(-1)
            assert (overlap[p > 1e-3] > 0.5).all()


def test_calibration_is_a_logistic() -> None:
    rows = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    found = Calibration((0.5, -1.0, 0.25), 0.75)(rows)
    assert found.tolist() == pytest.approx([1 / (1 + math.exp(-(0.5 - 2 + 0.75 + 0.75))), 1 / (1 + math.exp(-0.75))])
    masses = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    same = Calibration()(torch.stack([masses.logit(), masses, masses], -1))
    torch.testing.assert_close(same, masses)


def logistic_data(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (N, 3) and targets (N,) that are 1 with a probability that the rows tell exactly."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    p = (1.2 * rows[:, 0] + 0.6 * rows[:, 1] - 0.3).sigmoid()
    return rows, (torch.rand(count, generator=generator, dtype=torch.float64) < p).double()


def test_the_truth_is_found() -> None:
    rows, targets = logistic_data(40_000, 0)
    slopes, constant = fit_logistic(rows, targets, torch.ones(40_000, dtype=torch.float64))
    torch.testing.assert_close(slopes, torch.tensor([1.2, 0.6, 0.0], dtype=torch.float64), atol=0.06, rtol=0)
    assert float(constant) == pytest.approx(-0.3, abs=0.05)


def test_counts_are_repetitions() -> None:
    (rows, targets), counts = logistic_data(50, 1), torch.arange(50) % 3
    once = fit_logistic(
        rows.repeat_interleave(counts, 0), targets.repeat_interleave(counts), torch.ones(counts.sum()).double()
    )
    weighed = fit_logistic(rows[counts > 0], targets[counts > 0], counts[counts > 0].double())
    points = torch.randn(20, 3, dtype=torch.float64)
    predicted = [(points @ slopes + constant).sigmoid() for slopes, constant in (once, weighed)]
    torch.testing.assert_close(*predicted, atol=2e-3, rtol=0)  # the penalty is on differently scaled rows


def test_all_told_apart_stays_finite() -> None:
    rows = torch.tensor([[-1.0], [-0.5], [0.5], [1.0]], dtype=torch.float64)
    slopes, constant = fit_logistic(rows, (rows[:, 0] > 0).double(), torch.ones(4, dtype=torch.float64))
    assert slopes.isfinite().all()
    assert constant.isfinite()
    slopes, constant = fit_logistic(rows, torch.ones(4).double(), torch.ones(4, dtype=torch.float64))
    assert float(constant) > 3


def test_the_error_by_hand() -> None:
    probability = torch.tensor([0.05, 0.15, 0.12, 1.0, 0.95], dtype=torch.float64)
    right = torch.tensor([False, True, False, True, False])
    assert [count for count, _, _ in reliability_bins(probability, right)] == [1, 2, 0, 0, 0, 0, 0, 0, 0, 2]
    wanted = (1 * 0.05 + 2 * abs(0.135 - 0.5) + 2 * abs(0.975 - 0.5)) / 5
    assert calibration_error(probability, right) == pytest.approx(wanted)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_the_area_is_a_count_of_pairs(positive: list[int], negative: list[int]) -> None:
    pairs = list(itertools.product(positive, negative))
    wanted = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert auroc(torch.tensor(positive), torch.tensor(negative)) == pytest.approx(wanted)
