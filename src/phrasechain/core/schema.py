"""The value types of the project: images, captions, phrases, regions, groundings.

Boxes are continuous, 0-based and half-open, x0, y0, x1, y1 in pixels of the image as displayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]

#: The categories of Flickr30k Entities, in the order in which tables show them.
CATEGORIES = ("people", "clothing", "bodyparts", "animals", "vehicles", "instruments", "scene", "other")
NOT_VISUAL = "notvisual"
#: The reserved name of the split of all images.
ALL = "all"
#: The longest image id, split, category or entity that a file may give, in code points.
NAME_LIMIT = 512
#: No coordinate of a box in a file may be larger, in pixels.
COORDINATE_LIMIT = 1_000_000
#: Phrases of one caption; the benchmark has at most 24.
PHRASE_LIMIT = 1000


def is_name(value: object) -> bool:
    """Whether the value is a valid id or category: a printable string of 1 to ``NAME_LIMIT`` code points."""
    return isinstance(value, str) and 1 <= len(value) <= NAME_LIMIT and value.isprintable()


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun phrase of a caption and the boxes that it names.

    ``boxes`` is ``None`` when they are unknown (losses and metrics ignore the phrase) and ``()`` when the annotators
    marked that there is none.
    """

    text: str
    start: int  # [start, end) in code points of Caption.text
    end: int
    first_token: int  # [first_token, end_token) in Caption.tokens
    end_token: int
    entity: str | None
    categories: tuple[str, ...]
    boxes: tuple[Box, ...] | None
    is_scene: bool = False
    is_boxless: bool = False  # the annotators marked the entity `nobndbox`
    is_absent: bool = False  # the photo does not show it: a phrase about another photo

    @property
    def is_visual(self) -> bool:
        return NOT_VISUAL not in self.categories


@dataclass(frozen=True, slots=True)
class Caption:
    """A caption without mark-up: ``text`` is ``" ".join(tokens)`` in the official layout."""

    index: int  # its position in the image's file
    text: str
    tokens: tuple[str, ...]
    phrases: tuple[Phrase, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """An image with all its captions."""

    image: str  # the image id
    path: Path | None
    width: int
    height: int
    captions: tuple[Caption, ...]


@dataclass(frozen=True, slots=True)
class Regions:
    """The K candidate regions of one image, the labels of its chains."""

    image: str
    width: int
    height: int
    boxes: NDArray[np.float32]  # (K, 4)
    features: NDArray[np.floating]  # (K, D), float16 or float32
    objectness: NDArray[np.float32] | None = None  # (K,)
    names: tuple[str, ...] | None = None  # the detector's class of each region


@dataclass(frozen=True, slots=True)
class Alternative:
    """An alternative box for a phrase, and the probability that the phrase names it."""

    box: Box
    probability: float


@dataclass(frozen=True, slots=True)
class GroundedPhrase:
    """A phrase of a caption, its predicted box, and the next best boxes, most probable first.

    ``box`` is the best one if the photo shows the thing; ``presence`` is the probability that it does, ``None`` where
    the model cannot tell; ``probability`` that it does and the box is right. ``found`` says whether presence passes the
    threshold.
    """

    text: str
    start: int  # [start, end) in code points of the caption
    end: int
    category: str
    box: Box
    probability: float
    alternatives: tuple[Alternative, ...] = ()
    presence: float | None = None
    found: bool = True


@dataclass(frozen=True, slots=True)
class Grounding:
    """What the phrases of one caption name in one image, in the order of the caption.

    Where the image could not be grounded, ``error`` says why in one line, and there are no phrases. ``hint`` says what
    to do where the caption could not be read.
    """

    path: str | None  # of the image; None if it came from memory
    width: int  # of the image as displayed; 0 if it could not be read
    height: int
    caption: str
    model: str
    decode: str
    phrases: tuple[GroundedPhrase, ...] = ()
    error: str | None = None
    hint: str | None = None
