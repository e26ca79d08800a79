"""Metrics against hand-computed numbers, brute force and exact enumeration."""

from itertools import product
from math import isnan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phrasechain.core.boxes import iou_xyxy
from phrasechain.evaluation import metrics as mt

GENERATOR = np.random.default_rng(0)


def random_boxes(count: int, generator: np.random.Generator) -> torch.Tensor:
    corners = generator.integers(0, 12, size=(count, 2, 2))
    return torch.from_numpy(np.sort(corners, axis=1).reshape(count, 4)).double()


@st.composite
def scenes(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ranked regions with their counts, and gold boxes with their owners, for a few phrases."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    phrases = draw(st.integers(1, 6))
    counts = torch.from_numpy(generator.integers(0, 5, size=phrases))
    owner = torch.from_numpy(np.repeat(np.arange(phrases), generator.integers(1, 4, size=phrases)))
    return random_boxes(int(counts.sum()), generator), counts, random_boxes(len(owner), generator), owner


@settings(deadline=None)
@given(scenes())
def test_first_hits_are_those_of_a_plain_loop(scene: tuple[torch.Tensor, ...]) -> None:
    regions, counts, boxes, owner = scene
    ranks = mt.first_hits_xyxy(regions, counts, boxes, owner, threshold=0.3)
    for phrase, mine in enumerate(regions.split(counts.tolist())):
        hits = [
            rank
            for rank, region in enumerate(mine)
            if any(iou_xyxy(region, box).item() >= 0.3 for box in boxes[owner == phrase])
        ]
        assert ranks[phrase].item() == (hits[0] if hits else mt.NEVER)


def test_any_box_takes_the_best_box_and_pointing_uses_the_centre() -> None:
    boxes = torch.tensor([[0.0, 0, 4, 4], [6.0, 6, 10, 10], [0.0, 0, 2, 2]])
    owner = torch.tensor([0, 0, 1])
    merged = torch.tensor([[0.0, 0, 10, 10], [0.0, 0, 2, 2]])
    predicted = torch.tensor([[4.0, 4, 6, 6], [0.0, 0, 4, 2]])  # between the two boxes; twice too wide
    assert mt.any_box_iou_xyxy(predicted, boxes, owner).tolist() == [0.0, 0.5]
    assert mt.merged_box_pointing_xyxy(predicted, merged).tolist() == [True, False]  # (2, 1) is just outside [0, 2)
    assert mt.any_box_pointing_xyxy(predicted, boxes, owner).tolist() == [False, False]
    assert mt.any_box_pointing_xyxy(predicted - 1.5, boxes, owner).tolist() == [True, False]


def test_rivals_share_a_category_and_are_another_entity_of_the_same_caption() -> None:
    people, clothing = [True, False], [False, True]
    caption = torch.tensor([3, 5, 3, 3, 5, 9])
    entity = torch.tensor([1, 1, 2, 2, 3, 4])
    categories = torch.tensor([people, people, people, [True, True], clothing, people])
    near = mt.neighbours(caption, entity, categories)
    pairs = {(p, o): s for p, o, s in zip(near.phrase.tolist(), near.other.tolist(), near.shared.tolist(), strict=True)}
    # phrases 2 and 3 are one entity: no pair; phrase 5 is alone in its caption
    assert pairs == {(0, 2): True, (2, 0): True, (0, 3): True, (3, 0): True, (1, 4): False, (4, 1): False}
    assert mt.has_rival(near, 6).tolist() == [True, False, True, True, False, False]


@pytest.mark.parametrize("count", [0, 1])
def test_no_neighbours_without_a_second_phrase(count: int) -> None:
    near = mt.neighbours(torch.arange(count), torch.arange(count), torch.ones(count, 2, dtype=torch.bool))
    assert len(near.phrase) == 0
    assert mt.has_rival(near, count).tolist() == [False] * count


def test_each_error_is_of_one_kind() -> None:
    here, there, away = [0.0, 0, 4, 4], [10.0, 10, 14, 14], [20.0, 20, 24, 24]
    merged = torch.tensor([here, there, there, away])  # phrases 1 (same category) and 2 (another) have the same box
    categories = torch.tensor([[True, False], [True, False], [False, True], [False, True]])
    near = mt.neighbours(torch.zeros(4), torch.arange(4), categories)
    predicted = torch.tensor([there, there, here, [50.0, 50, 60, 60]])
    right = torch.tensor([False, True, False, False])
    kinds = mt.split_errors_xyxy(predicted, merged, right, near)
    assert {name: flags.tolist() for name, flags in kinds.items()} == {
        "took another of the same category": [True, False, False, False],  # before "another category"
        "took another of another category": [False, False, True, False],
        "other": [False, False, False, True],
    }


def test_means_count_only_what_is_counted() -> None:
    values = torch.tensor([[1.0, 5.0, 1.0], [0.0, 2.0, 1.0], [1.0, 4.0, 1.0]])
    counted = torch.tensor([[True, False, False], [True, True, False], [True, True, False]])
    first, second, empty = mt.bootstrap_means(values, counted, torch.tensor([7, 7, 2]))
    assert (first.value, first.sum, first.total) == (2 / 3, 2.0, 3)
    assert (second.value, second.sum, second.total) == (3.0, 6.0, 2)
    assert empty.total == 0
    assert all(isnan(number) for number in (empty.value, empty.low, empty.high))


def test_the_interval_is_that_of_all_resamples_of_a_small_set() -> None:
    """Three images: the 27 resamples can be listed, and their quantiles are what many random ones come to."""
    sums, totals = np.array([0.0, 3.0, 1.0]), np.array([2.0, 4.0, 1.0])
    values = torch.tensor([[0.0], [0], [1], [1], [1], [0], [1]])
    image = torch.tensor([0, 0, 1, 1, 1, 1, 2])
    every = [sums[list(draw)].sum() / totals[list(draw)].sum() for draw in product(range(3), repeat=3)]
    mean = mt.bootstrap_means(values, torch.ones(7, 1, dtype=torch.bool), image, resamples=20_000, seed=3, level=0.8)[0]
    assert mean.low == pytest.approx(np.quantile(every, 0.1), abs=1e-12)
    assert mean.high == pytest.approx(np.quantile(every, 0.9), abs=1e-12)


def test_the_interval_of_many_images_agrees_with_the_standard_error_of_a_ratio() -> None:
    generator = np.random.default_rng(1)
    totals = generator.integers(1, 8, size=800)
    image = torch.from_numpy(np.repeat(np.arange(800), totals))
    rates = np.repeat(generator.random(800), totals)  # phrases of one image succeed together
    right = generator.random(len(rates)) < rates
    mean = mt.bootstrap_means(
        torch.from_numpy(right)[:, None], torch.ones(len(right), 1, dtype=torch.bool), image, resamples=4000
    )[0]
    residuals = np.bincount(image.numpy(), weights=right) - mean.value * totals
    error = np.sqrt((residuals**2).sum()) / totals.sum()
    assert mean.high - mean.low == pytest.approx(2 * 1.96 * error, rel=0.06)


def test_the_seed_decides_and_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.from_numpy(GENERATOR.random((60, 1)) < 0.6)
    counted, image = torch.ones_like(right), torch.arange(60) // 3
    once = mt.bootstrap_means(right, counted, image, resamples=200, seed=5)
    assert once == mt.bootstrap_means(right, counted, image, resamples=200, seed=5)
    assert once != mt.bootstrap_means(right, counted, image, resamples=200, seed=6)
    monkeypatch.setattr(mt, "_COUNTS_AT_ONCE", 7 * 20)
    assert once == mt.bootstrap_means(right, counted, image, resamples=200, seed=5)


@pytest.mark.parametrize(("count", "resamples"), [(0, 10), (4, 0)])
def test_without_phrases_or_resamples_there_is_no_interval(count: int, resamples: int) -> None:
    ones = torch.ones(count, 1, dtype=torch.bool)
    mean = mt.bootstrap_means(ones, ones, torch.arange(count), resamples=resamples)[0]
    assert mean.total == count
    assert isnan(mean.low)
    assert isnan(mean.high)


@settings(deadline=None)
@given(st.lists(st.integers(-4, 4), max_size=9))
def test_the_sign_flip_p_value_is_that_of_enumeration(differences: list[int]) -> None:
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in product((-1, 1), repeat=len(differences))
    ]
    expected = np.mean([value >= abs(sum(differences)) for value in sums])
    assert mt.sign_flip_p_value(differences) == pytest.approx(expected, abs=1e-14)


def test_the_sign_flip_p_value_of_many_images_is_the_binomial_one() -> None:
    """300 images that differ by one phrase, 170 one way: the two-sided binomial test, in whole numbers."""
    from math import comb

    expected = 2 * sum(comb(300, k) for k in range(170, 301)) / 2**300
    assert mt.sign_flip_p_value([1] * 170 + [-1] * 130) == pytest.approx(expected, rel=1e-12)


def test_the_paired_test_takes_images_as_units() -> None:
    first = torch.tensor([True, True, True, False, True, False])
    second = torch.tensor([False, False, True, True, True, False])
    image = torch.tensor([4, 4, 4, 8, 8, 8])  # sums +2 and -1
    result = mt.paired_test(first, second, image)
    assert result.difference.value == pytest.approx(1 / 6)
    assert result.difference.total == 6
    assert (result.first_only, result.second_only) == (2, 1)
    assert result.p_value == 1.0  # |±2 ±1| is 3 or 1, never below 1
    assert result.difference.low < 0 < result.difference.high
    mirrored = mt.paired_test(second, first, image)
    assert mirrored.difference.value == -result.difference.value
    assert mt.paired_test(first, first, image).p_value == 1.0
