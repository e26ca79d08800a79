"""How long the compared systems take for a caption of three phrases and 100 regions, on a CPU.

    python benchmarks/baselines.py

The phrases are related, so that Structured Matching solves its linear program and Phrase-Region CCA its quadratic one;
both are fit on random captions first. Sizes are those of the preset ``small``.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np
import torch

from phrasechain.baselines.base import Annotated
from phrasechain.baselines.registry import SYSTEMS
from phrasechain.core.schema import Caption, Example, Phrase, Regions
from phrasechain.model.batch import collate_annotated
from phrasechain.model.config import make_config
from phrasechain.text.words import WordEncoder

TEXT = "a man with his shirt beside a dog"
PHRASES = (("a man", 0, 2, "people"), ("his shirt", 3, 5, "clothing"), ("a dog", 6, 8, "animals"))
CAPTIONS, REGIONS, DIMENSION = 60, 100, 256


def caption_batch(rng: np.random.Generator, image: str) -> Annotated:
    """One caption about one image, whose phrases have the boxes of three regions."""
    corners = rng.uniform(0, 300, (REGIONS, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(20, 150, (REGIONS, 2))], 1).astype(np.float32)
    features = rng.normal(size=(REGIONS, DIMENSION)).astype(np.float32)
    tokens, phrases = tuple(TEXT.split()), []
    for place, (text, first, end, category) in enumerate(PHRASES):
        features[place, place] += 3.0
        start = len(" ".join([*tokens[:first], ""]))
        box = tuple(boxes[place].tolist())
        phrases.append(Phrase(text, start, start + len(text), first, end, text, (category,), (box,)))
    caption = Caption(0, TEXT, tokens, tuple(phrases))
    store = {image: Regions(image, 450, 450, boxes, features)}
    return collate_annotated([(Example(image, None, 450, 450, (caption,)), caption)], store)


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    batches = [caption_batch(rng, str(number)) for number in range(CAPTIONS)]
    sizes = make_config("small").model
    print("| system | scores, ms | inference, ms |\n|---|---|---|")
    for kind, make in SYSTEMS.items():
        torch.manual_seed(0)
        system = make(WordEncoder(TEXT.split()[:1] + sorted(set(TEXT.split()[1:]) - {"a"}), 100), DIMENSION, sizes)
        system.eval().fit(batches)
        times = []
        with torch.inference_mode():
            for batch, _ in batches:
                start = perf_counter()
                scores = system(batch)
                middle = perf_counter()
                system.decode(scores, batch)
                times.append((middle - start, perf_counter() - middle))
        forward, inference = (1000 * median(each) for each in zip(*times[5:], strict=True))
        print(f"| {kind} | {forward:.2f} | {inference:.2f} |")


if __name__ == "__main__":
    main()
