"""What the phrase finder learns from: marked-up captions as labelled tokens, in many ways of writing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from phrasechain.core.schema import Caption
from phrasechain.phrases.finder import begin, inside, phrases_of
from phrasechain.text.tokens import tokenise, written

#: Ways of writing a token, and how often a caption is written so.
CASES: dict[str, tuple[float, Callable[[str], str]]] = {
    "as it is": (0.66, str),
    "lower": (0.16, str.lower),
    "upper": (0.09, str.upper),
    "title": (0.09, lambda token: token[:1].upper() + token[1:]),
}
_WRITE = [write for _, write in CASES.values()]
_UP_TO = np.cumsum([share for share, _ in CASES.values()])[:-1]
_NO_END, _NO_SIGNS = 0.15, 0.05  # how often the last full stop, or all punctuation, is left out
_ENDS = (".", "!", "?")


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text and its phrases: [start, end) in code points, and their types."""

    text: str
    phrases: tuple[tuple[int, int, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Tokens and their labels."""

    tokens: tuple[str, ...]
    labels: tuple[int, ...]


def as_stored(caption: Caption) -> MarkedText:
    """The caption as the file has it: its tokens joined by one space."""
    return MarkedText(caption.text, tuple((phrase.start, phrase.end, phrase.categories) for phrase in caption.phrases))


def as_written(caption: Caption) -> MarkedText:
    """The caption as people write it."""
    text, spans = written(caption.tokens)
    phrases = (
        (spans[phrase.first_token][0], spans[phrase.end_token - 1][1], phrase.categories) for phrase in caption.phrases
    )
    return MarkedText(text, tuple(phrases))


def tag_sentence(marked: MarkedText) -> TaggedSentence:
    """The tokens of the text, labelled; a phrase of several types is of the first.

    A token that a phrase cuts belongs to the phrase, and of phrases that share a token the first counts: no labels
    could say more.
    """
    tokens = tokenise(marked.text)
    labels = [0] * len(tokens)
    for start, end, types in marked.phrases:
        places = [place for place, token in enumerate(tokens) if token.start < end and token.end > start]
        if not any(labels[place] for place in places):
            _label(labels, places, types[0])
    return TaggedSentence(tuple(sys.intern(token.text) for token in tokens), tuple(labels))


def vary(sentence: TaggedSentence, rng: np.random.Generator) -> TaggedSentence:
    """The sentence in other letters, or without its full stop or all its punctuation, as people write too."""
    case, end, signs = rng.random(3)
    changed = sentence
    if signs < _NO_SIGNS:
        changed = without(sentence, {place for place, token in enumerate(sentence.tokens) if not is_word(token)})
    elif end < _NO_END and sentence.tokens[-1] in _ENDS:
        changed = without(sentence, {len(sentence.tokens) - 1})
    write = _WRITE[int(np.searchsorted(_UP_TO, case, side="right"))]
    return TaggedSentence(tuple(map(write, changed.tokens)), changed.labels)


def without(sentence: TaggedSentence, dropped: Collection[int]) -> TaggedSentence:
    """The sentence without some of its tokens, unless these are all; a phrase begins with what is left of it."""
    kept = [place for place in range(len(sentence.tokens)) if place not in dropped]
    if not kept:
        return sentence
    labels = [0] * len(sentence.tokens)
    for first, end, name in phrases_of(sentence.labels):
        _label(labels, [place for place in range(first, end) if place not in dropped], name)
    return TaggedSentence(tuple(sentence.tokens[place] for place in kept), tuple(labels[place] for place in kept))


def join(sentences: Sequence[TaggedSentence]) -> TaggedSentence:
    """One paragraph of several captions."""
    return TaggedSentence(
        tuple(chain.from_iterable(sentence.tokens for sentence in sentences)),
        tuple(chain.from_iterable(sentence.labels for sentence in sentences)),
    )


def _label(labels: list[int], places: Sequence[int], name: str) -> None:
    for place in places:
        labels[place] = inside(name)
    for place in places[:1]:
        labels[place] = begin(name)


def is_word(token: str) -> bool:
    """Whether it is more than signs."""
    return any(map(str.isalnum, token))
