"""Phrases given by the user: texts, matched at every occurrence in the caption, or spans in code points.

A phrase consists of whole tokens. A text is matched with its case and, if it does not occur, without; white space
matches any white space. Spans are stripped. Spans that cut a word, overlap or do not exist are refused: guessing would
draw a box for something other than what was asked for.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from itertools import pairwise
from textwrap import shorten

from phrasechain.core.errors import DataError
from phrasechain.core.schema import PHRASE_LIMIT
from phrasechain.text.tokens import Span, Token, tokenise

Given = str | tuple[int, int]

_COMPARED = 200  # characters of a phrase and words of a caption that are searched for what may be meant
_SHOWN = 60  # characters of the user's text in a message


def locate_phrases(text: str, phrases: Sequence[Given]) -> list[Span]:
    """The spans of the given phrases, in the order of the text; repeated texts are ignored.

    >>> [(span.start, span.end) for span in locate_phrases("A man sees a man.", ["man", (0, 1)])]
    [(0, 1), (2, 5), (13, 16)]
    """
    if isinstance(phrases, str):
        raise DataError("phrases must be a list of texts or (start, end) spans, not one text; put it into a list")
    if not isinstance(phrases, Collection):
        raise DataError(f"phrases must be a list of texts or (start, end) spans, not {type(phrases).__name__}")
    if len(phrases) > PHRASE_LIMIT:
        raise DataError(f"{len(phrases):,} phrases, more than {PHRASE_LIMIT:,}; give fewer")
    tokens = tokenise(text)
    spans: list[Span] = []
    texts: set[str] = set()
    for phrase in phrases:
        if not isinstance(phrase, str):
            spans.append(_locate_span(text, tokens, phrase))
        elif phrase not in texts:
            texts.add(phrase)
            spans += _locate_text(text, tokens, phrase)
    spans.sort(key=lambda span: (span.start, span.end))
    _refuse_overlap(text, spans)
    return spans


def _locate_text(text: str, tokens: Sequence[Token], phrase: str) -> list[Span]:
    words = phrase.split()
    if not words:
        raise DataError("a phrase is empty; give words of the caption, or omit it")
    pattern = r"\s+".join(map(re.escape, words)) if len("".join(words)) <= len(text) else None
    cut = None
    for flags in (re.NOFLAG, re.IGNORECASE):
        matches = [match.span() for match in re.finditer(pattern, text, flags)] if pattern else []
        if spans := [span for start, end in matches if (span := _whole_tokens(tokens, start, end))]:
            return spans
        cut = cut or next(iter(matches), None)
    if cut:
        raise DataError(f"the phrase {_quote(phrase)} cuts {_around(text, tokens, *cut)}; give whole words")
    raise DataError(f"the phrase {_quote(phrase)} is not in the caption{_nearest(text, tokens, phrase)}")


def _locate_span(text: str, tokens: Sequence[Token], given: tuple[int, int]) -> Span:
    if not isinstance(given, Sequence) or len(given) != 2 or any(type(offset) is not int for offset in given):
        raise DataError(f"{_quote(given)} is not a phrase; give a text, or (start, end) in characters of the caption")
    start, end = given
    if not 0 <= start < end <= len(text):
        rule = f"0 ≤ start < end ≤ {len(text)}, the length of the caption"
        raise DataError(f"the span ({start}, {end}) is empty or outside the caption: {rule}")
    inner = text[start:end]
    start, end = start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())
    if start >= end:
        raise DataError(f"the span ({given[0]}, {given[1]}) contains only white space; give words of the caption")
    if span := _whole_tokens(tokens, start, end):
        return span
    raise DataError(f"the span ({given[0]}, {given[1]}) cuts {_around(text, tokens, start, end)}; give whole words")


def _whole_tokens(tokens: Sequence[Token], start: int, end: int) -> Span | None:
    """The tokens that span exactly [start, end); ``None`` where a boundary lies within a token."""
    first = bisect_left(tokens, start, key=lambda token: token.start)
    stop = bisect_left(tokens, end, key=lambda token: token.end) + 1
    whole = first < stop <= len(tokens) and tokens[first].start == start and tokens[stop - 1].end == end
    return Span(start, end, first, stop) if whole else None


def _around(text: str, tokens: Sequence[Token], start: int, end: int) -> str:
    """The words that a span overlaps, and their position."""
    first = bisect_right(tokens, start, key=lambda token: token.end)
    stop = bisect_left(tokens, end, key=lambda token: token.start)
    if first >= stop:
        return "no word"
    start, end = tokens[first].start, tokens[stop - 1].end
    return f"{_quote(text[start:end])} at ({start}, {end})"


def _refuse_overlap(text: str, spans: Sequence[Span]) -> None:
    for one, other in pairwise(spans):
        if other.start < one.end:
            both = f"{_quote(text[one.start : one.end])} and {_quote(text[other.start : other.end])}"
            positions = f"({one.start}, {one.end}) and ({other.start}, {other.end})"
            raise DataError(f"the phrases {both} overlap, at {positions}; give one of them, or spans for each")


def _nearest(text: str, tokens: Sequence[Token], phrase: str) -> str:
    """A hint: the closest match in the caption, or the start of the caption."""
    if len(phrase) > _COMPARED or len(tokens) > _COMPARED:  # comparing takes the product of both lengths
        return f": {_quote(text)}"
    count = max(1, len(tokenise(phrase)))
    pieces = [
        text[tokens[first].start : tokens[first + size - 1].end]
        for size in {max(1, count - 1), count, count + 1}
        for first in range(len(tokens) - size + 1)
    ]
    lowered = {piece.lower(): piece for piece in pieces}
    near = get_close_matches(phrase.lower(), lowered, n=1)
    return f"; did you mean {_quote(lowered[near[0]])}?" if near else f": {_quote(text)}"


def _quote(value: object) -> str:
    return repr(shorten(value, _SHOWN, placeholder=" …") if isinstance(value, str) else value)[: 2 * _SHOWN]
