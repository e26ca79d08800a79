"""Suppression against the plain greedy loop."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from phrasechain.boxes import iou_xyxy
from phrasechain.vision.nms import suppress


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
