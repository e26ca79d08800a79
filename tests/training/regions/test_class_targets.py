from pathlib import Path

import torch

from phrasechain.data.class_boxes import ClassBox, ClassPhoto
from phrasechain.training.regions.augment import crop
from phrasechain.training.regions.class_phrases import ClassPhrase
from phrasechain.training.regions.class_targets import read_class_targets
from phrasechain.training.regions.vocabulary import Vocabulary, mirror

DOG, OTHER_DOG = ClassBox("dog", (10.0, 10.0, 50.0, 50.0)), ClassBox("dog", (60.0, 20.0, 90.0, 40.0))
PERSON, CUP = ClassBox("person", (0.0, 0.0, 40.0, 80.0)), ClassBox("cup", (90.0, 70.0, 95.0, 75.0))  # a speck
VOCABULARY = Vocabulary(
    ("dog", "puppy", "brown", "cat", "man", "person", "shirt", "<animals>", "<people>", "<clothing>", "orange", "left")
)


def photo_of(*boxes: ClassBox) -> ClassPhoto:
    return ClassPhoto("1", Path("1.jpg"), 100, 80, boxes, ())


def test_targets_say_what_is_shown_what_is_not_and_leaves_the_rest_open() -> None:
    photo = photo_of(DOG, PERSON, CUP)
    phrases = [ClassPhrase(("brown", "puppy", "<animals>"), (0,))]
    targets = read_class_targets(photo, phrases, VOCABULARY)
    torch.testing.assert_close(targets.boxes, torch.tensor([[0.1, 0.125, 0.5, 0.625], [0.0, 0.0, 0.4, 1.0]]))
    assert [{VOCABULARY.words[word] for word in words} for words in targets.words] == [
        {"dog", "puppy", "brown", "<animals>"},
        {"person", "<people>"},
    ]
    assert targets.absent is not None
    assert [{VOCABULARY.words[word] for word in words} for words in targets.absent] == [
        {"cat", "man", "person", "<people>"},
        {"cat", "dog", "puppy", "<animals>"},  # whether it is a man, or wears a shirt, nobody knows
    ]
    assert targets.phrases == ((0, (1, 2, 7)),)


def test_a_plural_has_the_box_around_all_and_the_single_ones_stay() -> None:
    targets = read_class_targets(photo_of(DOG, OTHER_DOG), [ClassPhrase(("dogs",), (0, 1))], VOCABULARY)
    torch.testing.assert_close(targets.boxes[0], torch.tensor([0.1, 0.125, 0.9, 0.625]))
    assert len(targets.boxes) == 3
    assert [tuple(VOCABULARY.words[word] for word in words) for words in targets.words] == [
        ("<animals>",),  # "dogs" is not in the vocabulary
        ("dog", "<animals>"),
        ("dog", "<animals>"),
    ]


def test_what_is_absent_follows_its_box_into_other_views() -> None:
    targets = read_class_targets(photo_of(OTHER_DOG, PERSON), [], VOCABULARY)
    assert targets.absent is not None
    seen = crop(targets, (0.0, 0.0, 0.5, 1.0))
    assert (len(seen.boxes), seen.absent) == (1, targets.absent[1:])
    assert mirror(targets, VOCABULARY).absent == targets.absent


def test_a_photo_of_specks_teaches_nothing_and_is_no_error() -> None:
    targets = read_class_targets(photo_of(CUP), [], VOCABULARY)
    assert (targets.boxes.shape, targets.words, targets.absent) == ((0, 4), (), ())
