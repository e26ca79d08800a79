"""What nouns of people say: sex, age, number, what they do; and which people a photo's captions leave no room for.

Captions rarely name all people of a photo. But where two of them or more call somebody a woman or a girl, none a man or
a boy, and none speaks of people in the plural, the photo hardly shows a man.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

_TRAITS = {
    "male": "man men boy boys guy guys male males gentleman gentlemen father dad son brother cowboy groom businessman",
    "female": "woman women girl girls lady ladies female females mother mom daughter sister bride businesswoman",
    "adult": "man men woman women lady ladies guy guys gentleman gentlemen father mother adult adults bride groom",
    "child": "boy boys girl girls child children kid kids baby babies toddler toddlers infant son daughter",
}
_OPPOSITE = {"male": "female", "female": "male", "adult": "child", "child": "adult"}
_MANY = (
    "people men women boys girls children kids guys ladies males females adults babies toddlers persons players "
    "couple group crowd team family friends others spectators fans teens teenagers teammates"
)
#: People known by what they do. One of them is not there where no caption has a word that begins alike.
_ROLES = (
    "skier snowboarder surfer swimmer diver cyclist bicyclist biker motorcyclist climber hiker golfer skateboarder "
    "skater wrestler boxer gymnast jockey cowboy bride groom musician guitarist drummer singer policeman policemen "
    "fireman firefighter soldier chef fisherman clown runner jogger dancer"
)
_ALIKE = 4  # letters that words of one root have in common
_LEAST = 2  # mentions that rule the opposite out


@dataclass(frozen=True, slots=True)
class PeopleSaid:
    """What a photo's captions say of people."""

    traits: Counter[str]  # how many mentions have each
    has_many: bool
    mentions: int
    roots: frozenset[str]  # the first letters of all words of the captions

    @staticmethod
    def of(heads: Iterable[str], words: Iterable[str]) -> PeopleSaid:
        """From the head nouns of the phrases about people, and all words of the captions."""
        said = list(heads)
        traits = Counter(trait for head in said for trait in traits_of(head))
        roots = frozenset(word[:_ALIKE] for word in words)
        return PeopleSaid(traits, any(head in _many() for head in said), len(said), roots)

    def leave_no_room_for(self, words: Sequence[str]) -> bool:
        """Whether a phrase about people, of these words in small letters, names nobody of them."""
        head = words[-1]
        if head in _roles():
            return head[:_ALIKE] not in self.roots
        if self.has_many or self.mentions < _LEAST:
            return False
        if head in _many():
            return True
        return any(
            not self.traits[trait] and self.traits[_OPPOSITE[trait]] >= max(_LEAST, self.mentions // 2)
            for trait in traits_of(head)
        )


def traits_of(head: str) -> tuple[str, ...]:
    """
    >>> traits_of("girl"), traits_of("person")
    (('female', 'child'), ())
    """
    return _traits().get(head, ())


@cache
def _traits() -> dict[str, tuple[str, ...]]:
    every = dict.fromkeys(word for words in _TRAITS.values() for word in words.split())
    return {word: tuple(trait for trait, words in _TRAITS.items() if word in words.split()) for word in every}


@cache
def _many() -> frozenset[str]:
    return frozenset(_MANY.split())


@cache
def _roles() -> frozenset[str]:
    return frozenset(_ROLES.split())
