"""How often single things of classes are found, asked alone: "a dog", where one dog is in the photo.

    python benchmarks/other_world.py BOXES.jsonl [--model FOLDER] [--list PATH]

Over the photos of a file of class boxes (docs/data.md) that nothing is learnt from; things that cover 1 % of the photo
or more. The grounder's box counts from an IoU of 0.5.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from phrasechain import Grounder
from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.schema import Box
from phrasechain.data.class_boxes import ClassPhoto, is_kept_apart, read_class_boxes, single_things
from phrasechain.data.class_nouns import noun_phrase

LEAST = 0.01  # share of the photo


class Question(NamedTuple):
    photo: ClassPhoto
    name: str  # of the class
    box: Box


def questions(photos: Sequence[ClassPhoto]) -> Iterator[Question]:
    """All things that are alone of their class in their photo, and large enough."""
    for photo in photos:
        for each in single_things(photo, LEAST):
            yield Question(photo, each.name, each.box)


def overlaps(grounder: Grounder, asked: Sequence[Question], workers: int) -> list[float]:
    """The IoU of each thing with the box found for it."""
    pairs = ((each.photo.path, noun_phrase(each.name), [noun_phrase(each.name)]) for each in asked)
    found = grounder.ground_many(pairs, workers=workers, on_error="raise")
    return [
        float(iou_xyxy(torch.tensor(grounding.phrases[0].box), torch.tensor(each.box)))
        for each, grounding in zip(asked, found, strict=True)
    ]


def summary(asked: Sequence[Question], overlap: Sequence[float]) -> dict[str, float]:
    """Shares of things that are found, in percent."""
    right: dict[str, list[bool]] = defaultdict(list)
    for each, value in zip(asked, overlap, strict=True):
        right[each.name].append(value >= 0.5)
    others = [hit for name, hits in right.items() if name != "person" for hit in hits]
    return {
        "things": len(asked),
        "found": percent([value >= 0.5 for value in overlap]),
        "found, people left out": percent(others),
        "found, mean of classes": round(sum(map(percent, right.values())) / len(right), 2),
        "IoU 0.7": percent([value >= 0.7 for value in overlap]),
    }


def percent(hits: Sequence[bool]) -> float:
    return round(100 * sum(hits) / max(1, len(hits)), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("boxes", type=Path)
    parser.add_argument("--model", type=Path, help="the folder of another grounder than the embedded one")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--list", type=Path, help="write the IoU of each thing, as JSON lines")
    args = parser.parse_args()
    apart = [photo for photo in read_class_boxes(args.boxes) if is_kept_apart(photo.image)]
    asked = list(questions(apart))
    if not asked:
        raise SystemExit(f"{args.boxes}: no single thing on a photo that is kept apart")
    overlap = overlaps(Grounder.from_pretrained(args.model), asked, args.workers)
    print(json.dumps({"photos": len(apart)} | summary(asked, overlap)))
    if args.list:
        rows = zip(asked, overlap, strict=True)
        lines = ({"image": each.photo.image, "class": each.name, "IoU": round(iou, 3)} for each, iou in rows)
        args.list.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
