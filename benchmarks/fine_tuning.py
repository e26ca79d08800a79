"""A dataset as a user has it, of photos of one kind: single things in kitchens, at tables and desks, each asked alone.

    python benchmarks/fine_tuning.py BOXES.jsonl --out FOLDER

writes FOLDER/mine.jsonl from photos with boxes of classes (docs/data.md): 200 photos to learn from (every fourth is
``dev``, the others are ``fit``), and all photos of that kind that nothing is ever learnt from (``test``).
docs/fine-tuning.md leads from there to a grounder.
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import groupby
from pathlib import Path
from typing import Any

from other_world import Question, questions

from phrasechain.data.class_boxes import is_kept_apart, read_class_boxes
from phrasechain.data.class_nouns import noun_phrase

LEARNT = 200
# fmt: off
KIND = frozenset((
    "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange",
    "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "tv", "laptop", "mouse", "remote", "keyboard",
    "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase",
))
# fmt: on


def line(asked: list[Question], split: str, folder: Path) -> dict[str, Any]:
    """A photo with a caption for each thing that is asked for."""
    photo = asked[0].photo
    captions = [
        {"text": text, "phrases": [{"start": 0, "end": len(text), "boxes": [list(each.box)]}]}
        for each in asked
        for text in [noun_phrase(each.name)]
    ]
    return {
        "image": os.path.relpath(photo.path, folder),
        "id": photo.image,
        "width": photo.width,
        "height": photo.height,
        "split": split,
        "captions": captions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("boxes", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    kind = (each for each in questions(read_class_boxes(args.boxes)) if each.name in KIND)
    photos = [list(group) for _, group in groupby(kind, key=lambda each: each.photo.image)]
    learnt = [each for each in photos if not is_kept_apart(each[0].photo.image)][:LEARNT]
    apart = [each for each in photos if is_kept_apart(each[0].photo.image)]
    splits = [*("dev" if number % 4 == 3 else "fit" for number in range(len(learnt))), *["test"] * len(apart)]
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "mine.jsonl").open("w") as file:
        for asked, split in zip([*learnt, *apart], splits, strict=True):
            file.write(json.dumps(line(asked, split, args.out)) + "\n")
    print(f"{args.out / 'mine.jsonl'}: {len(learnt)} photos to learn from, {len(apart)} held out")


if __name__ == "__main__":
    main()
