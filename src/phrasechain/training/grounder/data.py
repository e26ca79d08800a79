"""What a run learns from: the examples of two splits, and what tells that they and their regions are the same again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phrasechain.core.errors import DataError
from phrasechain.core.schema import Example
from phrasechain.data.dataset import open_dataset
from phrasechain.data.flickr30k import READINGS
from phrasechain.data.regimes import is_scored
from phrasechain.evaluation.coverage import with_regions
from phrasechain.model.checkpoint import FeatureSource
from phrasechain.model.config import Data as DataConfig
from phrasechain.store.reader import FeatureStore


def read_splits(data: Path, wanted: DataConfig, may_overlap: bool = False) -> tuple[list[Example], list[Example]]:
    """The examples to learn from and those to watch, which have no image in common unless they may."""
    dataset = open_dataset(data, compatibility=READINGS[wanted.reading])
    fit, dev = (list(dataset.examples(split)[: wanted.limit or None]) for split in (wanted.fit, wanted.dev))
    for split, examples in ((wanted.fit, fit), (wanted.dev, dev)):
        phrases = [phrase for example in examples for caption in example.captions for phrase in caption.phrases]
        if not any(map(is_scored, phrases)):
            raise DataError(f"{data}: no phrase with a box in its split {split!r}; there is nothing to learn from")
    both = {example.image for example in fit} & {example.image for example in dev}
    if both and not may_overlap:
        raise DataError(
            f"{data}: {wanted.fit!r} and {wanted.dev!r} have {len(both):,} images in common, such as {min(both)}: the "
            "best checkpoint would be chosen by what was learnt; set data.dev to another split, or train.keep to last"
        )
    return fit, dev


def with_stored_regions(
    examples: Sequence[Example], split: str, store: FeatureStore, missing: str
) -> tuple[list[Example], str | None]:
    """The examples of a split whose regions a store has, and a line on those that were left out, if any were."""
    found = list(with_regions(examples, store, missing))
    if len(found) == len(examples):
        return found, None
    if not any(is_scored(phrase) for each in found for caption in each.captions for phrase in caption.phrases):
        raise DataError(f"{store.path}: has the regions of no image of {split!r} with a phrase; extract some")
    absent = len(examples) - len(found)
    return found, f"left out {absent:,} of {len(examples):,} images of {split}, which {store.path} lacks"


def annotation_digest(examples: Sequence[Example]) -> str:
    """A hash of all that is learnt from the annotations."""
    found = hashlib.sha256()
    for example in examples:
        found.update(repr((example.image, example.width, example.height)).encode())
        for caption in example.captions:
            found.update(repr((caption.index, caption.tokens)).encode())
            for phrase in caption.phrases:
                if phrase.first_token >= phrase.end_token:
                    where = f"image {example.image}, caption {caption.index}, characters {phrase.start} to {phrase.end}"
                    raise DataError(f"{where}: the phrase has no word in it; fix it or leave it out")
                found.update(repr((phrase.first_token, phrase.end_token, phrase.is_visual, phrase.boxes)).encode())
    return found.hexdigest()


def region_digest(examples: Sequence[Example], store: FeatureStore) -> dict[str, Any]:
    """What is known of the regions of these images, with a hash of their boxes."""
    found = hashlib.sha256()
    for example in examples:
        found.update(store[example.image].boxes.tobytes())
    return {**asdict(FeatureSource.of(store)), "boxes": found.hexdigest()}
