"""Small random batches: images with different numbers of regions, captions of one to four phrases, out of order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from builders import make_caption, make_example
from phrasechain.core.schema import Box, Regions
from phrasechain.model.batch import Batch, collate_annotated
from phrasechain.model.losses import LossTerms, training_loss
from phrasechain.model.scores import Scores
from phrasechain.model.targets import Targets, make_targets

WIDTH, HEIGHT = 100, 80
NOUNS = ["a man", "a dog", "two women", "his red shirt", "the ball", "a crowd", "grass"]


def tiny_example(
    seed: int = 0,
    *,
    images: int = 3,
    captions: int = 5,
    regions: tuple[int, int] = (3, 6),
    dimension: int = 4,
    most_phrases: int = 4,
    unlabelled: float = 0.0,
    unknown: float = 0.0,
) -> tuple[Batch, Targets]:
    """``captions`` captions about ``images`` images in turn.

    A share ``unlabelled`` of the phrases has a box that no region meets, a share ``unknown`` has none that is known;
    the others have a box near one of the regions.
    """
    draw = random.Random(seed)
    store = {f"i{number}": _regions(f"i{number}", draw, draw.randint(*regions), dimension) for number in range(images)}
    items = []
    for number in range(captions):
        image = f"i{number % images}"
        boxes = [_gold(draw, store[image], unlabelled, unknown) for _ in range(draw.randint(1, most_phrases))]
        phrases = [(draw.choice(NOUNS), str(place), ("other",), box) for place, box in enumerate(boxes)]
        caption = make_caption(number // images, *phrases)
        items.append((make_example(image, caption, width=WIDTH, height=HEIGHT), caption))
    batch, phrases = collate_annotated(items, store, "all")
    return batch, make_targets(batch, phrases)


def tiny_batch(seed: int = 0, **options: Any) -> Batch:
    """What a model is given of it."""
    return tiny_example(seed, **options)[0]


def terms_of(scores: Scores | Sequence[Scores], batch: Batch, targets: Targets, **options: Any) -> LossTerms:
    """The loss of given scores; unlabelled phrases are summed out."""
    given = [scores] if isinstance(scores, Scores) else scores
    return training_loss(lambda _: given, batch, targets, **{"unlabelled": "marginalise", **options})


def _regions(image: str, draw: random.Random, count: int, dimension: int) -> Regions:
    corners = [(draw.uniform(0, 60), draw.uniform(0, 45)) for _ in range(count)]
    boxes = [(x, y, x + draw.uniform(15, 40), y + draw.uniform(15, 35)) for x, y in corners]
    features = [[draw.gauss(0, 1) for _ in range(dimension)] for _ in range(count)]
    return Regions(image, WIDTH, HEIGHT, np.array(boxes, np.float32), np.array(features, np.float16))


def _gold(draw: random.Random, regions: Regions, unlabelled: float, unknown: float) -> tuple[Box, ...] | None:
    rng = draw.random()
    if rng < unknown:
        return None
    x0, y0, x1, y1 = (float(side) for side in draw.choice(list(regions.boxes)))
    if rng < unknown + unlabelled:
        return ((x0, y0, x0 + 2.0, y0 + 2.0),)
    return ((x0 + draw.uniform(-2, 2), y0 + draw.uniform(-2, 2), x1 + draw.uniform(-2, 2), y1 + draw.uniform(-2, 2)),)
