"""Which phrase means which boxes, in a photo with boxes of classes.

A class is a weak phrase: a thing marked as a person is a man, a girl or a player. So a noun of a caption is taken for
a box only where no other can be meant: the caption names the class once, and the noun is singular and the class has
one box, or the noun is plural and means all boxes of the class. Boxes that no caption names are called by their class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from phrasechain.data.class_boxes import ClassPhoto
from phrasechain.data.class_nouns import Named, NounTable, nouns_of
from phrasechain.training.regions.vocabulary import telling_words

#: Finds the noun phrases of a caption: the tokens of each.
FindPhrases = Callable[[str], Sequence[Sequence[str]]]

LEAST = 0.01  # the share of a photo from which on a thing is learnt though no caption names it
MOST = 9  # boxes that a plural can mean; more are a crowd, of which not all are marked
_NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9}
_NUMBERS |= {"couple": 2, "pair": 2, "both": 2, "2": 2, "3": 3, "4": 4}
_PART = frozenset(("one", "some", "few", "other", "another", "most", "half"))  # "some of the men" are not all of them
#: Words before a noun of one form for both, which say that it is a plural.
_MANY = frozenset((*_NUMBERS, "of", "several", "many", "multiple", "all", "group", "herd", "flock", "these", "those"))
#: What a picture of a thing is called, which is not the thing.
_FRAMES = frozenset(("image", "picture", "photo", "photograph", "view", "shot", "close", "close-up", "closeup", "up"))
_PAIR = "pair"  # which "of scissors" is one thing


@dataclass(frozen=True, slots=True)
class ClassPhrase:
    """Words for one thing, or for all things, of a class."""

    words: tuple[str, ...]  # telling ones, in small letters, and the category
    boxes: tuple[int, ...]  # which of the photo's
    place: int | None = None  # among the phrases of its caption; None: no caption says it


def class_phrases(photo: ClassPhoto, find: FindPhrases, table: NounTable) -> list[ClassPhrase]:
    """The safe phrases of a photo: those of its captions, then the classes of boxes that these do not name."""
    members = class_members(photo)
    phrases = [phrase for text in photo.captions for phrase in caption_phrases(find(text), photo, table)]
    named = {phrase.boxes for phrase in phrases}
    for name, boxes in members.items():
        if len(boxes) <= MOST and boxes not in named and is_seen(photo, boxes):
            singular, plural = nouns_of(name).pairs[0]
            noun = singular if len(boxes) == 1 else plural
            phrases.append(ClassPhrase((*noun.split(), *category_words(name)), boxes))
    return phrases


def class_members(photo: ClassPhoto) -> dict[str, tuple[int, ...]]:
    """The boxes of each class."""
    members: dict[str, list[int]] = {}
    for number, box in enumerate(photo.boxes):
        members.setdefault(box.name, []).append(number)
    return {name: tuple(boxes) for name, boxes in members.items()}


def caption_phrases(found: Sequence[Sequence[str]], photo: ClassPhoto, table: NounTable) -> list[ClassPhrase]:
    """The safe ones of a caption's phrases, given by their tokens."""
    members = class_members(photo)
    said: list[tuple[int, list[str], Named]] = []
    for place, tokens in enumerate(found):
        words = [token.lower() for token in tokens]
        if (named := table.look_up(words)) is not None:
            said.append((place, _without_frame(words), named))
    times = Counter(name for *_, named in said for name in named.classes)
    phrases = []
    for place, words, named in said:
        if any(times[name] > 1 for name in named.classes):
            continue  # "a man and a woman": which of them has the box?
        boxes = tuple(sorted(number for name in named.classes for number in members.get(name, ())))
        if boxes and _can_mean(words, named, len(boxes)):
            (*_, name) = {photo.boxes[number].name: None for number in boxes}
            phrases.append(ClassPhrase((*telling_words(words), *category_words(name)), boxes, place))
    return phrases


def _without_frame(words: list[str]) -> list[str]:
    """
    >>> _without_frame("a close up of a dog".split()), _without_frame("a cup of tea".split())
    (['a', 'dog'], ['a', 'cup', 'of', 'tea'])
    """
    if "of" not in words:
        return words
    place = words.index("of")
    return words[place + 1 :] if place and words[place - 1] in _FRAMES else words


def _can_mean(words: Sequence[str], named: Named, count: int) -> bool:
    """Whether a phrase can mean all ``count`` boxes of the classes that its noun names, and nothing else."""
    before = words[: len(words) - len(named.noun.split())]
    number = next((_NUMBERS[word] for word in before if word in _NUMBERS), None)
    if count == 1:
        return named.may_be_one and (number is None or (named.may_be_many and _PAIR in before))
    if not named.may_be_many or count > MOST or not _PART.isdisjoint(before) or number not in (None, count):
        return False
    return not named.may_be_one or not _MANY.isdisjoint(before)


def category_words(name: str) -> tuple[str, ...]:
    """The category of a class as a word, if it has one.

    >>> category_words("dog"), category_words("tree")
    (('<animals>',), ())
    """
    category = nouns_of(name).category
    return () if category is None else (f"<{category}>",)


def is_seen(photo: ClassPhoto, boxes: Iterable[int]) -> bool:
    """Whether each of the boxes covers enough of the photo to be spoken of."""
    return all(_share(photo, number) >= LEAST for number in boxes)


def _share(photo: ClassPhoto, number: int) -> float:
    x0, y0, x1, y1 = photo.boxes[number].box
    return (x1 - x0) * (y1 - y0) / (photo.width * photo.height)
