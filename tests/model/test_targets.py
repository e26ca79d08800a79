"""Targets against hand-computed numbers."""

import math

import pytest
import torch

from builders import make_caption, make_example
from phrasechain.core.schema import Regions
from phrasechain.model.batch import Batch, Item, collate_annotated
from phrasechain.model.targets import Targets, hard_targets, make_targets, positive_pairs, soft_targets
from two_images import ITEMS, SECOND, STORE, WHOLE, make_regions

Both = tuple[Batch, Targets]


def both_of(items: list[Item], store: dict[str, Regions], regime: str = "gold") -> Both:
    batch, phrases = collate_annotated(items, store, regime)
    return batch, make_targets(batch, phrases)


@pytest.fixture
def both() -> Both:
    return both_of(ITEMS, STORE, "all")


def test_which_phrases_have_a_box_and_which_a_region_that_fits(both: Both) -> None:
    targets = both[1]
    assert targets.has_box.tolist() == [True, False, True, True, False, True]
    assert targets.labelled.tolist() == [True, False, True, False, False, True]
    assert targets.gold[2].tolist() == list(WHOLE)
    assert targets.gold[1].tolist() == [0, 0, 0, 0]
    assert both_of(ITEMS, STORE, "gold")[1].has_box.all()


def test_overlaps_are_with_the_merged_box(both: Both) -> None:
    dog, sky, dogs, speck, floor, small_dog = both[1].iou.tolist()
    assert dog == pytest.approx([0.75, 0.4, 0.0])  # 40×30 of 40×40, 1600 of 4000
    assert dogs == pytest.approx([0.3, 1.0, 0.4])
    assert speck == pytest.approx([1 / 1200, 1 / 4000, 0.0])
    assert sky == floor == [0.0, 0.0, 0.0]
    assert small_dog == pytest.approx([0.5, 0.75, 0.0])  # the annotated 40×40; the padding has no overlap


def test_soft_and_hard_targets(both: Both) -> None:
    soft = soft_targets(both[1].iou)
    expected = [[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [0.4, 0.6, 0]]
    torch.testing.assert_close(soft, torch.tensor(expected, dtype=torch.float32))
    assert hard_targets(both[1].iou)[[0, 2, 3, 5]].tolist() == [0, 1, 0, 1]


def test_positive_pairs_lead_from_the_region_to_the_merged_box(both: Both) -> None:
    pairs = positive_pairs(*both)
    assert pairs.phrase.tolist() == [0, 2, 5, 5]
    assert pairs.region.tolist() == [0, 1, 0, 1]
    assert pairs.offsets[0].tolist() == pytest.approx([0, 5 / 30, 0, math.log(40 / 30)])
    assert pairs.offsets[1].tolist() == [0, 0, 0, 0]
    assert pairs.offsets[2].tolist() == pytest.approx([0.5, 0, math.log(2), 0])
    best = positive_pairs(*both, best_only=True)
    assert (best.phrase.tolist(), best.region.tolist()) == ([0, 2, 5], [0, 1, 1])


def test_the_authors_offsets_count_small_sides_as_a_tenth_of_the_image() -> None:
    caption = make_caption(0, ("a dot", "1", ("other",), ((10.0, 0.0, 14.0, 40.0),)))
    both = both_of([(make_example("x", caption), caption)], {"x": make_regions("x", (10, 0, 15, 40))})
    assert positive_pairs(*both).offsets.tolist()[0] == pytest.approx([-0.1, 0, math.log(0.8), 0], rel=1e-5)
    assert positive_pairs(*both, least_side=0.1).offsets.tolist()[0] == pytest.approx([-0.05, 0, 0, 0])


def test_order_and_company_do_not_change_an_image_s_overlaps(both: Both) -> None:
    targets = both[1]
    _, alone = both_of([(SECOND, SECOND.captions[1])], STORE, "all")
    assert alone.iou.shape == (1, 2)
    assert torch.equal(alone.iou[0], targets.iou[5, :2])
    turned, after = both_of(ITEMS[::-1], STORE, "all")
    assert turned.images == ("y", "x")
    assert torch.equal(after.iou[0], targets.iou[5])
