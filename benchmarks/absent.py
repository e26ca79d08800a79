"""Whether a grounder knows what a photo does not show, and gives two things two boxes.

    python benchmarks/absent.py FOLDER DATA STORE [--split val] [--decode METHOD] [--boxes FILE.jsonl] [--photos photos]

FOLDER is a grounder or a run; DATA in the official layout, STORE its regions. The score of a phrase is its presence, or
its probability where the model has no label for "not here". AUROC is of present against absent phrases:

- alone: each phrase of caption 0 with a box is a caption of its own, and for each one phrase of another photo's caption
  0 whose last word none of this photo's captions has;
- in a caption: the phrases of caption 0 with a box, in it, against the phrases of another photo's whole caption 0;
- clean: the same without people and clothing among the absent where a caption of the photo marks people.

Same box: pairs of phrases of caption 0, of one category, two entities and gold boxes that overlap by less than 0.5.
``--boxes``: photos with boxes of classes that nothing is learnt from, "a dog" with one dog against "a dog" where there
is none; classes are marked exhaustively there. ``--photos``: those of this project, with the phrases below.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from phrasechain import Grounder
from phrasechain.baselines.registry import BUILDERS
from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.schema import Caption, Example, Phrase
from phrasechain.data.absent import alone
from phrasechain.data.class_boxes import ClassPhoto, is_kept_apart, read_class_boxes, single_things
from phrasechain.data.class_nouns import noun_phrase
from phrasechain.data.dataset import load_examples
from phrasechain.data.regimes import is_scored
from phrasechain.grounding.pretrained import CALIBRATION_FILE, read_calibrations
from phrasechain.model.batch import Item, collate_annotated
from phrasechain.model.checkpoint import load_checkpoint, require_same_regions
from phrasechain.model.confidence import Calibration, auroc, calibration_error, rank_boxes
from phrasechain.model.system import GroundingSystem
from phrasechain.model.targets import merged_boxes
from phrasechain.store.reader import FeatureStore

AT_ONCE = 16  # captions
LEAST = 0.01  # share of the photo that a thing of a class covers
SHOWN = {
    "astronaut.jpg": ("a woman", "an orange suit", "a helmet", "a flag", "a model of a rocket"),
    "photographer.jpg": ("a man", "a coat", "a camera", "a tripod", "grass", "tall buildings"),
    "coffee.jpg": ("a cup", "coffee", "a spoon", "a saucer", "a table"),
}
NOWHERE = (
    "an elephant", "a red bus", "a dog", "a bicycle", "a swimming pool", "a guitar", "snow", "a horse", "two children",
    "a boat",
)  # fmt: skip


class Model(NamedTuple):
    """A model with the calibration of its decoder and the regions that it grounds in."""

    system: GroundingSystem
    calibration: Calibration
    method: str
    store: FeatureStore

    @torch.inference_mode()
    def ground(self, items: Sequence[Item], regime: str = "all") -> Answers:
        """The answers for all phrases of captions, in order."""
        boxes, scores, probabilities, phrases, caption = [], [], [], [], []
        for start in range(0, len(items), AT_ONCE):
            batch, found = collate_annotated(items[start : start + AT_ONCE], self.store, regime)
            given = self.system(batch)
            ranked = rank_boxes(given, self.system.decode(given, batch, self.method), self.calibration, 0)
            boxes += [each.box for each in ranked]
            probabilities += [each.probability for each in ranked]
            scores += [each.probability if each.presence is None else each.presence for each in ranked]
            caption += (batch.phrase_caption + start).tolist()
            phrases += found
        return Answers(
            torch.tensor(boxes), torch.tensor(scores), torch.tensor(probabilities), phrases, torch.tensor(caption)
        )


class Answers(NamedTuple):
    boxes: Tensor  # (P, 4)
    scores: Tensor  # (P,) presence, or probability without one
    probabilities: Tensor  # (P,)
    phrases: list[Phrase]
    caption: Tensor  # (P,) which of the captions

    def right(self) -> Tensor:
        return iou_xyxy(self.boxes, merged_boxes(self.phrases)) >= 0.5


def last_word(phrase: Phrase) -> str:
    return phrase.text.split()[-1].lower()


def words_of(example: Example) -> set[str]:
    return {token.lower() for caption in example.captions for token in caption.tokens}


def has_people(example: Example) -> bool:
    return any("people" in phrase.categories for caption in example.captions for phrase in caption.phrases)


def is_clean(phrase: Phrase, example: Example) -> bool:
    return not (has_people(example) and {"people", "clothing"} & set(phrase.categories))


def scored(caption: Caption) -> Caption:
    return replace(caption, phrases=tuple(filter(is_scored, caption.phrases)))


def as_absent(caption: Caption, chosen: Sequence[Phrase]) -> Caption:
    """The visual phrases of a caption of another photo; ``chosen`` are the ones that count."""
    phrases = [
        replace(each, boxes=None, is_absent=any(each is one for one in chosen))
        for each in caption.phrases
        if each.is_visual
    ]
    return replace(caption, phrases=tuple(phrases))


def absent_alone(examples: Sequence[Example], rng: np.random.Generator) -> Iterator[tuple[Item, bool]]:
    """For each phrase of caption 0 with a box one that the photo does not show; and whether it is of the clean set."""
    for place, example in enumerate(examples):
        words = words_of(example)
        for _ in filter(is_scored, example.captions[0].phrases):
            for _ in range(1000):
                other = examples[int(rng.integers(len(examples)))]
                phrases = [each for each in other.captions[0].phrases if each.is_visual]
                if other is examples[place] or not phrases:
                    continue
                found = phrases[int(rng.integers(len(phrases)))]
                if last_word(found) not in words:
                    caption = alone(other.captions[0], replace(found, boxes=None, is_absent=True))
                    yield (example, caption), is_clean(found, example)
                    break


def absent_captions(examples: Sequence[Example], rng: np.random.Generator) -> Iterator[Item]:
    """Another photo's caption 0 for each photo."""
    order = rng.permutation(len(examples)).tolist()
    other = dict(zip(order, order[1:] + order[:1], strict=True))
    for place, example in enumerate(examples):
        caption, words = examples[other[place]].captions[0], words_of(example)
        lacking = [each for each in caption.phrases if each.is_visual and last_word(each) not in words]
        if lacking:
            yield example, as_absent(caption, lacking)


def separated(model: Model, examples: Sequence[Example], seed: int) -> dict[str, float]:
    """AUROC alone and in captions, plain and clean; calibration error alone and with a fifth of absent phrases."""
    rng = np.random.default_rng(seed)
    firsts = [(example, scored(example.captions[0])) for example in examples]
    firsts = [item for item in firsts if item[1].phrases]
    single = [(example, alone(caption, each)) for example, caption in firsts for each in caption.phrases]
    others, clean = zip(*absent_alone(examples, rng), strict=True)
    own, foreign = model.ground(single), model.ground(others)
    is_clean_alone = torch.tensor(clean)
    found = {
        "alone": auroc(own.scores, foreign.scores),
        "alone, clean": auroc(own.scores, foreign.scores[is_clean_alone]),
    }
    asked = list(absent_captions(examples, rng))
    own, foreign = model.ground(firsts, "gold"), model.ground(asked)
    counts = torch.tensor([each.is_absent for each in foreign.phrases])
    is_clean_caption = torch.tensor(
        [is_clean(each, asked[row][0]) for each, row in zip(foreign.phrases, foreign.caption.tolist(), strict=True)]
    )
    found |= {
        "in a caption": auroc(own.scores, foreign.scores[counts]),
        "in a caption, clean": auroc(own.scores, foreign.scores[counts & is_clean_caption]),
        "accuracy, caption 0": float(own.right().double().mean()),
        "calibration error": calibration_error(own.probabilities, own.right()),
        "calibration error, a fifth absent": _mixed_error(own, foreign.probabilities[counts & is_clean_caption], rng),
    }
    return found | {"present": len(own.phrases), "absent": int(counts.sum())}


def _mixed_error(own: Answers, absent: Tensor, rng: np.random.Generator) -> float:
    chosen = torch.from_numpy(rng.permutation(len(absent))[: len(own.phrases) // 4])
    right = torch.cat([own.right(), torch.zeros(len(chosen), dtype=torch.bool)])
    return calibration_error(torch.cat([own.probabilities, absent[chosen]]), right)


def same_box(model: Model, examples: Sequence[Example]) -> dict[str, float]:
    """Of pairs of two things of one category: the share with one box, and with both right."""
    items = [(example, scored(example.captions[0])) for example in examples]
    answers = model.ground([item for item in items if item[1].phrases], "gold")
    gold, right = merged_boxes(answers.phrases), answers.right()
    rows: dict[int, list[int]] = {}
    for row, caption in enumerate(answers.caption.tolist()):
        rows.setdefault(caption, []).append(row)
    pairs = [
        (one, other)
        for each in rows.values()
        for one, other in combinations(each, 2)
        if set(answers.phrases[one].categories) & set(answers.phrases[other].categories)
        and answers.phrases[one].entity != answers.phrases[other].entity
        and float(iou_xyxy(gold[one], gold[other])) < 0.5
    ]
    one, other = torch.tensor(pairs).T
    overlap = iou_xyxy(answers.boxes[one], answers.boxes[other])
    return {
        "pairs": len(pairs),
        "IoU 0.9": float((overlap >= 0.9).double().mean()),
        "IoU 0.5": float((overlap >= 0.5).double().mean()),
        "both right": float((right[one] & right[other]).double().mean()),
    }


def class_questions(photos: Sequence[ClassPhoto], rng: np.random.Generator) -> list[tuple[ClassPhoto, str, bool]]:
    """Single things, and for each a class that its photo does not have, as often as the class is asked for."""
    present = [(photo, each.name) for photo in photos for each in single_things(photo, LEAST)]
    weights = Counter(name for _, name in present)
    names = sorted(weights)
    p = np.array([weights[name] for name in names], float)
    found = [(photo, name, True) for photo, name in present]
    for photo, _ in present:
        marked = {box.name for box in photo.boxes}
        left = np.array([name not in marked for name in names]) * p
        found.append((photo, str(rng.choice(names, p=left / left.sum())), False))
    return found


def score_of(grounder: Grounder, asked: Sequence[tuple[Path, str]], method: str | None) -> Tensor:
    found = grounder.ground_many(
        [(path, text, [text]) for path, text in asked], workers=1, on_error="raise", decode=method
    )
    firsts = [each.phrases[0] for each in found]
    return torch.tensor([each.probability if each.presence is None else each.presence for each in firsts])


def on_classes(grounder: Grounder, boxes: Path, method: str | None, seed: int) -> dict[str, float]:
    photos = [photo for photo in read_class_boxes(boxes) if is_kept_apart(photo.image)]
    asked = class_questions(photos, np.random.default_rng(seed))
    scores = score_of(grounder, [(photo.path, noun_phrase(name)) for photo, name, _ in asked], method)
    is_present = torch.tensor([present for *_, present in asked])
    people = torch.tensor([name == "person" for _, name, _ in asked])
    return {
        "AUROC": auroc(scores[is_present], scores[~is_present]),
        "AUROC, people left out": auroc(scores[is_present & ~people], scores[~is_present & ~people]),
        "present": int(is_present.sum()),
        "least share of the photo": LEAST,
    }


def on_shipped(grounder: Grounder, folder: Path, method: str | None) -> dict[str, object]:
    """AUROC with its interval over phrases, by the bootstrap."""
    shown = [(photo, text) for photo, texts in SHOWN.items() for text in texts]
    others = [(photo, text) for photo in SHOWN for other, texts in SHOWN.items() if other != photo for text in texts]
    absent = [*others, *((photo, text) for photo in SHOWN for text in NOWHERE)]
    own, foreign = (
        score_of(grounder, [(folder / photo, text) for photo, text in each], method) for each in (shown, absent)
    )
    generator = torch.Generator().manual_seed(0)

    def again(values: Tensor) -> Tensor:
        return values[torch.randint(len(values), (len(values),), generator=generator)]

    values = torch.tensor([auroc(again(own), again(foreign)) for _ in range(1000)])
    interval = [round(float(values.quantile(each)), 3) for each in (0.025, 0.975)]
    return {"AUROC": auroc(own, foreign), "interval": interval, "present": len(own), "absent": len(foreign)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--decode", help="by default the grounder's own")
    parser.add_argument("--boxes", type=Path, help="photos with boxes of classes, as JSON lines")
    parser.add_argument("--photos", type=Path, help="the folder of this project's photos")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    checkpoint, store = load_checkpoint(args.folder, BUILDERS), FeatureStore.open(args.store)
    require_same_regions(checkpoint.card, store, checkpoint.folder)
    method = args.decode or checkpoint.card.decode
    calibration = read_calibrations(checkpoint.folder / CALIBRATION_FILE).get(method, Calibration())
    model = Model(checkpoint.model, calibration, method, store)
    examples = load_examples(args.data, args.split)[: args.limit]
    show("absent", {"split": args.split, "decode": method} | separated(model, examples, args.seed))
    show("same box", same_box(model, examples))
    if args.boxes or args.photos:
        grounder = Grounder.from_pretrained(args.folder)
        if args.boxes:
            show("classes", on_classes(grounder, args.boxes, args.decode, args.seed))
        if args.photos:
            show("photos of the project", on_shipped(grounder, args.photos, args.decode))


def show(what: str, figures: dict[str, object] | dict[str, float]) -> None:
    values = {key: round(value, 4) if isinstance(value, float) else value for key, value in figures.items()}
    print(json.dumps({"measured": what} | values), flush=True)


if __name__ == "__main__":
    main()
