"""Captions for photos with boxes of classes, so that a grounder hears of things that its captions hardly name.

A photo gets its own captions, in which the phrases have boxes whose boxes are certain, and short ones that ask for
classes: "a dog", "two dogs" or "a dog , a cup". All photos of a source were searched for the same classes, so one that
is not marked is not there: half of the questions ask for such a class, and are absent phrases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.progress import track
from phrasechain.core.schema import Caption, Example, Phrase
from phrasechain.data.class_boxes import ClassPhoto
from phrasechain.data.class_nouns import NounTable, noun_phrase, nouns_of
from phrasechain.phrases.finder import PhraseFinder
from phrasechain.text.tokens import tokenise
from phrasechain.training.grounder.absent import ListPart, list_caption, without_article
from phrasechain.training.regions.class_phrases import MOST, caption_phrases, class_members, is_seen

_COUNTS = ("", "", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_ALONE = 0.7  # how often a question is the whole caption
_PLAIN = 0.7  # how often an absent class goes by its own name


@dataclass(frozen=True, slots=True)
class _Source:
    """The classes that the photos of one source were searched for, and how often each is asked for."""

    names: tuple[str, ...]
    counts: NDArray[np.int64]


def class_examples(photos: Sequence[ClassPhoto], *, absent: bool, seed: int = 0) -> list[Example]:
    """The photos with their captions; without ``absent`` no question asks for a class that is not there."""
    finder, rng = PhraseFinder.from_pretrained(), np.random.default_rng(seed)
    table = NounTable([box.name for photo in photos for box in photo.boxes])
    sources = _sources(photos)
    examples = []
    for photo in track(photos, len(photos), "reading the captions"):
        captions = [caption for text in photo.captions if (caption := _caption(text, photo, finder, table)).phrases]
        parts = [_present(photo, name, boxes, rng) for name, boxes in _asked(photo)]
        if absent:
            parts += [(tokens, None) for tokens in _absent_nouns(photo, sources[photo.source], len(parts), table, rng)]
        captions += _lists(parts, rng)
        examples.append(Example(photo.image, photo.path, photo.width, photo.height, tuple(captions)))
    return examples


def _caption(text: str, photo: ClassPhoto, finder: PhraseFinder, table: NounTable) -> Caption:
    """A caption with all its phrases, if it has one whose boxes are certain; else without any."""
    tokens = tuple(token.text for token in tokenise(text))
    found = finder.find(text)
    certain = caption_phrases([tokens[each.first_token : each.end_token] for each in found], photo, table)
    boxes = {each.place: tuple(photo.boxes[number].box for number in each.boxes) for each in certain}
    starts = np.cumsum([0, *(len(token) + 1 for token in tokens)]).tolist()
    phrases = []
    for place, each in enumerate(found if certain else ()):
        words = " ".join(tokens[each.first_token : each.end_token])
        start = starts[each.first_token]
        span = (start, start + len(words), each.first_token, each.end_token)
        phrases.append(Phrase(words, *span, None, (each.category,), boxes.get(place)))
    return Caption(0, " ".join(tokens), tokens, tuple(phrases))


def _asked(photo: ClassPhoto) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The classes that are asked for, each with all its boxes: large enough, and no crowd."""
    for name, boxes in class_members(photo).items():
        if len(boxes) <= MOST and is_seen(photo, boxes):
            yield name, boxes


def _present(photo: ClassPhoto, name: str, boxes: Sequence[int], rng: np.random.Generator) -> ListPart:
    """A question for all things of a class: "a dog", "dog", "dogs" or "two dogs"."""
    if len(boxes) == 1:
        singular, _ = nouns_of(name).pairs[0]
        words = without_article(noun_phrase(name if rng.random() < 0.5 else singular).split(), rng)
    else:
        _, plural = nouns_of(name).pairs[0]
        words = (*([_COUNTS[len(boxes)]] if rng.random() < 0.5 else []), *plural.split())
    category = nouns_of(name).category or "other"
    found = tuple(photo.boxes[number].box for number in boxes)
    return tuple(words), Phrase("", 0, 0, 0, 0, None, (category,), found)


def _absent_nouns(
    photo: ClassPhoto, source: _Source, count: int, table: NounTable, rng: np.random.Generator
) -> Iterator[tuple[str, ...]]:
    """Questions for classes that the photo does not show, each as often as where it does."""
    marked = {box.name for box in photo.boxes}
    lacking = [number for number, name in enumerate(source.names) if name not in marked]
    shares = source.counts[lacking] / max(source.counts[lacking].sum(), 1)
    for number in rng.choice(lacking, min(count, len(lacking)), replace=False, p=shares) if lacking else ():
        name = source.names[number]
        pairs = nouns_of(name).pairs
        noun = name if rng.random() < _PLAIN else pairs[rng.integers(len(pairs))][0]
        named = table.look_up(noun.split())
        if named is not None and not marked.isdisjoint(named.classes):
            noun = name  # "a bag" is also a suitcase
        yield without_article(noun_phrase(noun).split(), rng)


def _lists(parts: Sequence[ListPart], rng: np.random.Generator) -> Iterator[Caption]:
    """The questions in random order, most of them alone, the others two by two."""
    shuffled = [parts[number] for number in rng.permutation(len(parts))]
    while shuffled:
        size = 1 if rng.random() < _ALONE else 2
        yield list_caption(shuffled[:size])
        del shuffled[:size]


def _sources(photos: Sequence[ClassPhoto]) -> dict[str, _Source]:
    counts: dict[str, Counter[str]] = {}
    for photo in photos:
        counts.setdefault(photo.source, Counter()).update(name for name, _ in _asked(photo))
    return {
        source: _Source(tuple(sorted(found)), np.array([found[name] for name in sorted(found)]))
        for source, found in counts.items()
    }
