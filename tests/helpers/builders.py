"""Small annotated images for tests, made of words, and stores of regions without features to speak of."""

from pathlib import Path

import numpy as np

from phrasechain.core.schema import Box, Caption, Example, Phrase, Regions
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter


def make_caption(index: int, *phrases: tuple[str, str | None, tuple[str, ...], tuple[Box, ...] | None]) -> Caption:
    """A caption "and"-ing phrases, each given as text, entity, categories, boxes."""
    tokens: list[str] = []
    made = []
    for text, entity, categories, boxes in phrases:
        tokens += ["and"] if tokens else []
        first, start = len(tokens), len(" ".join([*tokens, ""]))
        tokens += text.split()
        made.append(Phrase(text, start, start + len(text), first, len(tokens), entity, categories, boxes))
    return Caption(index, " ".join(tokens), tuple(tokens), tuple(made))


def make_example(image: str, *captions: Caption, width: int = 100, height: int = 80) -> Example:
    return Example(image, None, width, height, captions)


def write_store(folder: Path, boxes: dict[str, list[list[float]]], objectness: list[float] | None = None) -> Path:
    """Regions of images of 100×80 pixels."""
    with StoreWriter(folder, StoreInfo(dimension=1, has_objectness=objectness is not None)) as writer:
        for image, rows in boxes.items():
            score = None if objectness is None else np.array(objectness, np.float32)
            features = np.zeros((len(rows), 1), np.float16)
            writer.add(Regions(image, 100, 80, np.array(rows, np.float32), features, score))
        writer.finish()
    return folder
