"""Captions made for photos with boxes of classes: who gets which boxes, and what is asked for though it is absent."""

from collections import Counter
from pathlib import Path

from phrasechain.core.schema import Caption, Phrase
from phrasechain.data.class_boxes import ClassBox, ClassPhoto
from phrasechain.data.class_nouns import nouns_of
from phrasechain.training.grounder.class_captions import class_examples

DOG, OTHER_DOG = ClassBox("dog", (10.0, 10.0, 50.0, 50.0)), ClassBox("dog", (60.0, 20.0, 90.0, 40.0))
PERSON, CUP = ClassBox("person", (0.0, 0.0, 40.0, 80.0)), ClassBox("cup", (90.0, 70.0, 95.0, 75.0))  # a speck
BUS, SUITCASE, HANDBAG = (ClassBox(name, (20.0, 20.0, 80.0, 60.0)) for name in ("bus", "suitcase", "handbag"))


def photo(number: int, *boxes: ClassBox, captions: tuple[str, ...] = (), source: str = "") -> ClassPhoto:
    return ClassPhoto(str(number), Path(f"{number}.jpg"), 100, 80, boxes, captions, source)


def phrases(captions: tuple[Caption, ...]) -> list[Phrase]:
    for caption in captions:
        assert caption.text == " ".join(caption.tokens)
        for each in caption.phrases:
            words = " ".join(caption.tokens[each.first_token : each.end_token])
            assert caption.text[each.start : each.end] == each.text == words
    return [each for caption in captions for each in caption.phrases]


def test_a_caption_keeps_all_phrases_and_the_certain_ones_have_boxes() -> None:
    text = "A man walks two dogs across the grass."
    [example] = class_examples([photo(1, PERSON, DOG, OTHER_DOG, captions=(text,))], absent=False)
    found = phrases(example.captions[:1])
    assert [(each.text, each.boxes) for each in found] == [
        ("A man", (PERSON.box,)),
        ("two dogs", (DOG.box, OTHER_DOG.box)),
        ("the grass", None),  # unknown, not absent
    ]
    assert not any(each.is_absent for each in found)


def test_a_caption_without_a_certain_phrase_is_left_out() -> None:
    [example] = class_examples([photo(1, PERSON, captions=("A man and a woman.", "A red wall."))], absent=False)
    assert {each.text.split()[-1] for each in phrases(example.captions)} == {"person"}


def test_classes_are_asked_for_with_all_their_boxes() -> None:
    said: Counter[str] = Counter()
    for seed in range(40):
        [example] = class_examples([photo(1, PERSON, DOG, OTHER_DOG, CUP)], absent=False, seed=seed)
        for each in phrases(example.captions):
            said[each.text] += 1
            assert each.boxes == ((PERSON.box,) if "person" in each.text else (DOG.box, OTHER_DOG.box))
            assert each.categories == (("people",) if "person" in each.text else ("animals",))
    assert set(said) == {"a person", "person", "dogs", "two dogs"}  # the cup is too small to be spoken of
    assert min(said.values()) > 5


def test_absent_are_classes_of_the_same_source_that_are_not_marked() -> None:
    photos = [photo(number, DOG, source="one") for number in range(20)]
    photos += [photo(20 + number, BUS, source="one") for number in range(20)]
    photos += [photo(40, PERSON, source="other")]
    examples = class_examples(photos, absent=True)
    buses = {noun for pair in nouns_of("bus").pairs for noun in pair}
    for example in examples[:20]:
        present, absent = ([each for each in phrases(example.captions) if each.is_absent == flag] for flag in (0, 1))
        assert [each.boxes for each in present] == [(DOG.box,)]
        assert [each.text.removeprefix("a ") in buses for each in absent] == [True]
        assert absent[0].boxes is None
    assert not any(each.is_absent for each in phrases(examples[40].captions))  # nothing else was searched for there


def test_an_absent_noun_does_not_name_another_class_that_is_there() -> None:
    """A backpack is also called a bag, and so is the suitcase of this photo."""
    photos = [photo(number, SUITCASE) for number in range(150)] + [photo(200, ClassBox("backpack", BUS.box))]
    absent = [
        each for made in class_examples(photos, absent=True)[:150] for each in phrases(made.captions) if each.is_absent
    ]
    nouns = {each.text.removeprefix("a ") for each in absent}
    assert nouns == {"backpack", "knapsack", "rucksack"}


def test_the_same_seed_gives_the_same_captions() -> None:
    photos = [photo(number, DOG, BUS) for number in range(5)] + [photo(9, CUP, PERSON)]
    assert class_examples(photos, absent=True, seed=3) == class_examples(photos, absent=True, seed=3)
    assert class_examples(photos, absent=True, seed=3) != class_examples(photos, absent=True, seed=4)
