"""Which captions are shown, and how many there are: counted by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from phrasechain.core.schema import Caption, Example, Phrase
from phrasechain.evaluation.gold import Gold, collect_gold
from phrasechain.training.compare.side_by_side import BETTER, WORSE, Answers, side_by_side

WORDS = ("dog", "ball", "man")
#: Of five images: which phrases of the caption each model has right, (chain, alone).
RIGHT = [((1, 1, 1), (0, 1, 1)), ((1, 1, 1), (0, 0, 0)), ((0, 0, 1), (1, 1, 1)), ((1, 0, 0), (0, 1, 0)), ((1,), (0,))]


def example(folder: Path, number: int, phrases: int, has_photo: bool) -> Example:
    text, boxes = " ".join(WORDS[:phrases]), [(10.0 + 20 * place, 10.0, 30.0 + 20 * place, 50.0) for place in range(3)]
    starts = [text.index(word) for word in WORDS[:phrases]]
    found = tuple(
        Phrase(word, start, start + len(word), place, place + 1, word, ("other",), (boxes[place],))
        for place, (word, start) in enumerate(zip(WORDS[:phrases], starts, strict=True))
    )
    path = folder / f"{number}.png"
    if has_photo:
        Image.new("RGB", (100, 80), "gray").save(path)
    return Example(str(number), path, 100, 80, (Caption(0, text, WORDS[:phrases], found),))


@pytest.fixture
def examples(tmp_path: Path) -> list[Example]:
    return [example(tmp_path, number, len(chain), number != 0) for number, (chain, _) in enumerate(RIGHT)]


def answers(gold: Gold, name: str, side: int) -> Answers:
    """The gold box where a model is right, else one far away."""
    right = torch.tensor([value for each in RIGHT for value in each[side]]).bool()
    return Answers(name, torch.where(right[:, None], gold.merged, gold.merged + 40), right)


def test_captions_with_boxes_close_to_each_other_are_counted_and_not_shown(examples: list[Example]) -> None:
    gold = collect_gold(examples, "gold")
    chain, alone = (replace(answers(gold, name, side), boxes=gold.merged) for side, name in enumerate(("A", "B")))
    found = side_by_side(examples, gold, chain, alone)
    assert (found.better, found.worse, found.pictures) == (2, 1, ())


def test_captions_are_counted_and_the_largest_differences_shown(examples: list[Example]) -> None:
    gold = collect_gold(examples, "gold")
    chain, alone = (answers(gold, name, side) for side, name in enumerate(("SL-CCRF", "SL")))
    found = side_by_side(examples, gold, chain, alone)
    assert (found.captions, found.better, found.worse) == (4, 2, 1)  # one phrase is no chain
    shown = [(each.kind, each.image, each.title) for each in found.pictures]
    assert shown == [  # image 0 has no photo, image 3 is a draw
        (BETTER, "1", "0 of 3 right by SL, 3 by SL-CCRF"),
        (WORSE, "2", "3 of 3 right by SL, 1 by SL-CCRF"),
    ]
    assert all(each.png.startswith(b"\x89PNG") for each in found.pictures)
