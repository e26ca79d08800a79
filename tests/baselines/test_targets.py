"""The any-box target by its definition, beside the merged one."""

from dataclasses import replace

import torch

from baseline_cases import two_boxes
from phrasechain.baselines.targets import any_box_targets
from phrasechain.core.boxes import iou_xyxy
from phrasechain.model.targets import make_targets


def test_a_region_is_right_where_it_meets_any_box() -> None:
    batch, phrases = two_boxes()
    apart, merged = any_box_targets(batch, phrases), make_targets(batch, phrases)
    assert (apart.iou[0] >= 0.5).tolist() == [True, True, False, False]
    assert (merged.iou[0] >= 0.5).tolist() == [False, False, True, False]
    assert apart.iou[1].tolist() == [0.0] * 4
    assert apart.has_box.tolist() == [True, False]
    for number, phrase in enumerate(phrases):
        for region, box in enumerate(batch.boxes[0]):
            wanted = max((float(iou_xyxy(box, torch.tensor(each))) for each in phrase.boxes or ()), default=0.0)
            assert float(apart.iou[number, region]) == wanted


def test_one_box_alone_is_its_own_union() -> None:
    batch, phrases = two_boxes()
    single = [replace(phrase, boxes=(phrase.boxes or ())[:1]) for phrase in phrases]
    torch.testing.assert_close(any_box_targets(batch, single).iou, make_targets(batch, single).iou)
