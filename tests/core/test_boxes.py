"""Boxes against pixel counting, hand-computed numbers and the laws they must obey."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phrasechain.core import boxes as bx
from phrasechain.core.errors import DataError

SIDE = 12
coordinates = st.floats(-1000, 1000, allow_nan=False, width=32)
sides = st.floats(0.0625, 500, width=32)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def pixel_boxes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Integer boxes on a small grid, empty ones included."""
    x0, x1 = sorted(draw(st.tuples(st.integers(0, SIDE), st.integers(0, SIDE))))
    y0, y1 = sorted(draw(st.tuples(st.integers(0, SIDE), st.integers(0, SIDE))))
    return x0, y0, x1, y1


@st.composite
def real_boxes(draw: st.DrawFn) -> Tensor:
    x0, y0 = draw(coordinates), draw(coordinates)
    return tensor(x0, y0, x0 + draw(sides), y0 + draw(sides))


any_boxes = st.tuples(coordinates, coordinates, coordinates, coordinates).map(lambda box: tensor(*box))


def pixels(box: tuple[int, int, int, int]) -> set[tuple[int, int]]:
    return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}


@settings(deadline=None)
@given(pixel_boxes(), pixel_boxes())
def test_iou_area_and_membership_count_pixels(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> None:
    both, either = pixels(a) & pixels(b), pixels(a) | pixels(b)
    assert bx.iou_xyxy(tensor(*a), tensor(*b)).item() == (len(both) / len(either) if either else 0.0)
    assert bx.area_xyxy(tensor(*a)).item() == len(pixels(a))
    grid = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)).double()
    assert {(int(x), int(y)) for x, y in grid[bx.contains_xy(tensor(*a), grid)]} == pixels(a)


@settings(deadline=None)
@given(any_boxes, any_boxes)
def test_iou_is_symmetric_and_between_0_and_1_even_for_inverted_boxes(a: Tensor, b: Tensor) -> None:
    iou = bx.iou_xyxy(a, b).item()
    assert iou == bx.iou_xyxy(b, a).item()
    assert 0.0 <= iou <= 1.0


@settings(deadline=None)
@given(real_boxes())
def test_iou_with_itself_is_1_and_with_a_flat_box_0(box: Tensor) -> None:
    assert bx.iou_xyxy(box, box).item() == 1.0
    flat = torch.stack([box[0], box[1], box[0], box[3]])
    assert bx.iou_xyxy(box, flat).item() == 0.0
    assert bx.iou_xyxy(flat, flat).item() == 0.0


def test_pairwise_iou_is_the_table_of_elementwise_iou() -> None:
    first, second = tensor(0, 0, 2, 2, 1, 1, 3, 3).view(2, 4), tensor(0, 0, 2, 1, 0, 0, 4, 4, 2, 2, 3, 3).view(3, 4)
    expected = [[0.5, 0.25, 0.0], [0.0, 0.25, 0.25]]
    assert bx.pairwise_iou_xyxy(first, second).tolist() == expected
    assert bx.pairwise_iou_xyxy(first, second[:0]).shape == (2, 0)


@settings(deadline=None)
@given(st.lists(pixel_boxes().filter(lambda box: pixels(box)), min_size=1, max_size=5))
def test_union_is_the_smallest_box_that_holds_all(members: list[tuple[int, int, int, int]]) -> None:
    union = bx.union_xyxy(torch.tensor(members))
    points = set().union(*map(pixels, members))
    xs, ys = [x for x, _ in points], [y for _, y in points]
    assert union.tolist() == [min(xs), min(ys), max(xs) + 1, max(ys) + 1]


def test_groups_are_merged_apart_and_an_empty_group_has_no_box() -> None:
    members = tensor(5, 6, 7, 8, 1, 2, 3, 4, 0, 7, 6, 9).view(3, 4)
    group = torch.tensor([2, 0, 2])
    merged = bx.union_by_group_xyxy(members, group, 3)
    assert merged.tolist() == [[1, 2, 3, 4], [0, 0, 0, 0], [0, 6, 7, 9]]
    best = bx.max_by_group(tensor(0.1, 0.9, 0.2, 0.3, 0.4, 0.5).view(3, 2), group, 3)
    assert best.tolist() == [[0.2, 0.3], [0, 0], [0.4, 0.9]]
    assert bx.union_by_group_xyxy(members[:0], group[:0], 1).tolist() == [[0, 0, 0, 0]]


def test_clipping_cuts_at_each_image_s_own_border() -> None:
    clipped = bx.clip_xyxy(tensor(-3, 2, 50, 60, -3, 2, 50, 60).view(2, 4), torch.tensor([[40, 30], [100, 20]]))
    assert clipped.tolist() == [[0, 2, 40, 30], [0, 2, 50, 20]]


@settings(deadline=None)
@given(real_boxes(), st.integers(1, 300), st.integers(1, 300))
def test_clipped_boxes_lie_inside_and_clipping_again_changes_nothing(box: Tensor, width: int, height: int) -> None:
    sizes = torch.tensor([width, height])
    once = bx.clip_xyxy(box, sizes)
    assert torch.equal(once, bx.clip_xyxy(once, sizes))
    assert (once >= 0).all()
    assert (once[[0, 2]] <= width).all()
    assert (once[[1, 3]] <= height).all()


@settings(deadline=None)
@given(real_boxes(), real_boxes())
def test_decoding_inverts_encoding(box: Tensor, anchor: Tensor) -> None:
    offsets = bx.encode_offsets_xyxy(box, anchor)
    torch.testing.assert_close(bx.decode_offsets_xyxy(offsets, anchor), box, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        bx.encode_offsets_xyxy(bx.decode_offsets_xyxy(offsets, anchor), anchor), offsets, rtol=1e-6, atol=1e-6
    )


def test_offsets_are_the_paper_s() -> None:
    anchor, box = tensor(0, 0, 10, 20), tensor(5, 10, 25, 20)  # centres (5, 10) and (15, 15), sides 10×20 and 20×10
    assert bx.encode_offsets_xyxy(box, anchor).tolist() == pytest.approx([1.0, 0.25, math.log(2), math.log(0.5)])


def test_the_clamped_variant_counts_small_sides_as_a_tenth_of_the_image() -> None:
    anchor, box = tensor(0, 0, 5, 40), tensor(2, 0, 4, 80)  # in an image of 100×200: widths count as 10
    clamped = bx.encode_offsets_xyxy(box, anchor, min_sides=tensor(10, 20))
    assert clamped.tolist() == pytest.approx([0.05, 0.5, 0.0, math.log(2)])
    assert not torch.allclose(bx.decode_offsets_xyxy(clamped, anchor), box)
    large = tensor(20, 30, 80, 90)
    exact = bx.encode_offsets_xyxy(large, large + 1)
    assert torch.equal(bx.encode_offsets_xyxy(large, large + 1, min_sides=tensor(10, 20)), exact)


def test_spatial_features_use_each_image_s_size() -> None:
    features = bx.spatial_features_xyxy(tensor(0, 10, 50, 20).expand(2, 1, 4), tensor(100, 40, 50, 20).view(2, 1, 2))
    assert features.squeeze(1).tolist() == [[0, 0.25, 0.5, 0.5, 0.125], [0, 0.5, 1, 1, 0.5]]


def iou_in(convention: str, gold: Tensor, predicted: Tensor) -> float:
    return bx.iou_xyxy(
        bx.gold_in_convention_xyxy(gold, convention), bx.predicted_in_convention_xyxy(predicted, convention)
    ).item()


def test_conventions_by_hand() -> None:
    gold = tensor(0, 0, 4, 4)  # annotated as the inclusive pixels 1..4, 1..4
    predicted = tensor(1, 1, 4, 3)
    assert iou_in("half_open", gold, predicted) == 6 / 16
    assert iou_in("plus_one", gold, predicted) == 12 / 16  # columns 1..4, rows 1..3
    assert iou_in("raw", gold, predicted) == 6 / 9  # gold (1, 1, 4, 4) is 3 × 3


@settings(deadline=None)
@given(pixel_boxes(), pixel_boxes())
def test_plus_one_is_half_open_for_boxes_that_count_as_the_annotation(
    a: tuple[int, int, int, int], b: tuple[int, int, int, int]
) -> None:
    gold, predicted = tensor(*a), tensor(*b)
    inclusive = predicted + tensor(1, 1, 0, 0)
    assert iou_in("plus_one", gold, inclusive) == iou_in("half_open", gold, predicted)


def test_an_unknown_convention_is_answered_with_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"half_open, plus_one, raw \(did you mean 'half_open'"):
        bx.gold_in_convention_xyxy(tensor(0, 0, 1, 1), "halfopen")
