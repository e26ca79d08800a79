"""How long scoring takes: 15,000 phrases, ranked regions, every figure and 1,000 bootstrap resamples, on one core.

    python benchmarks/score.py

The floor of reading is ``json.loads`` of the same lines and nothing else.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from phrasechain.core.schema import CATEGORIES, Box, Caption, Example, Phrase
from phrasechain.evaluation.evaluate import Protocol, score
from phrasechain.evaluation.gold import collect_gold, match_predictions
from phrasechain.evaluation.predictions import Prediction, read_predictions, write_predictions

IMAGES, CAPTIONS, PHRASES = 1000, 5, 3
ROUNDS = 5


def random_boxes(count: int, generator: np.random.Generator) -> np.ndarray:
    return np.sort(generator.random((count, 2, 2)) * 400, axis=1).reshape(count, 4)


def make_examples(generator: np.random.Generator) -> list[Example]:
    def box() -> Box:
        x0, y0, x1, y1 = random_boxes(1, generator)[0].tolist()
        return x0, y0, x1, y1

    def phrase(number: int) -> Phrase:
        boxes = tuple(box() for _ in range(1 + int(generator.random() < 0.3)))
        category = CATEGORIES[generator.integers(len(CATEGORIES))]
        return Phrase("a dog", 6 * number, 6 * number + 5, 2 * number, 2 * number + 2, str(number), (category,), boxes)

    def caption(index: int) -> Caption:
        return Caption(index, "", (), tuple(phrase(number) for number in range(PHRASES)))

    return [
        Example(str(image), None, 400, 400, tuple(caption(index) for index in range(CAPTIONS)))
        for image in range(IMAGES)
    ]


def make_predictions(examples: list[Example], regions: int, generator: np.random.Generator) -> list[Prediction]:
    made = []
    for example in examples:
        for caption in example.captions:
            for phrase in caption.phrases:
                boxes, probabilities = random_boxes(regions, generator), np.sort(generator.random(regions))[::-1]
                key = (example.image, caption.index, phrase.start, phrase.end)
                x0, y0, x1, y1 = boxes[0].tolist()
                made.append(Prediction(*key, (x0, y0, x1, y1), boxes, probabilities))
    return made


def median_seconds(run: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def parse_only(path: Path) -> None:
    with path.open("rb") as file:
        for line in file:
            json.loads(line)


def main() -> None:
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    examples = make_examples(generator)
    gold = collect_gold(examples, "gold")
    protocol = Protocol()
    print(f"{len(gold):,} phrases, {protocol.resamples:,} resamples, median of {ROUNDS}, load {os.getloadavg()[0]:.1f}")
    print(f"gold table                     {median_seconds(lambda: collect_gold(examples, 'gold')):5.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        for regions in (10, 100):
            path = Path(folder) / f"{regions}.jsonl"
            write_predictions(path, make_predictions(examples, regions, generator), top=None)
            matched = match_predictions(gold, read_predictions(path))
            floor = median_seconds(lambda path=path: parse_only(path))
            read = median_seconds(lambda path=path: match_predictions(gold, read_predictions(path)))
            scored = median_seconds(lambda matched=matched: list(score(gold, matched, protocol=protocol)))
            print(
                f"{regions:3} regions, {path.stat().st_size / 1e6:5.1f} MB      score {scored:5.2f} s   "
                f"read {read:5.2f} s ({read / floor:.2f} × json.loads)   together {scored + read:5.2f} s"
            )


if __name__ == "__main__":
    main()
