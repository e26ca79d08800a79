"""Suppression against plain loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from phrasechain.boxes import iou_xyxy
from phrasechain.vision.nms import in_turn, suppress


def greedy(boxes: Tensor, threshold: float) -> list[bool]:
    kept: list[bool] = []
    for i, box in enumerate(boxes):
        kept.append(not any(kept[j] and iou_xyxy(box, boxes[j]) > threshold for j in range(i)))
    return kept


corner = st.integers(0, 12)
box = st.builds(lambda x, y, w, h: (x, y, x + w, y + h), corner, corner, st.integers(0, 8), st.integers(0, 8))


@given(st.lists(box, min_size=1, max_size=25), st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]))
def test_keeps_what_the_greedy_loop_keeps(boxes: list[tuple[int, ...]], threshold: float) -> None:
    given_boxes = torch.tensor(boxes, dtype=torch.float32)
    assert suppress(given_boxes, threshold).tolist() == greedy(given_boxes, threshold)


def test_a_chain_of_overlaps_takes_many_rounds() -> None:
    """Each box overlaps its neighbours only, so every second one stays: the answer travels down the chain."""
    starts = torch.arange(40.0)
    boxes = torch.stack((starts, torch.zeros(40), starts + 2, torch.ones(40)), -1)
    assert suppress(boxes, 0.3).tolist() == [i % 2 == 0 for i in range(40)]


def test_images_of_a_batch_do_not_meet() -> None:
    generator = torch.Generator().manual_seed(0)
    low = torch.rand(4, 30, 2, generator=generator)
    boxes = torch.cat((low, low + torch.rand(4, 30, 2, generator=generator)), -1)
    together = suppress(boxes, 0.5)
    assert together.any()
    assert not together.all()
    for one, kept in zip(boxes, together, strict=True):
        assert torch.equal(suppress(one, 0.5), kept)


@given(
    boxes=st.lists(st.tuples(*[st.integers(0, 6)] * 4), min_size=1, max_size=12),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_turns_are_taken_by_what_is_left_of_each_box(
    boxes: list[tuple[int, ...]], seed: int, data: st.DataObject
) -> None:
    corners = torch.tensor(boxes, dtype=torch.float32)
    ordered = torch.cat((torch.minimum(corners[:, :2], corners[:, 2:]), 0.5 + torch.maximum(*corners.chunk(2, 1))), 1)
    score = torch.randn(len(boxes), generator=torch.Generator().manual_seed(seed))
    count = data.draw(st.integers(1, len(boxes) + 2))
    places, worth = in_turn(ordered, score, count)
    assert len(places) == min(count, len(boxes))
    assert len(set(places.tolist())) == len(places)
    for turn, place in enumerate(places.tolist()):
        taken = places[:turn].tolist()

        def left(box: int, taken: list[int] = taken) -> float:
            chance = 1 / (1 + math.exp(-float(score[box])))
            for other in taken:
                chance *= 1 - 1 / (1 + math.exp(-20 * (float(iou_xyxy(ordered[box], ordered[other])) - 0.55)))
            return chance

        assert math.exp(worth[turn]) == pytest.approx(left(place), rel=1e-3)
        assert left(place) >= 0.999 * max(left(box) for box in range(len(boxes)) if box not in taken)
