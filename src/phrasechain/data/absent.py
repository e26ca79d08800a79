"""Phrases that a photo does not show: which phrases about other photos these are, by the captions of this one.

A caption does not name all that a photo shows. So a phrase counts as absent only where none of the photo's captions has
its head noun, a synonym of it, or a word of a scene that comes with it; people only where the captions leave no room
for them; and clothes and parts of the body nowhere where there are people. What is left may still be there now and
then: a word for "the ground" is never taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from phrasechain.core.schema import Caption, Example, Phrase
from phrasechain.data.class_nouns import class_nouns
from phrasechain.data.people_words import PeopleSaid


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Scenes: a photo whose captions have a word of a line may show all of it.
_SCENES = """
water ocean sea lake river pond stream creek pool waves wave surf beach shore shoreline sand coast waterfall fountain \
    boat dock splash
grass field lawn yard backyard park meadow garden hill pasture hillside tree trees woods forest bush bushes leaves \
    plants plant flowers branch weeds brush path trail
street road sidewalk pavement city building buildings car cars vehicle traffic store shop crowd window windows \
    storefront town curb crosswalk corner highway wall
snow slope mountain mountains hill ice hillside ski skis snowboard
dirt mud sand desert track trail road path rock rocks cliff boulder stone gravel mountain
room house kitchen couch sofa bed floor table chair chairs wall door carpet window bench furniture desk restaurant bar
stadium court field game ball crowd audience spectators team uniform fans stands arena goal
stage microphone guitar band concert instrument drums audience
playground slide swing swings
sky clouds cloud sunset sun air horizon background
fence gate wall railing
sign banner poster writing
"""
#: Nothing that a photo could be said not to show.
_EVERYWHERE = _words(
    "ground background foreground air area outside outdoors day night light distance camera picture photo photograph "
    "scene view surface floor sky sun shade shadow side front back middle top bottom end edge thing things something "
    "one ones other others another it them him her he she they his self himself herself themselves each both all some "
    "two three four five six group couple pair bunch number object objects item items place spot way"
)
_ON_PEOPLE = frozenset({"clothing", "bodyparts"})
_WORN = _words("hat cap helmet glasses sunglasses goggles gloves jewelry necklace backpack bag watch shoes hair face")


@dataclass(frozen=True, slots=True)
class PhotoWords:
    """The words by which a photo's captions name things, with their synonyms and what comes with them."""

    words: frozenset[str]
    classes: frozenset[str]
    people: PeopleSaid

    @staticmethod
    def of(example: Example) -> PhotoWords:
        said = {token.lower() for caption in example.captions for token in caption.tokens}
        words = frozenset(form for word in said for form in forms(word))
        scenes = (scene for word in words for scene in _scenes().get(word, ()))
        people = {"person"} if any(_has_people(caption.phrases) for caption in example.captions) else set[str]()
        classes = frozenset(people.union(*(_classes().get(word, ()) for word in words)))
        heads = [head_noun(phrase) for caption in example.captions for phrase in caption.phrases if _is_person(phrase)]
        return PhotoWords(words.union(*scenes), classes, PeopleSaid.of(heads, said))

    def lack(self, phrase: Phrase) -> bool:
        """Whether the photo very probably does not show what the phrase of another photo names."""
        head = head_noun(phrase)
        if not phrase.is_visual or not head.isalpha() or head in _EVERYWHERE:
            return False
        if "person" in self.classes and (head in _WORN or not _ON_PEOPLE.isdisjoint(phrase.categories)):
            return False
        if "person" in self.classes and _is_person(phrase):
            words = [word.lower() for word in phrase.text.split()]
            return head not in self.words and self.people.leave_no_room_for(words)
        return self.words.isdisjoint(forms(head)) and self.classes.isdisjoint(_classes().get(head, ()))


def as_foreign(caption: Caption, words: PhotoWords) -> Caption:
    """A caption of another photo: its phrases have no boxes here, and those that this photo lacks are absent."""
    phrases = [replace(each, boxes=None, entity=None, is_absent=words.lack(each)) for each in caption.phrases]
    return replace(caption, phrases=tuple(phrases))


def alone(caption: Caption, phrase: Phrase) -> Caption:
    """A phrase as the whole caption."""
    tokens = caption.tokens[phrase.first_token : phrase.end_token]
    text = " ".join(tokens)
    moved = replace(phrase, text=text, start=0, end=len(text), first_token=0, end_token=len(tokens))
    return Caption(caption.index, text, tokens, (moved,))


def head_noun(phrase: Phrase) -> str:
    """The last word of a phrase, in small letters."""
    return phrase.text.split()[-1].lower() if phrase.text.split() else ""


def forms(word: str) -> tuple[str, ...]:
    """A noun with what may be its singular and its plural.

    >>> forms("dogs"), forms("puppy"), forms("benches")
    (('dogs', 'dog', 'dogss'), ('puppy', 'puppys', 'puppies'), ('benches', 'benche', 'bench', 'benchess'))
    """
    found = [word]
    if word.endswith("s"):
        found.append(word[:-1])
    if word.endswith("es"):
        found.append(word[:-2])
    if word.endswith("ies"):
        found.append(word[:-3] + "y")
    found.append(word + "s")
    if word.endswith("y"):
        found.append(word[:-1] + "ies")
    if word.endswith(("ch", "sh", "x")):
        found.append(word + "es")
    return tuple(found)


def _is_person(phrase: Phrase) -> bool:
    return "people" in phrase.categories


def _has_people(phrases: Iterable[Phrase]) -> bool:
    return any(map(_is_person, phrases))


@cache
def _classes() -> dict[str, frozenset[str]]:
    """The classes that a word may name a thing of, by the last word of their nouns."""
    found: dict[str, set[str]] = {}
    for name, nouns in class_nouns().items():
        for pair in nouns.pairs:
            for noun in pair:
                found.setdefault(noun.split()[-1], set()).add(name)
    return {word: frozenset(names) for word, names in found.items()}


@cache
def _scenes() -> dict[str, list[frozenset[str]]]:
    found: dict[str, list[frozenset[str]]] = {}
    for line in _SCENES.strip().split("\n"):
        words = frozenset(form for word in line.split() for form in forms(word))
        for word in words:
            found.setdefault(word, []).append(words)
    return found
