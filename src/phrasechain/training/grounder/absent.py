"""Absent phrases for training: captions about a photo with phrases about others, whose things it does not show.

Three kinds, each with a probability of ``rate`` for an image in a step: a whole caption of another photo; a list of up
to three phrases, its own and others' (one alone is how people try a grounder first); and, the hard kind, another's
phrase in the place of one of a true caption. They come beside the true captions, of which none is lost. A phrase whose
things may be there after all has no target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from phrasechain.core.schema import Caption, Example, Phrase
from phrasechain.data.absent import PhotoWords, as_foreign
from phrasechain.data.regimes import is_scored
from phrasechain.model.batch import Item

_TRIES = 8  # other photos that are asked for a phrase
_LONGEST_LIST = 3
#: Tokens of a phrase in a list, and the phrase that it is; None: absent.
ListPart = tuple[tuple[str, ...], Phrase | None]
_DETERMINERS = ("a", "an", "the", "his", "her", "their", "its", "two", "three", "some")


class AbsentPhrases:
    """Mixes absent phrases into the captions of an image."""

    def __init__(self, examples: Sequence[Example], rate: float) -> None:
        self.examples, self.rate = examples, rate
        self._images = {example.image for example in examples}
        self._words: dict[str, PhotoWords] = {}

    def mixed(self, items: Sequence[Item], rng: np.random.Generator) -> Iterator[Item]:
        """The captions of one image with others among them; of an image that is none of the examples as they are."""
        example = items[0][0]
        if example.image not in self._images:
            yield from items
            return
        words = self.words_of(example)
        yield from items
        if rng.random() < self.rate and (
            changed := self._with_other(items[int(rng.integers(len(items)))][1], words, rng)
        ):
            yield example, changed
        if rng.random() < self.rate and (other := self._foreign_caption(words, rng)):
            yield example, other
        if rng.random() < self.rate and (listed := self._list(items, words, rng)):
            yield example, listed

    def words_of(self, example: Example) -> PhotoWords:
        if example.image not in self._words:
            self._words[example.image] = PhotoWords.of(example)
        return self._words[example.image]

    def _random_caption(self, rng: np.random.Generator) -> Caption:
        captions = self.examples[int(rng.integers(len(self.examples)))].captions
        return captions[int(rng.integers(len(captions)))]

    def _foreign_caption(self, words: PhotoWords, rng: np.random.Generator) -> Caption | None:
        for _ in range(_TRIES):
            caption = self._random_caption(rng)
            if any(words.lack(phrase) for phrase in caption.phrases):
                return as_foreign(caption, words)
        return None

    def _foreign_phrase(self, words: PhotoWords, rng: np.random.Generator) -> tuple[str, ...] | None:
        """The tokens of a phrase that the photo lacks."""
        for _ in range(_TRIES):
            caption = self._random_caption(rng)
            if lacking := [phrase for phrase in caption.phrases if words.lack(phrase)]:
                phrase = lacking[rng.integers(len(lacking))]
                return caption.tokens[phrase.first_token : phrase.end_token]
        return None

    def _with_other(self, caption: Caption, words: PhotoWords, rng: np.random.Generator) -> Caption | None:
        places = [place for place, phrase in enumerate(caption.phrases) if is_scored(phrase)]
        tokens = self._foreign_phrase(words, rng)
        return None if not places or tokens is None else replace_phrase(caption, rng.choice(places), tokens)

    def _list(self, items: Sequence[Item], words: PhotoWords, rng: np.random.Generator) -> Caption | None:
        parts: list[ListPart] = []
        own = [
            (caption, phrase) for _, caption in items for phrase in caption.phrases if _has_no_rival(phrase, caption)
        ]
        for _ in range(rng.integers(1, _LONGEST_LIST + 1)):
            if own and rng.random() < 0.5:
                caption, phrase = own[rng.integers(len(own))]
                parts.append((without_article(caption.tokens[phrase.first_token : phrase.end_token], rng), phrase))
            elif tokens := self._foreign_phrase(words, rng):
                parts.append((without_article(tokens, rng), None))
        return list_caption(parts) if parts else None


def _has_no_rival(phrase: Phrase, caption: Caption) -> bool:
    """Whether it says by itself which box it means: its caption has no other phrase of its category."""
    others = (other for other in caption.phrases if other is not phrase)
    return is_scored(phrase) and all(set(phrase.categories).isdisjoint(other.categories) for other in others)


def without_article(tokens: Sequence[str], rng: np.random.Generator) -> tuple[str, ...]:
    """Half the time without its article: "dog" for "a dog"."""
    drop = len(tokens) > 1 and tokens[0].lower() in _DETERMINERS and rng.random() < 0.5
    return tuple(tokens[1:] if drop else tokens)


def replace_phrase(caption: Caption, place: int, tokens: tuple[str, ...]) -> Caption:
    """The caption with an absent phrase of these tokens in the place of one of its own."""
    old = caption.phrases[place]
    more = len(tokens) - (old.end_token - old.first_token)
    every = (*caption.tokens[: old.first_token], *tokens, *caption.tokens[old.end_token :])
    phrases = []
    for number, phrase in enumerate(caption.phrases):
        first, end = phrase.first_token, phrase.end_token
        if number == place:
            phrases.append(_phrase(every, first, end + more, None))
        elif first >= old.end_token:
            phrases.append(_phrase(every, first + more, end + more, phrase))
        elif end <= old.first_token:
            phrases.append(_phrase(every, first, end, phrase))
    return replace(caption, text=" ".join(every), tokens=every, phrases=tuple(phrases))


def list_caption(parts: Sequence[ListPart]) -> Caption:
    """A list of phrases with commas between them."""
    tokens: tuple[str, ...] = ()
    spans = []
    for words, phrase in parts:
        tokens = (*tokens, ",") if tokens else tokens
        spans.append((len(tokens), len(tokens) + len(words), phrase))
        tokens = (*tokens, *words)
    return Caption(0, " ".join(tokens), tokens, tuple(_phrase(tokens, *span) for span in spans))


def _phrase(tokens: Sequence[str], first: int, end: int, old: Phrase | None) -> Phrase:
    """The phrase of these tokens; without an old one, absent."""
    start = sum(len(token) + 1 for token in tokens[:first])
    text = " ".join(tokens[first:end])
    if old is None:
        return Phrase(text, start, start + len(text), first, end, None, ("other",), None, is_absent=True)
    return replace(old, text=text, start=start, end=start + len(text), first_token=first, end_token=end)
