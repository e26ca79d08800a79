"""Every caption once a pass, whatever the number of processes; the same for the same seed and step."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from builders import make_caption, make_example
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Caption, Example, Regions
from phrasechain.model.batch import Group, Item, make_groups, require_finite
from phrasechain.training.grounder.steps import ProcessBatches, Steps

BOX = ((1.0, 2.0, 30.0, 40.0),)
Key = tuple[str, int]


def caption(index: int, boxed: int, unboxed: int = 0) -> Caption:
    phrases = [(f"thing {n}", f"{n}", ("other",), BOX) for n in range(boxed)]
    return make_caption(index, *phrases, *((f"air {n}", f"u{n}", ("other",), None) for n in range(unboxed)))


def examples(count: int = 23) -> list[Example]:
    """Images with one to three captions of one to four phrases with a box, and a caption without any."""
    rng = np.random.default_rng(0)
    made = []
    for image in range(count):
        captions = [caption(n, int(rng.integers(1, 5)), 2) for n in range(rng.integers(1, 4))]
        made.append(make_example(str(image), *captions, caption(9, 0, 1)))
    return made


def regions(image: str) -> Regions:
    boxes = np.array([[0, 0, 50, 60], [1, 2, 30, 40]], np.float32)
    return Regions(image, 100, 80, boxes, np.zeros((2, 3), np.float16))


REGIONS = {str(image): regions(str(image)) for image in range(23)}


def keys(items: Iterable[Item]) -> list[Key]:
    return [(example.image, one.index) for example, one in items]


def flat(groups: Iterable[Group]) -> list[Key]:
    return keys(item for group in groups for item in group)


ALL = flat(make_groups(examples()))


def test_captions_without_a_phrase_are_left_out() -> None:
    assert all(index != 9 for _, index in ALL)
    assert sorted(flat(make_groups(examples(), "caption"))) == sorted(ALL)
    assert sum(index == 9 for _, index in flat(make_groups(examples(), "image", "all"))) == 23
    with pytest.raises(DataError, match=r"no way to batch named 'imgae'.*'image'"):
        make_groups(examples(), "imgae")


@pytest.mark.parametrize("by", ["image", "caption"])
@pytest.mark.parametrize("window", [1, 3])
def test_a_pass_sees_every_caption_once(by: str, window: int) -> None:
    steps = Steps(make_groups(examples(), by), by=by, batch=4, window=window)
    passes = [flat(group for step in range(steps.per_epoch) for group in steps[step + start]) for start in (0, 6)]
    if by == "image":
        assert steps.per_epoch == 6  # 5 of four images, and one of three
    assert Counter(passes[0]) == Counter(ALL)
    assert by == "caption" or Counter(passes[1]) == Counter(ALL)
    assert passes[0] != passes[1]
    sizes = sorted(len(steps[step]) for step in range(steps.per_epoch))
    assert sizes[1:] == [4] * (steps.per_epoch - 1)


def test_a_step_follows_from_seed_and_number() -> None:
    groups = make_groups(examples())

    def of(seed: int, order: Iterable[int]) -> dict[int, list[Key]]:
        steps = Steps(groups, by="image", batch=4, window=2, seed=seed)
        return {step: flat(steps[step]) for step in order}

    assert of(1, range(20)) == of(1, reversed(range(20)))
    assert of(1, range(20)) != of(2, range(20))


def test_batches_of_a_window_are_alike() -> None:
    """Sorted over all of the data, no batch mixes short and long chains where the plain order does."""
    groups = make_groups(examples(), "caption")

    def spread(window: int) -> int:
        steps = Steps(groups, by="caption", batch=4, window=window)
        lengths = [[len(one.phrases) for group in steps[n] for _, one in group] for n in range(steps.per_epoch)]
        return sum(max(batch) - min(batch) for batch in lengths)

    assert spread(100) <= 4 < spread(1)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("parts", [1, 2])
def test_processes_share_a_step(count: int, parts: int) -> None:
    """Together they see the step's captions, each once, thinned alike; some of seven get none."""
    steps = Steps(make_groups(examples()), by="image", batch=4, window=2)

    def share(index: int, count: int, parts: int) -> ProcessBatches:
        return ProcessBatches(steps, REGIONS, unboxed=0.5, index=index, count=count, parts=parts)

    for step in range(steps.per_epoch + 1):
        whole = [item for part in share(0, 1, 1).items(step) for item in part]
        shares = [list(share(index, count, parts).items(step)) for index in range(count)]
        seen = [item for process in shares for part in process for item in part]
        assert Counter(keys(seen)) == Counter(flat(steps[step]))
        assert {key: item[1] for key, item in zip(keys(seen), seen, strict=True)} == {
            key: item[1] for key, item in zip(keys(whole), whole, strict=True)
        }
        if count == 7:
            assert [] in shares


def test_phrases_without_a_box_are_kept_at_random() -> None:
    steps = Steps(make_groups(examples()), by="image", batch=23)

    def kept(unboxed: float) -> list[int]:
        items = [
            item
            for step in range(20)
            for part in ProcessBatches(steps, REGIONS, unboxed=unboxed).items(step)
            for item in part
        ]
        return [sum(phrase.boxes is None for phrase in one.phrases) for _, one in items]

    assert set(kept(0.0)) == {0}
    assert set(kept(1.0)) == {2}
    counts = Counter(kept(0.5))
    total = sum(counts.values())
    for number, share in ((0, 0.25), (1, 0.5), (2, 0.25)):  # of two phrases
        assert counts[number] / total == pytest.approx(share, abs=4 * (share * (1 - share) / total) ** 0.5)


def test_draws_are_with_replacement() -> None:
    """As often as captions, one caption of an image at a time, all of them sooner or later."""
    steps = Steps(make_groups(examples(), "draw"), by="draw", batch=16)
    assert steps.per_epoch == -(-len(ALL) // 16)
    drawn = [steps[step] for step in range(60)]
    assert all(len(groups) == 16 and all(len(group) == 1 for group in groups) for groups in drawn)
    assert set(flat(group for groups in drawn for group in groups)) == set(ALL)
    assert any(len(set(flat(groups))) < 16 for groups in drawn)
    images = Counter(image for groups in drawn for image, _ in flat(groups))
    assert max(images.values()) < 2.5 * min(images.values())


def test_batches_come_with_their_targets() -> None:
    """Every phrase with a box has one region that is its own."""
    steps = Steps(make_groups(examples()), by="image", batch=4)
    boxed = sum(len([1 for phrase in one.phrases if phrase.boxes]) for group in steps[0] for _, one in group)
    every = sum(len(one.phrases) for group in steps[0] for _, one in group)
    for unboxed, phrases in ((0.0, boxed), (1.0, every)):
        parts = ProcessBatches(steps, REGIONS, unboxed=unboxed)[0]
        assert isinstance(parts, list)
        ((batch, targets),) = parts
        assert len(batch.spans) == len(targets.iou) == phrases
        assert int(targets.has_box.sum()) == int((targets.iou >= 0.5).sum()) == boxed
        seen = zip((batch.images[place] for place in batch.caption_image), batch.captions, strict=True)
        assert Counter(seen) == Counter(flat(steps[0]))


def test_errors_are_handed_over() -> None:
    steps = Steps(make_groups(examples()), by="image", batch=4)
    empty = {name: replace(one, boxes=one.boxes[:0], features=one.features[:0]) for name, one in REGIONS.items()}
    error = ProcessBatches(steps, empty)[0]
    assert isinstance(error, DataError)
    assert "has no regions" in str(error)


def test_features_that_are_not_finite_are_named() -> None:
    steps = Steps(make_groups(examples()), by="image", batch=23)
    parts = ProcessBatches(steps, REGIONS)[0]
    assert isinstance(parts, list)
    require_finite([parts[0][0]])
    broken = np.array([[0, 0, 0], [0, np.inf, 0]], np.float16)
    parts = ProcessBatches(steps, REGIONS | {"17": replace(REGIONS["17"], features=broken)})[0]
    assert isinstance(parts, list)
    with pytest.raises(DataError, match="image 17: its region features are not finite"):
        require_finite([parts[0][0]])
