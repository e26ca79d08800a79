"""Annotated captions with several boxes a phrase, and the small encoder that the compared systems read them with."""

import numpy as np

from builders import make_caption, make_example
from phrasechain.core.schema import Phrase, Regions
from phrasechain.model.batch import Batch, collate_annotated
from phrasechain.text.words import WordEncoder

WORDS = ("a", "man", "dog", "two", "women", "his", "red", "shirt", "the", "ball", "crowd", "grass", "and")


def encoder(dimension: int = 6) -> WordEncoder:
    return WordEncoder(WORDS, dimension, buckets=8)


def two_boxes() -> tuple[Batch, list[Phrase]]:
    """Two women apart, each with a region; a region around both; a ball without a known box; 100×80 pixels."""
    left, right, both = (0.0, 0.0, 20.0, 40.0), (60.0, 0.0, 80.0, 40.0), (0.0, 0.0, 80.0, 40.0)
    caption = make_caption(0, ("two women", "1", ("people",), (left, right)), ("the ball", "2", ("other",), None))
    features = np.arange(12, dtype=np.float16).reshape(4, 3)
    boxes = np.array([left, right, both, (50, 50, 60, 60)], np.float32)
    store = {"i": Regions("i", 100, 80, boxes, features)}
    return collate_annotated([(make_example("i", caption), caption)], store, "all")
