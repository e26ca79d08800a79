"""NMS and soft-NMS against plain loops."""

import math
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from phrasechain.chain import kernel
from phrasechain.core.boxes import iou_xyxy
from phrasechain.regions import nms_kernel
from phrasechain.regions.nms import best_boxes, nms, soft_nms, suppress


def greedy(boxes: Tensor, threshold: float) -> list[bool]:
    kept: list[bool] = []
    for i, box in enumerate(boxes):
        kept.append(not any(kept[j] and iou_xyxy(box, boxes[j]) > threshold for j in range(i)))
    return kept


each_path = pytest.mark.parametrize("path", ["compiled", "torch"])


def on_path(path: str) -> AbstractContextManager[None]:
    """With or without compiled code, where there is such."""
    if path == "compiled" and nms_kernel.load() is None:
        pytest.skip("nms.c was not compiled here")
    return kernel.disabled() if path == "torch" else nullcontext()


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


@each_path
@given(
    boxes=st.lists(st.tuples(*[st.integers(0, 6)] * 4), min_size=1, max_size=12),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_soft_nms_selects_the_highest_remaining_score(
    path: str, boxes: list[tuple[int, ...]], seed: int, data: st.DataObject
) -> None:
    corners = torch.tensor(boxes, dtype=torch.float32)
    ordered = torch.cat((torch.minimum(corners[:, :2], corners[:, 2:]), 0.5 + torch.maximum(*corners.chunk(2, 1))), 1)
    score = torch.randn(len(boxes), generator=torch.Generator().manual_seed(seed))
    count = data.draw(st.integers(1, len(boxes) + 2))
    with on_path(path):
        indices, log_scores = soft_nms(ordered, score, count)
    assert len(indices) == min(count, len(boxes))
    assert len(set(indices.tolist())) == len(indices)
    for round, index in enumerate(indices.tolist()):
        taken = indices[:round].tolist()

        def remaining_score(box: int, taken: list[int] = taken) -> float:
            remaining = 1 / (1 + math.exp(-float(score[box])))
            for other in taken:
                remaining *= 1 - 1 / (1 + math.exp(-20 * (float(iou_xyxy(ordered[box], ordered[other])) - 0.55)))
            return remaining

        assert math.exp(log_scores[round]) == pytest.approx(remaining_score(index), rel=1e-3)
        assert remaining_score(index) >= 0.999 * max(
            remaining_score(box) for box in range(len(boxes)) if box not in taken
        )


@each_path
@given(
    boxes=st.lists(box, min_size=0, max_size=60),
    threshold=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    count=st.integers(1, 70),
    block=st.integers(1, 64),
)
def test_nms_gives_the_first_boxes_that_the_greedy_loop_keeps(
    path: str, boxes: list[tuple[int, ...]], threshold: float, count: int, block: int
) -> None:
    ordered = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    wanted = [index for index, stays in enumerate(greedy(ordered, threshold)) if stays]
    with pytest.MonkeyPatch.context() as patch, on_path(path):
        patch.setattr("phrasechain.regions.nms._BLOCK", block)
        assert nms(ordered, threshold, count).tolist() == wanted[:count]


def test_both_paths_agree_on_many_boxes() -> None:
    rng = torch.Generator().manual_seed(0)
    low = torch.rand(2500, 2, generator=rng)
    boxes = torch.cat((low, low + 0.3 * torch.rand(2500, 2, generator=rng)), -1)
    score = torch.randn(2500, generator=rng)
    found = []
    for path in ("compiled", "torch"):
        with on_path(path):
            found.append((nms(boxes, 0.6, 200), *soft_nms(boxes[:300], score[:300], 100)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    torch.testing.assert_close(found[0][2], found[1][2], rtol=1e-5, atol=1e-6)


@each_path
def test_a_view_of_other_boxes_is_read_as_it_is(path: str) -> None:
    """Rows that do not lie side by side in memory."""
    rng = torch.Generator().manual_seed(0)
    low = torch.rand(40, 2, generator=rng)
    wide = torch.cat((low, low + 0.5, low), -1)  # (40, 6)
    with on_path(path):
        assert torch.equal(nms(wide[:, :4], 0.5, 9), nms(wide[:, :4].clone(), 0.5, 9))
        assert torch.equal(
            soft_nms(wide[:, :4], wide[:, 0], 9)[0], soft_nms(wide[:, :4].clone(), low[:, 0].clone(), 9)[0]
        )


@each_path
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_numbers_torch_prefers_makes_no_difference(path: str, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(0)
    low = torch.rand(50, 2, generator=rng)
    boxes, score = torch.cat((low, low + 0.4), -1), torch.randn(50, generator=rng)
    with on_path(path):
        wanted = (nms(boxes, 0.5, 20), *soft_nms(boxes, score, 30))
        torch.set_default_dtype(dtype)
        try:
            found = (nms(boxes, 0.5, 20), *soft_nms(boxes, score, 30))
        finally:
            torch.set_default_dtype(torch.float32)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.to(other), other, atol=0.02 if path == "torch" else 0, rtol=0)


@each_path
def test_scores_and_boxes_that_do_not_belong_together_are_refused(path: str) -> None:
    with on_path(path), pytest.raises((RuntimeError, ValueError)):
        soft_nms(torch.rand(3, 4), torch.rand(2), 2)


def test_other_numbers_than_float32_are_chosen_among_in_torch() -> None:
    boxes = torch.tensor([[0.0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]], dtype=torch.float64)
    assert nms(boxes, 0.5, 3).tolist() == [0, 2]
    assert soft_nms(boxes, torch.tensor([2.0, 1.5, 1.0], dtype=torch.float64), 3)[0].tolist() == [0, 2, 1]


def scored_boxes(B: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(B, 60, 2, generator=generator) * 0.6
    boxes = torch.cat((low, low + 0.05 + torch.rand(B, 60, 2, generator=generator) * 0.5), -1)
    return torch.randn(B, 60, generator=generator), boxes


def test_the_best_come_first_and_the_suppressed_fill_up() -> None:
    boxes = torch.tensor([[[0.0, 0, 0.5, 0.5], [0.0, 0, 0.5, 0.49], [0.5, 0.5, 1.2, 1.0], [0.2, 0.8, 0.3, 0.9]]])
    selected = best_boxes(torch.tensor([[0.1, 0.9, 0.3, 0.2]]), boxes, candidates=4, overlap=0.5, count=4)
    assert selected.indices.tolist() == [[1, 2, 3, 0]]
    assert selected.kept.tolist() == [[True, True, True, False]]
    assert torch.equal(selected.boxes[0, 1], torch.tensor([0.5, 0.5, 1.0, 1.0]))  # cut at the border


def test_only_the_candidates_are_looked_at() -> None:
    score, boxes = scored_boxes(2, 0)
    selected = best_boxes(score, boxes, candidates=5, overlap=1.0, count=100)
    assert torch.equal(selected.indices, score.topk(5).indices)
