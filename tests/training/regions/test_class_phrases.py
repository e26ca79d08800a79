"""Which words of a caption are taken for which boxes, each case worked out by hand."""

from pathlib import Path

import pytest

from phrasechain.data.class_boxes import ClassBox, ClassPhoto
from phrasechain.data.class_nouns import NounTable, class_nouns
from phrasechain.training.regions.class_phrases import ClassPhrase, caption_phrases, class_phrases

TABLE = NounTable(list(class_nouns()))
DOG, OTHER_DOG = ClassBox("dog", (10.0, 10.0, 50.0, 50.0)), ClassBox("dog", (60.0, 20.0, 90.0, 40.0))
PERSON, CUP = ClassBox("person", (0.0, 0.0, 40.0, 80.0)), ClassBox("cup", (90.0, 70.0, 95.0, 75.0))  # a speck


def make_photo(*boxes: ClassBox, captions: tuple[str, ...] = ()) -> ClassPhoto:
    return ClassPhoto("1", Path("1.jpg"), 100, 80, boxes, captions)


def phrases_of(caption: str, *boxes: ClassBox) -> list[tuple[str, tuple[int, ...]]]:
    """The safe phrases of a caption, whose noun phrases are written with a bar between them."""
    found = caption_phrases([part.split() for part in caption.split(" | ")], make_photo(*boxes), TABLE)
    return [(" ".join(phrase.words), phrase.boxes) for phrase in found]


@pytest.mark.parametrize(
    ("caption", "boxes", "expected"),
    [
        ("A brown puppy", [DOG], [("brown puppy <animals>", (0,))]),
        ("A young man | a brown puppy", [DOG, PERSON], [("young man <people>", (1,)), ("brown puppy <animals>", (0,))]),
        ("A brown puppy", [DOG, OTHER_DOG], []),  # which of the two?
        ("Brown puppies", [DOG, OTHER_DOG], [("brown puppies <animals>", (0, 1))]),
        ("Two brown puppies", [DOG, OTHER_DOG], [("two brown puppies <animals>", (0, 1))]),
        ("Three puppies", [DOG, OTHER_DOG], []),  # one of them is not marked
        ("Some puppies", [DOG, OTHER_DOG], []),
        ("Brown puppies", [DOG], []),
        ("A man | a woman", [PERSON], []),  # who of them is marked?
        ("A red cup", [CUP], [("red cup <other>", (0,))]),  # small, but a caption names it
        ("A red wall", [DOG], []),
        ("Many men", [PERSON] * 10, []),  # a crowd
        ("A pair of scissors", [ClassBox("scissors", (0.0, 0.0, 20.0, 20.0))], [("pair scissors <other>", (0,))]),
        ("Two sheep", [ClassBox("sheep", DOG.box)], []),
        ("A sheep", [ClassBox("sheep", DOG.box), ClassBox("sheep", OTHER_DOG.box)], []),
        ("A flock of sheep", [ClassBox("sheep", DOG.box)] * 2, [("flock sheep <animals>", (0, 1))]),
        ("A big bike", [ClassBox("bicycle", DOG.box), ClassBox("motorcycle", PERSON.box)], []),
        ("A big bike", [ClassBox("motorcycle", PERSON.box)], [("big bike <vehicles>", (0,))]),
    ],
)
def test_only_safe_phrases_are_taken(
    caption: str, boxes: list[ClassBox], expected: list[tuple[str, tuple[int, ...]]]
) -> None:
    assert phrases_of(caption, *boxes) == expected


def test_boxes_that_no_caption_names_are_called_by_their_class() -> None:
    found = class_phrases(make_photo(DOG, OTHER_DOG, PERSON, CUP), lambda _: [], TABLE)
    assert found == [
        ClassPhrase(("dogs", "<animals>"), (0, 1)),
        ClassPhrase(("person", "<people>"), (2,)),  # and not the cup, which is too small to be spoken of
    ]
