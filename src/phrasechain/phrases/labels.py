"""Captions that are lists of labels: "dog, red car, tree", or one on each line.

A sentence has commas and line breaks too. So a text is only perhaps a list: it is one if the finder takes each of its
parts, by itself, for one phrase from end to end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from phrasechain.text.tokens import Token

_SEPARATORS = frozenset({",", ";", "|", "/", "."})
_BULLETS = frozenset({"-", "*", "•", "–", "·", "+", ")", "(", ":"})
_NUMBER = re.compile(r"\d+")
_LONGEST = 6  # tokens of a label


def label_parts(text: str, tokens: Sequence[Token]) -> list[tuple[int, int]]:
    """The token spans of what may be labels, none where the text cannot be a list of them.

    >>> from phrasechain.text.tokens import tokenise
    >>> label_parts("dog, red car", tokenise("dog, red car"))
    [(0, 1), (2, 4)]
    >>> label_parts("dog", tokenise("dog"))
    []
    """
    parts = [_stripped(tokens, *part) for part in _parts(text, tokens)]
    parts = [(first, end) for first, end in parts if first < end]
    return parts if len(parts) > 1 and all(end - first <= _LONGEST for first, end in parts) else []


def _parts(text: str, tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    first = 0
    for place, token in enumerate(tokens):
        if token.text in _SEPARATORS:
            yield first, place
            first = place + 1
        elif place > first and "\n" in text[tokens[place - 1].end : token.start]:
            yield first, place
            first = place
    yield first, len(tokens)


def _stripped(tokens: Sequence[Token], first: int, end: int) -> tuple[int, int]:
    """Without a bullet, or a number as a bullet, before it."""
    while first < end and tokens[first].text in _BULLETS:
        first += 1
    if end - first == 1 and _NUMBER.fullmatch(tokens[first].text):
        return first, first
    return first, end
