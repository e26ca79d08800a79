"""What no system should fall below: predictions of the whole image, and of the one relative box that is best on train.

python benchmarks/floors.py DATA --split val --out FOLDER
phrasechain evaluate FOLDER/whole.jsonl --data DATA --split val
phrasechain evaluate FOLDER/fixed.jsonl --data DATA --split val
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.schema import Example
from phrasechain.data.dataset import load_examples
from phrasechain.data.regimes import chain_phrases
from phrasechain.evaluation.gold import collect_gold
from phrasechain.evaluation.predictions import Prediction, write_predictions

GRID = 10  # relative boxes have their corners on a grid of tenths


def best_fixed_box(examples: Sequence[Example]) -> Tensor:
    """The relative box (4,) that is right, at IoU 0.5 with the merged box, for most phrases."""
    gold = collect_gold(examples, "gold")
    sizes = torch.tensor([(example.width, example.height) for example in examples], dtype=torch.float32)
    relative = gold.merged.float() / sizes[gold.image].repeat(1, 2)  # (N, 4)
    sides = list(combinations(range(GRID + 1), 2))
    boxes = torch.tensor([(x0, y0, x1, y1) for x0, x1 in sides for y0, y1 in sides]) / GRID  # (M, 4)
    right = [int((iou_xyxy(box, relative) >= 0.5).sum()) for box in boxes]
    return boxes[right.index(max(right))]


def predict(examples: Sequence[Example], relative: Tensor) -> Iterator[Prediction]:
    for example in examples:
        box = tuple((relative * torch.tensor([example.width, example.height] * 2)).tolist())
        for caption in example.captions:
            for phrase in chain_phrases(caption, "gold"):
                yield Prediction(example.image, caption.index, phrase.start, phrase.end, box)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    examples = load_examples(options.data, options.split)
    fixed = best_fixed_box(load_examples(options.data, "train"))
    print("the best fixed box on train, relative:", fixed.tolist())
    for name, relative in (("whole", torch.tensor([0.0, 0.0, 1.0, 1.0])), ("fixed", fixed)):
        write_predictions(options.out / f"{name}.jsonl", predict(examples, relative))


if __name__ == "__main__":
    main()
