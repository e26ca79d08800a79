"""Checking a dataset: its counts, what is missing or broken, and how well a store's regions cover its phrases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch

from phrasechain.core.errors import DataError
from phrasechain.core.images import check_image, without_warnings
from phrasechain.core.progress import track
from phrasechain.core.schema import ALL, Box, Example, Phrase
from phrasechain.data.dataset import Dataset, open_dataset, unexpected_count
from phrasechain.data.regimes import is_scored
from phrasechain.evaluation.coverage import UPPER_BOUNDS_AT, RegionHits, region_hits, unfit_regions
from phrasechain.evaluation.gold import collect_gold
from phrasechain.store.reader import FeatureStore


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
    own among them (merged box), or one with IoU ≥ 0.5 with any of the phrase's boxes (any box).
    """

    images: int  # with regions
    regions_per_image: float
    gold_regions: tuple[int, ...]  # how many phrases have 0, 1, 2, … regions
    gold_regions_per_phrase: float
    upper_bounds: dict[str, dict[str, float]]  # merged box | any box, K


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


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was found. ``problems`` make the data unusable; ``warnings`` do not."""

    data: str
    features: str | None
    splits: dict[str, Split]
    coverages: dict[str, Coverage]  # of each split; none without a store
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    missing_photos: int
    broken_photos: int
    boxes_outside: int

    @property
    def is_usable(self) -> bool:
        return not self.problems


def check_dataset(data: Path, features: Path | None = None) -> CheckReport:
    """Read everything there is: the annotation, every photo to its last pixel, and the boxes of the store.

    A photo that is missing or broken stands in the way only without ``features``, which are used in its place.
    """
    store = None if features is None else FeatureStore.open(features)
    dataset = open_dataset(data)
    examples = {example.image: example for example in dataset.examples(on_error="skip")}
    chosen_images = {None, *dataset.images, *(image for images in dataset.splits.values() for image in images)}
    missing = [f"image {example.image}: no photo" for example in examples.values() if example.path is None]
    broken = _broken_photos(list(examples.values()))
    outside = {image: boxes for image, example in examples.items() if (boxes := _boxes_outside(example))}
    splits, coverages = count_splits(dataset, examples, store)

    problems = [problem.message for problem in dataset.problems if problem.image in chosen_images]
    warnings = [problem.message for problem in dataset.problems if problem.image not in chosen_images]
    (problems if store is None else warnings).extend(missing + broken)
    problems += [] if store is None else [*store.damaged(), *unfit_regions(examples.values(), store)]
    if splits[ALL].boxed == 0:
        problems.append(f"{data}: no phrase has a box: there is nothing to train on and nothing to score")
    warnings += _overlaps(dataset.splits)
    warnings += [f"image {image}: boxes outside it: {len(boxes)}" for image, boxes in outside.items()]
    counts = [unexpected_count(dataset, name, split.boxed) for name, split in splits.items()]
    return CheckReport(
        data=str(data),
        features=None if features is None else str(features),
        splits=splits,
        coverages=coverages,
        problems=tuple(problems),
        warnings=(*[count for count in counts if count], *warnings),
        missing_photos=len(missing),
        broken_photos=len(broken),
        boxes_outside=sum(map(len, outside.values())),
    )


def count_splits(
    dataset: Dataset, examples: Mapping[str, Example], store: FeatureStore | None
) -> tuple[dict[str, Split], dict[str, Coverage]]:
    """The counts of each split, of all images too, and how a store's regions cover each: what Figure 2 is drawn from.

    ``examples`` are the usable ones by image id.
    """
    usable = {
        name: [examples[image] for image in dataset.ids(name) if image in examples] for name in [*dataset.splits, ALL]
    }
    splits = {name: _split(chosen) for name, chosen in usable.items()}
    return splits, {} if store is None else _coverages(usable, store)


def _broken_photos(examples: Sequence[Example]) -> list[str]:
    with without_warnings(), ThreadPoolExecutor() as pool:
        problems = pool.map(_photo_problem, examples)
        return [problem for problem in track(problems, len(examples), "Reading photos") if problem]


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


def _overlaps(splits: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Images that are in two of the splits that should have none in common."""
    for first, second in combinations([name for name in ("train", "val", "test") if name in splits], 2):
        if shared := set(splits[first]) & set(splits[second]):
            yield f"{first} and {second} have {len(shared):,} images in common, such as {min(shared)}"


def _split(examples: Sequence[Example]) -> Split:
    captions = [caption for example in examples for caption in example.captions]
    phrases = [phrase for caption in captions for phrase in caption.phrases]
    boxed = [phrase for phrase in phrases if is_scored(phrase)]
    others = [phrase for phrase in phrases if phrase.is_visual and not phrase.boxes]
    per_caption = [sum(map(is_scored, caption.phrases)) for caption in captions]
    of_all, of_boxed = _categories(phrases), _categories(boxed)
    return Split(
        images=len(examples),
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
    )


def _categories(phrases: Iterable[Phrase]) -> Counter[str]:
    return Counter(name for phrase in phrases for name in phrase.categories)


def _histogram(values: Iterable[int]) -> tuple[int, ...]:
    counts = Counter(values)
    return tuple(counts[value] for value in range(max(counts, default=-1) + 1))


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _coverages(splits: Mapping[str, Sequence[Example]], store: FeatureStore) -> dict[str, Coverage]:
    gold = collect_gold(splits[ALL], "gold")
    images = [key[0] for key in gold.scored_keys()]
    hits = region_hits(gold, store)
    return {name: _coverage(examples, store, images, hits) for name, examples in splits.items()}


def _coverage(examples: Sequence[Example], store: FeatureStore, images: Sequence[str], hits: RegionHits) -> Coverage:
    """``images`` are those of the N phrases of ``hits``; the phrases of ``examples`` are counted."""
    chosen_images = {example.image for example in examples}
    counted = torch.tensor([image in chosen_images for image in images], dtype=torch.bool)  # (N,)
    gold_regions = hits.counts[counted].tolist()
    regions = [len(store[image].boxes) for image in chosen_images if image in store]
    return Coverage(
        images=len(regions),
        regions_per_image=_mean(regions),
        gold_regions=_histogram(gold_regions),
        gold_regions_per_phrase=_mean(gold_regions),
        upper_bounds={
            name: {label: _mean((ranks[counted] < k).tolist()) for label, k in UPPER_BOUNDS_AT.items()}
            for name, ranks in hits.ranks.items()
        },
    )
