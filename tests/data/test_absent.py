"""Which phrases a photo lacks, by what its captions say."""

import pytest

from builders import make_caption, make_example
from phrasechain.core.schema import Example, Phrase
from phrasechain.data.absent import PhotoWords, alone, as_foreign
from phrasechain.data.people_words import PeopleSaid

DOG = ("a brown dog", "1", ("animals",), None)
WOMAN = ("a woman", "2", ("people",), None)
GIRL = ("the young girl", "2", ("people",), None)


def phrase(text: str, category: str) -> Phrase:
    return make_caption(0, (text, None, (category,), None)).phrases[0]


def lacks(example: Example, text: str, category: str = "other") -> bool:
    return PhotoWords.of(example).lack(phrase(text, category))


@pytest.mark.parametrize(
    ("text", "category", "expected"),
    [
        ("a red bus", "vehicles", True),
        ("two dogs", "animals", False),  # its plural is another form of a word that is there
        ("the puppy", "animals", False),  # a synonym
        ("an animal", "animals", False),
        ("a cat", "animals", True),
        ("the ground", "scene", False),  # everywhere
        ("a man", "people", True),  # no caption has people
        ("a blue shirt", "clothing", True),
        ("a boat", "vehicles", True),
        ("something", "notvisual", False),
    ],
)
def test_a_photo_of_a_dog(text: str, category: str, expected: bool) -> None:
    example = make_example("x", make_caption(0, DOG), make_caption(1, ("the hound", "1", ("animals",), None)))
    assert lacks(example, text, category) is expected


def test_where_there_are_people() -> None:
    example = make_example("x", make_caption(0, WOMAN), make_caption(1, GIRL), make_caption(2, WOMAN))
    assert lacks(example, "a man", "people")
    assert lacks(example, "two people", "people")
    assert lacks(example, "a skier", "people")
    assert not lacks(example, "a person", "people")
    assert not lacks(example, "a lady", "people")
    assert not lacks(example, "a blue shirt", "clothing")
    assert not lacks(example, "a hat", "other")
    crowd = make_example("x", *example.captions, make_caption(3, ("a crowd", "3", ("people",), None)))
    assert not lacks(crowd, "a man", "people")


def test_one_mention_rules_nobody_out() -> None:
    assert not PeopleSaid.of(["woman"], ["a", "woman"]).leave_no_room_for(["a", "man"])
    assert not PeopleSaid.of(["woman", "man"], ["a", "woman"]).leave_no_room_for(["a", "man"])


def test_scenes_come_together() -> None:
    example = make_example("x", make_caption(0, ("the ocean", "1", ("scene",), None)))
    assert not lacks(example, "the sandy beach", "scene")
    assert lacks(example, "a snowy slope", "scene")


def test_a_foreign_caption_and_a_phrase_alone() -> None:
    words = PhotoWords.of(make_example("x", make_caption(0, DOG)))
    box = ((0.0, 0.0, 9.0, 9.0),)
    foreign = as_foreign(make_caption(0, ("a dog", "1", ("animals",), box), ("a bus", "2", ("vehicles",), box)), words)
    assert [each.is_absent for each in foreign.phrases] == [False, True]
    assert [each.boxes for each in foreign.phrases] == [None, None]
    single = alone(foreign, foreign.phrases[1])
    assert single.text == "a bus"
    assert single.tokens == ("a", "bus")
    (only,) = single.phrases
    assert (only.start, only.end, only.first_token, only.end_token, only.is_absent) == (0, 5, 0, 2, True)
