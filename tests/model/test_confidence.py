"""Mass, evidence and alternatives against plain loops."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phrasechain.core.boxes import iou_xyxy
from phrasechain.model.confidence import Calibration, answers_of, chosen_evidence
from phrasechain.model.decode import DECODERS, Decoded, decode
from phrasechain.model.scores import Scores
from tiny_batches import tiny_batch


def random_case(seed: int, how: str) -> tuple[Scores, Decoded]:
    batch = tiny_batch(seed, regions=(2, 7))
    generator = torch.Generator().manual_seed(seed)
    P, K = len(batch.phrase_caption), batch.boxes.shape[1]
    B, T = len(batch.lengths), batch.steps
    scores = Scores(
        torch.randn(P, K, generator=generator) * 2,
        torch.randn(P, K, 4, generator=generator) * 0.2,
        torch.randn(B, T - 1, K, K, generator=generator) if T > 1 else None,
    )
    return scores, decode(scores, batch, how)


@settings(max_examples=25)
@given(st.integers(0, 200), st.sampled_from(sorted(DECODERS)))
def test_evidence_is_what_a_loop_finds(seed: int, how: str) -> None:
    scores, decoded = random_case(seed, how)
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


@settings(max_examples=25)
@given(st.integers(0, 200), st.sampled_from(sorted(DECODERS)), st.integers(0, 8))
def test_alternatives_are_distinct_and_in_order(seed: int, how: str, top_k: int) -> None:
    scores, decoded = random_case(seed, how)
    for row, (chosen, others) in enumerate(answers_of(scores, decoded, Calibration(), top_k)):
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
