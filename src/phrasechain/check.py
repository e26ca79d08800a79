"""Says what a dataset holds, what is missing or broken, and how well a store's regions cover its phrases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from phrasechain.boxes import max_by_group, pairwise_iou_xyxy, union_by_group_xyxy
from phrasechain.data.dataset import open_dataset, unexpected_count
from phrasechain.data.images import check_image, without_remarks
from phrasechain.data.regimes import is_scored
from phrasechain.data.store import FeatureStore
from phrasechain.errors import DataError
from phrasechain.metrics import NEVER, RIGHT
from phrasechain.progress import track
from phrasechain.schema import ALL, Box, Example, Phrase, Regions

UPPER_BOUNDS_AT = (10, 36, 50, 100)


@dataclass(frozen=True, slots=True)
class Category:
    """The phrases of one category; a phrase of several counts in each."""

    phrases: int
    boxed: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """How a store's regions cover the phrases with a box of a split; those of images without regions count as missed.

    A region is a phrase's if its IoU with the smallest box around the phrase's boxes is at least 0.5. The upper bounds
    at K take the first K regions, by objectness where the store has it: the share of phrases that have one of their
    own among them (``merged``), or one with IoU ≥ 0.5 with any of the phrase's boxes (``any``).
    """

    images: int  # with regions
    regions_per_image: float
    gold_regions: tuple[int, ...]  # how many phrases have 0, 1, 2, … regions
    gold_regions_per_phrase: float
    upper_bounds: dict[str, dict[int, float]]  # merged | any, K


@dataclass(frozen=True, slots=True)
class Split:
    """The counts of one split. Phrases with a box, without, unknown and not visual add up to all phrases."""

    images: int
    captions: int
    phrases: int
    boxed: int
    boxed_in_caption_0: int
    boxless: int
    unknown: int
    not_visual: int
    categories: dict[str, Category]
    phrases_per_caption: tuple[int, ...]  # how many captions have 0, 1, 2, … phrases with a box
    boxed_per_caption: float
    coverage: Coverage | None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found. ``problems`` stand in the way of using the data; ``warnings`` do not."""

    data: str
    features: str | None
    splits: dict[str, Split]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    missing_photos: int
    broken_photos: int
    boxes_outside: int

    @property
    def is_usable(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class _Hits:
    """The phrases with a box of one image: how many regions are theirs, and the rank of the first that is."""

    gold: Tensor  # (P,)
    merged: Tensor  # (P,) NEVER where there is none
    any: Tensor  # (P,)
    regions: int


def check_dataset(data: Path, features: Path | None = None) -> CheckReport:
    """Read everything there is: the annotation, every photo to its last pixel, and the boxes of the store.

    A photo that is missing or broken stands in the way only without ``features``, which are used in its place.
    """
    store = None if features is None else FeatureStore.open(features)
    dataset = open_dataset(data)
    examples = {example.image: example for example in dataset.examples(on_error="skip")}
    listed = {image for images in dataset.splits.values() for image in images}.union(dataset.images)
    stopping = dataset.problems_of(listed)
    missing = [f"image {example.image}: no photo" for example in examples.values() if example.path is None]
    broken = _broken_photos(list(examples.values()))
    outside = {image: boxes for image, example in examples.items() if (boxes := _boxes_outside(example))}
    hits = None if store is None else _all_hits(examples, store)
    splits = {name: _split(dataset.ids(name), examples, hits) for name in [*dataset.splits, ALL]}

    problems = [problem.message for problem in stopping]
    warnings = [problem.message for problem in dataset.problems if problem not in stopping]
    (problems if store is None else warnings).extend(missing + broken)
    problems += [] if store is None else _unfit_regions(examples.values(), store)
    if splits[ALL].boxed == 0:
        problems.append(f"{data}: no phrase has a box: there is nothing to learn from and nothing to score")
    warnings += [f"image {image}: boxes outside it: {len(boxes)}" for image, boxes in outside.items()]
    counts = [unexpected_count(dataset, name, split.boxed) for name, split in splits.items()]
    return CheckReport(
        data=str(data),
        features=None if features is None else str(features),
        splits=splits,
        problems=tuple(problems),
        warnings=(*[count for count in counts if count], *warnings),
        missing_photos=len(missing),
        broken_photos=len(broken),
        boxes_outside=sum(map(len, outside.values())),
    )


def _broken_photos(examples: Sequence[Example]) -> list[str]:
    with without_remarks(), ThreadPoolExecutor() as pool:
        answers = pool.map(_photo_problem, examples)
        return [answer for answer in track(answers, len(examples), "Reading photos") if answer]


def _photo_problem(example: Example) -> str | None:
    if example.path is None:
        return None
    try:
        width, height = check_image(example.path)
    except DataError as error:
        return str(error)
    if (width, height) == (example.width, example.height):
        return None
    return f"{example.path}: {width}×{height} pixels, but annotated as {example.width}×{example.height}"


def _boxes_outside(example: Example) -> set[Box]:
    boxes = {box for caption in example.captions for phrase in caption.phrases for box in phrase.boxes or ()}
    return {box for box in boxes if min(box) < 0 or box[2] > example.width or box[3] > example.height}


def _split(images: Sequence[str], examples: Mapping[str, Example], hits: Mapping[str, _Hits] | None) -> Split:
    """Count what the images of a split hold; those that cannot be used are left out."""
    usable = [examples[image] for image in images if image in examples]
    captions = [caption for example in usable for caption in example.captions]
    phrases = [phrase for caption in captions for phrase in caption.phrases]
    boxed = [phrase for phrase in phrases if is_scored(phrase)]
    others = [phrase for phrase in phrases if phrase.is_visual and not phrase.boxes]
    per_caption = [sum(map(is_scored, caption.phrases)) for caption in captions]
    of_all, of_boxed = _categories(phrases), _categories(boxed)
    return Split(
        images=len(usable),
        captions=len(captions),
        phrases=len(phrases),
        boxed=len(boxed),
        boxed_in_caption_0=sum(n for n, caption in zip(per_caption, captions, strict=True) if caption.index == 0),
        boxless=sum(phrase.boxes is not None for phrase in others),
        unknown=sum(phrase.boxes is None for phrase in others),
        not_visual=len(phrases) - len(boxed) - len(others),
        categories={name: Category(count, of_boxed[name]) for name, count in of_all.items()},
        phrases_per_caption=_histogram(per_caption),
        boxed_per_caption=_mean(per_caption),
        coverage=None if hits is None else _coverage(usable, hits, len(boxed)),
    )


def _categories(phrases: Iterable[Phrase]) -> Counter[str]:
    return Counter(name for phrase in phrases for name in phrase.categories)


def _histogram(values: Iterable[int]) -> tuple[int, ...]:
    counts = Counter(values)
    return tuple(counts[value] for value in range(max(counts, default=-1) + 1))


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _unfit_regions(examples: Iterable[Example], store: FeatureStore) -> Iterator[str]:
    for example in examples:
        if example.image not in store:
            yield f"image {example.image}: not in the store {store.path}"
            continue
        regions = store[example.image]
        if len(regions.boxes) == 0:
            yield f"image {example.image}: no regions in the store {store.path}"
        if (regions.width, regions.height) != (example.width, example.height):
            yield (
                f"image {example.image}: {regions.width}×{regions.height} in the store {store.path}, "
                f"but annotated as {example.width}×{example.height}"
            )


def _all_hits(examples: Mapping[str, Example], store: FeatureStore) -> dict[str, _Hits]:
    images = [image for image in examples if image in store]
    tracked = track(images, len(images), "Comparing regions")
    return {image: _image_hits(examples[image], store[image]) for image in tracked}


def _image_hits(example: Example, regions: Regions) -> _Hits:
    phrases = [phrase for caption in example.captions for phrase in caption.phrases if is_scored(phrase)]
    owned = [(row, box) for row, phrase in enumerate(phrases) for box in phrase.boxes or ()]
    boxes = torch.tensor([box for _, box in owned], dtype=torch.float64).view(-1, 4)  # (M, 4)
    owner = torch.tensor([row for row, _ in owned], dtype=torch.int64)  # (M,)
    merged = union_by_group_xyxy(boxes, owner, len(phrases))  # (P, 4)
    candidates = torch.tensor(regions.boxes, dtype=torch.float64)  # (K, 4)
    if regions.objectness is not None:
        candidates = candidates[torch.tensor(regions.objectness).argsort(descending=True, stable=True)]
    own = pairwise_iou_xyxy(merged, candidates) >= RIGHT  # (P, K)
    any_box = max_by_group(pairwise_iou_xyxy(boxes, candidates), owner, len(phrases)) >= RIGHT  # (P, K)
    return _Hits(own.sum(-1), _first(own), _first(any_box), len(candidates))


def _first(hits: Tensor) -> Tensor:
    """The rank of the first hit of each row, (P, K) bool to (P,)."""
    ranks = torch.arange(hits.shape[1]).expand_as(hits).masked_fill(~hits, NEVER)
    return torch.cat([ranks, torch.full((len(hits), 1), NEVER)], -1).amin(-1)


def _coverage(examples: Sequence[Example], hits: Mapping[str, _Hits], phrases: int) -> Coverage:
    found = [hits[example.image] for example in examples if example.image in hits]
    nothing = torch.empty(0, dtype=torch.int64)
    gold = torch.cat([nothing, *(each.gold for each in found)]).tolist()
    gold += [0] * (phrases - len(gold))  # of images without regions
    ranks = {
        "merged": torch.cat([nothing, *(each.merged for each in found)]),
        "any": torch.cat([nothing, *(each.any for each in found)]),
    }
    bounds = {
        name: {k: int((rank < k).sum()) / max(1, phrases) for k in UPPER_BOUNDS_AT} for name, rank in ranks.items()
    }
    return Coverage(
        images=len(found),
        regions_per_image=_mean([each.regions for each in found]),
        gold_regions=_histogram(gold),
        gold_regions_per_phrase=_mean(gold),
        upper_bounds=bounds,
    )
