"""Regions of photos: the same ones always, at most as many as asked for, or the features of given boxes."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions
from phrasechain.regions.extractor import RegionExtractor, propose, select_regions
from phrasechain.regions.network import DenseProposals, RegionOutputs
from phrasechain.regions.nms import soft_nms
from phrasechain.regions.pixels import Photo
from tiny_regions import DIMENSION, SIZE, make_network

WIDTH, HEIGHT = 200, 100


def make_photo(seed: int) -> Photo:
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Photo(WIDTH, HEIGHT, np.kron(blocks, np.ones((SIZE // 4, SIZE // 4, 1), np.uint8)))


@pytest.fixture(scope="module")
def extractor() -> RegionExtractor:
    return RegionExtractor(make_network(), "ab" * 32)


def assert_same(one: Regions, other: Regions) -> None:
    np.testing.assert_array_equal(one.boxes, other.boxes)
    np.testing.assert_array_equal(one.features, other.features)
    np.testing.assert_array_equal(one.objectness, other.objectness)


def test_photos_do_not_depend_on_each_other(extractor: RegionExtractor) -> None:
    photos = [make_photo(seed) for seed in range(6)]
    alone = [extractor.regions("a", photo) for photo in photos]
    assert not np.array_equal(alone[0].boxes, alone[1].boxes)
    with ThreadPoolExecutor(3, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)) as pool:
        together = list(pool.map(lambda photo: extractor.regions("a", photo), reversed(photos)))
    for one, other in zip(alone, reversed(together), strict=True):
        assert_same(one, other)


def test_what_regions_say(extractor: RegionExtractor) -> None:
    found = extractor.regions("an id", make_photo(0), count=20)
    assert (found.image, found.width, found.height, len(found.boxes)) == ("an id", WIDTH, HEIGHT, 20)
    assert found.features.dtype == np.float16
    assert found.features.shape[1] == extractor.info.dimension == DIMENSION
    assert found.features.std(0).min() > 0.01  # regions differ
    assert (found.boxes >= 0).all()
    assert (found.boxes <= [WIDTH, HEIGHT, WIDTH, HEIGHT]).all()
    overlaps = iou_xyxy(torch.from_numpy(found.boxes)[:, None], torch.from_numpy(found.boxes)[None])
    assert overlaps.triu(1)[:5, :5].max() <= 0.5 + 1e-6
    assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()
    assert found.objectness is not None
    assert (np.diff(found.objectness) <= 0).all()  # best first
    assert extractor.info.weights_sha256 == "ab" * 32
    assert extractor.info.has_objectness


def test_fewer_are_the_first_of_more(extractor: RegionExtractor) -> None:
    many, few = (extractor.regions("a", make_photo(0), count=count) for count in (20, 5))
    np.testing.assert_array_equal(few.boxes, many.boxes[:5])
    np.testing.assert_array_equal(few.features, many.features[:5])


def test_given_boxes_keep_order_and_number(extractor: RegionExtractor) -> None:
    boxes = extractor.regions("a", make_photo(0), count=10).boxes.astype(np.float64)
    own = extractor.regions("a", make_photo(0), count=10)
    given, turned = (extractor.regions("a", make_photo(0), count=3, boxes=each) for each in (boxes, boxes[::-1]))
    np.testing.assert_allclose(given.boxes, boxes, atol=1e-4)
    np.testing.assert_allclose(given.features.astype(float), turned.features[::-1].astype(float), atol=2e-2)
    np.testing.assert_allclose(given.features.astype(float), own.features.astype(float), atol=2e-2)


def test_given_boxes_are_cut_at_the_border(extractor: RegionExtractor) -> None:
    boxes = np.array([[-50, -50, 20, 20], [0, 0, 20, 20], [500, 500, 600, 600], [7, 7, 7, 7]])
    found = extractor.regions("a", make_photo(0), boxes=boxes)
    np.testing.assert_allclose(
        found.boxes, [[0, 0, 20, 20], [0, 0, 20, 20], [200, 100, 200, 100], [7, 7, 7, 7]], atol=1e-4
    )
    np.testing.assert_array_equal(found.features[0], found.features[1])
    assert np.isfinite(found.features.astype(float)).all()


@pytest.mark.parametrize(
    "boxes",
    [[[1, 2, 3]], [], [1, 2, 3, 4], np.zeros((0, 4)), [["a", "b", "c", "d"]], [[0, 0, np.nan, 1]], [[5, 0, 4, 1]]],
)
def test_boxes_that_cannot_be_used_are_refused(extractor: RegionExtractor, boxes: object) -> None:
    with pytest.raises(DataError, match=r"^image 'a': .*box") as caught:
        extractor.regions("a", make_photo(0), boxes=np.asarray(boxes))
    assert "\n" not in str(caught.value)


def test_no_regions_cannot_be_asked_for(extractor: RegionExtractor) -> None:
    with pytest.raises(DataError, match="count must be 1 or more, not 0"):
        extractor.regions("a", make_photo(0), count=0)


BOXES = torch.tensor([[0.0, 0, 0.5, 0.5], [0.01, 0, 0.5, 0.5], [0.6, 0.6, 1.2, 1.0], [0.0, 0.6, 0.3, 1.0]])


def test_the_best_of_what_overlaps_is_proposed_first() -> None:
    dense = DenseProposals(torch.tensor([[1.0, 2.0, 0.0, 3.0]]), BOXES[None])
    wanted = torch.stack((BOXES[3], BOXES[1], BOXES[2].clamp(0, 1)))
    assert torch.equal(propose(dense, 10).boxes, wanted)
    assert propose(dense, 2).score.tolist() == [3, 2]


def test_regions_are_ranked_by_both_heads_and_moved() -> None:
    described = RegionOutputs(torch.zeros(1, 4, 1), BOXES[None], torch.tensor([[5.0, 3.0, 1.0, 0.0]]))
    score = torch.tensor([1.0, 1.0, 3.0, 2.0])
    selected = select_regions(described, score, 3)
    torch.testing.assert_close(selected.score, torch.tensor([3.0, 2, 1]), atol=1e-3, rtol=0)
    assert torch.equal(selected.boxes, BOXES[[0, 2, 3]].clamp(0, 1))  # the second gives way to the first
    every = select_regions(described, score, 10)  # and comes last
    assert torch.equal(every.boxes, BOXES[[0, 2, 3, 1]].clamp(0, 1))
    assert every.score[-1] < -5


@pytest.mark.parametrize(("count", "turns"), [(36, 36), (100, 80), (120, 96)])
def test_the_last_places_go_to_the_surest_of_the_others(count: int, turns: int) -> None:
    rng = torch.Generator().manual_seed(0)
    corners = torch.rand(130, 2, generator=rng) * 0.5
    boxes = torch.cat((corners, corners + 0.1 + torch.rand(130, 2, generator=rng) * 0.4), 1)
    score = torch.randn(130, generator=rng)
    found = select_regions(RegionOutputs(torch.zeros(1, 130, 1), boxes[None], score[None]), score, count)
    first = soft_nms(boxes, score, turns)[0].tolist()
    others = sorted(set(range(130)) - set(first), key=lambda place: -float(score[place]))
    assert torch.equal(found.boxes, boxes[first + others[: count - turns]])
    assert (found.score.diff() <= 0).all()


def test_boxes_without_area_are_no_regions() -> None:
    outside = torch.tensor([[1.2, 0.0, 1.4, 1.0], [0.2, 0.2, 0.4, 0.4]])
    assert propose(DenseProposals(torch.tensor([[2.0, 1.0]]), outside[None]), 5).boxes.tolist() == [outside[1].tolist()]
    assert propose(DenseProposals(torch.tensor([[2.0]]), outside[None, :1]), 5).boxes.tolist() == [[0, 0, 1, 1]]
