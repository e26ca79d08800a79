"""Inference time on a test set: a part of ``phrasechain bench step``.

It times what ``phrasechain evaluate`` does between reading the annotations and writing the predictions: batching,
scores, Viterbi, boxes and the ranked regions of each phrase.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch

from phrasechain.bench.batch import Sizes, around, make_model
from phrasechain.core.schema import Caption, Example, Phrase, Regions
from phrasechain.evaluation.predict import IMAGES_AT_ONCE, InferenceOptions, decode_examples, predictions_of

IMAGES, CAPTIONS = 1000, 5  # a test set
_WIDTH, _HEIGHT = 500, 400


def time_evaluation(sizes: Sizes, threads: int, images: int) -> dict[str, float]:
    """Seconds and phrases for 1,000 images with five captions each, extrapolated from ``images`` (whole batches).

    The first batch is not counted: it allocates the memory that the others reuse.
    """
    sizes = replace(sizes, images=IMAGES_AT_ONCE, captions=CAPTIONS)
    images = -(-images // IMAGES_AT_ONCE) * IMAGES_AT_ONCE
    examples, regions = make_examples(sizes, images + IMAGES_AT_ONCE)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    batches = decode_examples(make_model(sizes).eval(), examples, regions, InferenceOptions())
    next(batches)
    start = time.perf_counter()
    phrases = sum(len(list(predictions_of(batch, decoded))) for batch, _, decoded in batches)
    seconds = time.perf_counter() - start
    torch.set_num_threads(before)
    fraction = images / IMAGES
    return {"seconds": seconds / fraction, "phrases": phrases / fraction, "images": float(images)}


def make_examples(sizes: Sizes, count: int) -> tuple[list[Example], dict[str, Regions]]:
    """``count`` synthetic images with captions and regions of these sizes."""
    rng, tokens = np.random.default_rng(0), sizes.token_counts
    captions = tuple(
        Caption(index, "", ("word",) * tokens[index], tuple(map(_phrase, range(phrases))))
        for index, phrases in enumerate(around(sizes.phrases, sizes.captions))
    )
    examples = [Example(str(number), None, _WIDTH, _HEIGHT, captions) for number in range(count)]
    corners = rng.random((sizes.regions, 2)) * (300, 200)
    boxes = np.concatenate([corners, corners + 50 + 100 * rng.random((sizes.regions, 2))], 1).astype(np.float32)
    features = rng.standard_normal((sizes.regions, sizes.features)).astype(np.float16)
    return examples, {each.image: Regions(each.image, _WIDTH, _HEIGHT, boxes, features) for each in examples}


def _phrase(step: int) -> Phrase:
    return Phrase("word", 2 * step, 2 * step + 1, 2 * step, 2 * step + 1, None, ("other",), ((10.0, 10.0, 90.0, 90.0),))
