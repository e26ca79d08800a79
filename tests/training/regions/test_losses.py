"""Each loss against a plain loop, or against a value that can be had by hand."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from phrasechain.core.boxes import iou_xyxy
from phrasechain.training.regions.losses import (
    Supervision,
    assign,
    giou_xyxy,
    phrase_loss,
    proposal_losses,
    quality_losses,
    word_loss,
)


def random_boxes(generator: torch.Generator, *shape: int) -> Tensor:
    low = torch.rand(*shape, 2, generator=generator, dtype=torch.float64) * 0.7
    return torch.cat((low, low + 0.05 + torch.rand(*shape, 2, generator=generator, dtype=torch.float64) * 0.25), -1)


def test_giou_of_known_boxes() -> None:
    box = torch.tensor([0.0, 0.0, 1.0, 1.0])
    others = torch.tensor([[0.0, 0, 1, 1], [0.0, 0, 1, 0.5], [1.0, 0, 2, 1], [3.0, 0, 4, 1]])
    # the last: IoU 0, hull 4, union 2, so -(4 - 2) / 4
    torch.testing.assert_close(giou_xyxy(box, others), torch.tensor([1.0, 0.5, 0.0, -0.5]))


@given(st.integers(0, 1000))
def test_giou_is_at_most_iou_and_pulls_boxes_together(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    one, other = random_boxes(generator, 2)
    value = giou_xyxy(one, other)
    assert -1 < value <= iou_xyxy(one, other) + 1e-12
    nearer = one + 0.5 * (other - one)
    assert giou_xyxy(nearer, other) >= value - 1e-12


def test_an_anchor_stands_for_the_box_that_it_overlaps_most() -> None:
    generator = torch.Generator().manual_seed(0)
    anchors, named = random_boxes(generator, 200), random_boxes(generator, 2, 3)
    named[1, 2] = 0  # no box there
    stands, owner = assign(anchors, named)
    for image in range(2):
        overlap = iou_xyxy(anchors[:, None], named[image][None])  # (N, G)
        for place in range(200):
            near = {
                box: float(overlap[place, box])
                for box in range(3)
                if overlap[place, box] >= 0.5
                or (overlap[place, box] > 1e-3 and (overlap[:, box] > overlap[place, box]).sum() < 9)
            }
            assert bool(stands[image, place]) == bool(near)
            if near:
                assert int(owner[image, place]) == max(near, key=lambda box: near[box])


def test_a_perfect_proposal_costs_next_to_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    anchors, named = random_boxes(generator, 100), random_boxes(generator, 1, 2)
    stands, owner = assign(anchors, named)
    score = torch.where(stands, 12.0, -12.0).double()
    boxes = torch.where(stands[..., None], named[0][owner], anchors)
    good = proposal_losses(score, boxes, anchors, named)
    assert all(float(loss) < 1e-4 for loss in good)
    bad = proposal_losses(-score, anchors[None], anchors, named)
    assert all(float(loss) > 0.1 for loss in bad)


def test_an_image_without_named_boxes_teaches_that_nothing_is_there() -> None:
    anchors = random_boxes(torch.Generator().manual_seed(2), 50)
    score = torch.zeros(1, 50, dtype=torch.float64, requires_grad=True)
    focal, extent = proposal_losses(score, anchors[None], anchors, torch.zeros(1, 1, 4, dtype=torch.float64))
    focal.backward()
    assert float(extent) == 0
    assert score.grad is not None
    assert (score.grad > 0).all()


def test_quality_is_the_overlap_after_refinement() -> None:
    generator = torch.Generator().manual_seed(3)
    boxes, named = random_boxes(generator, 2, 7), random_boxes(generator, 2, 3)
    refined = boxes * 0.95 + 0.02
    boxes[0, 0] = named[0, 1]
    quality = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    judged, extent = quality_losses(quality, refined, boxes, named)
    expected, near = [], []
    for image in range(2):
        for place in range(7):
            overlap = iou_xyxy(boxes[image, place], named[image])
            gold = named[image, overlap.argmax()]
            after = iou_xyxy(refined[image, place], gold)
            expected.append(F.binary_cross_entropy_with_logits(quality[image, place], after))
            if overlap.max() >= 0.5:
                near.append(1 - giou_xyxy(refined[image, place], gold))
    torch.testing.assert_close(judged, torch.stack(expected).mean())
    torch.testing.assert_close(extent, torch.stack(near).mean())


def test_a_box_shows_the_words_of_all_boxes_near_it() -> None:
    named = torch.tensor([[[0.0, 0, 1, 1], [0.0, 0, 1, 0.8], [0.0, 0, 0.1, 0.1]]])
    words = torch.tensor([[[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]])
    boxes = torch.tensor([[[0.0, 0, 1, 0.9], [0.6, 0.6, 0.7, 0.7]]])  # near the first two; near none
    logits = torch.tensor([[[2.0, -1.0, 0.5], [9.0, 9.0, 9.0]]])
    expected = F.binary_cross_entropy_with_logits(logits[0, 0], torch.tensor([1.0, 1.0, 0.0]), reduction="sum")
    torch.testing.assert_close(word_loss(logits, boxes, named, words), expected)


def test_phrases_that_no_box_fits_are_left_out() -> None:
    boxes = torch.tensor([[0.0, 0, 1, 1], [0.0, 0, 1, 0.5], [0.9, 0.9, 1, 1]]).expand(2, 3, 4)
    gold = torch.tensor([[0.0, 0.0, 1.0, 0.75], [0.4, 0.4, 0.5, 0.5]])
    scores = torch.tensor([[0.3, -0.2, 1.0], [5.0, 1.0, 0.0]])
    q = torch.tensor([0.75, 2 / 3, 0.0])
    q = q / q.sum()
    p = scores[0].softmax(-1)
    expected = (q[:2] * (q[:2] / p[:2]).log()).sum()
    torch.testing.assert_close(phrase_loss(scores, boxes, gold), expected)


def supervision(*photos: tuple[float, bool]) -> Supervision:
    weight, is_partial = zip(*photos, strict=True)
    return Supervision(torch.tensor(weight, dtype=torch.float64), torch.tensor(is_partial))


def test_anchors_that_stand_for_nothing_are_no_negatives_of_partial_targets() -> None:
    generator = torch.Generator().manual_seed(4)
    anchors, named = random_boxes(generator, 60), random_boxes(generator, 2, 2)
    boxes = anchors + 0.01
    score = torch.randn(2, 60, generator=generator, dtype=torch.float64)
    stands, owner = assign(anchors, named)
    judged, extent, count = [], [], 0.0
    for image, (weight, is_partial) in enumerate(photos := ((1.0, False), (0.5, True))):
        for place in range(60):
            gold, target = named[image, owner[image, place]], torch.zeros((), dtype=torch.float64)
            if stands[image, place]:
                target = iou_xyxy(boxes[place], gold)
                extent.append(weight * (1 - giou_xyxy(boxes[place], gold)))
                count += weight
            if stands[image, place] or not is_partial:
                judged.append(weight * F.binary_cross_entropy_with_logits(score[image, place], target))
    found = proposal_losses(score, boxes.expand(2, -1, -1), anchors, named, supervision(*photos))
    torch.testing.assert_close(found, (sum(judged) / count, sum(extent) / count))
    score.requires_grad_()
    proposal_losses(score, boxes.expand(2, -1, -1), anchors, named, supervision(*photos))[0].backward()
    assert score.grad is not None
    assert (score.grad[1][~stands[1]] == 0).all()
    assert (score.grad[0] != 0).all()


def test_boxes_near_nothing_are_not_judged_with_partial_targets() -> None:
    named = torch.tensor([[[0.0, 0, 0.5, 0.5]], [[0.0, 0, 0.5, 0.5]]])
    boxes = torch.tensor([[0.0, 0, 0.5, 0.4], [0.6, 0.6, 0.9, 0.9]]).expand(2, 2, 4)
    quality = torch.tensor([[0.3, -0.4], [1.0, 2.0]])
    judged, extent = quality_losses(
        quality, boxes, boxes, named, Supervision(torch.tensor([1.0, 2.0]), torch.tensor([False, True]))
    )
    one, none, other = (
        F.binary_cross_entropy_with_logits(torch.tensor(logit), torch.tensor(target))
        for logit, target in ((0.3, 0.8), (-0.4, 0.0), (1.0, 0.8))
    )
    torch.testing.assert_close(judged, (one + none + 2 * other) / 4)
    torch.testing.assert_close(extent, torch.tensor(0.2))


def test_unknown_words_count_for_nothing_unless_another_box_shows_them() -> None:
    named = torch.tensor([[[0.0, 0, 1, 1], [0.0, 0, 1, 0.8]]])
    words = torch.tensor([[[1.0, 0, 0, 0], [0, 1, 0, 0]]])
    unknown = torch.tensor([[[False, True, True, False], [False, False, False, False]]])
    boxes = torch.tensor([[[0.0, 0, 1, 0.9]]])  # near both: shows 0 and 1, 2 is open, 3 absent
    logits = torch.tensor([[[2.0, -1.0, 0.5, 0.7]]])
    chosen = torch.tensor([0, 1, 3])
    expected = F.binary_cross_entropy_with_logits(logits[0, 0, chosen], torch.tensor([1.0, 1.0, 0.0]), reduction="sum")
    torch.testing.assert_close(word_loss(logits, boxes, named, words, unknown), expected)


def test_phrases_are_averaged_by_their_weight() -> None:
    boxes = torch.tensor([[0.0, 0, 1, 1], [0.9, 0.9, 1, 1]]).expand(2, 2, 4)
    scores = torch.tensor([[0.3, -0.2], [1.0, 2.0]])
    gold = boxes[:, 0]
    each = -scores.log_softmax(-1)[:, 0]
    found = phrase_loss(scores, boxes, gold, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(found, (each[0] + 3 * each[1]) / 4)
