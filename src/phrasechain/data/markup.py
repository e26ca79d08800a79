"""The mark-up of Flickr30k Entities' captions: ``[/EN#12/people/clothing A man] sits .``

The text without mark-up is its tokens joined by one space. Spans are computed while the mark-up is stripped, not by
searching, so repeated phrases and phrases within words are where the annotators put them. Brackets may nest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from phrasechain.core.errors import DataError
from phrasechain.core.schema import PHRASE_LIMIT, Box, Caption, Phrase

#: The id of phrases without an entity.
NO_ENTITY = "0"

_SPACES = re.compile(r"[ \t\r\f\v]+")  # other white space, such as a no-break space, is a part of its token
_PIECE = re.compile(
    r"\[/EN#(?P<entity>[^/\s\[\]]+)(?P<header>(?:/[^/\s\[\]]+)+) "
    r"|(?P<broken>\[/)"
    r"|(?P<bracket>[\[\]])"
    r"|(?P<words>[^\[\]]+)"
)


@dataclass(frozen=True, slots=True)
class Entity:
    """The annotation of one entity id."""

    boxes: tuple[Box, ...] = ()
    is_scene: bool = False
    is_boxless: bool = False


@dataclass(slots=True)
class _Span:
    entity: str
    header: str
    start: int
    end: int = -1


def parse_caption(
    line: str, index: int = 0, entities: Mapping[str, Entity] | None = None, first_match: bool = False
) -> Caption:
    """Parse one marked-up caption; a phrase whose entity is not in ``entities`` has unknown boxes.

    ``first_match`` gives a phrase the tokens of the first match of its words in the lower-cased caption, even within
    another word, as the paper's authors did; its character span stays that of the mark-up.

    >>> caption = parse_caption("[/EN#1/people A man] sees [/EN#2/people a man] .")
    >>> caption.text, [(phrase.text, phrase.start, phrase.first_token) for phrase in caption.phrases]
    ('A man sees a man .', [('A man', 0, 0), ('a man', 11, 3)])
    """
    text, spans = strip_markup(line)
    known = entities or {}
    locate = _first_match if first_match else _exact
    phrases = []
    for span in spans:
        entity = known.get(span.entity)
        first_token, end_token = locate(text, span.start, span.end)
        phrases.append(
            Phrase(
                text=text[span.start : span.end],
                start=span.start,
                end=span.end,
                first_token=first_token,
                end_token=end_token,
                entity=None if span.entity == NO_ENTITY else span.entity,
                categories=_categories(span.header),
                boxes=None if entity is None else entity.boxes,
                is_scene=entity is not None and entity.is_scene,
                is_boxless=entity is not None and entity.is_boxless,
            )
        )
    return Caption(index=index, text=text, tokens=split_tokens(text), phrases=tuple(phrases))


def split_tokens(text: str) -> tuple[str, ...]:
    """The tokens of a caption without mark-up."""
    return tuple(text.split(" ")) if text else ()


def strip_markup(line: str) -> tuple[str, list[_Span]]:
    """The caption's text, and its phrases as character spans of that text, in the order of their opening brackets."""
    parts: list[str] = []
    length = 0
    after_space = True  # a space here would be a second one, or leading
    opened: list[_Span | None] = []  # None: a bracket that belongs to the text
    spans: list[_Span] = []
    for piece in _PIECE.finditer(_SPACES.sub(" ", line)):
        kind = piece.lastgroup
        if kind == "header":
            if len(spans) == PHRASE_LIMIT:
                raise DataError(f"more than {PHRASE_LIMIT:,} phrases: this is not a caption")
            span = _Span(piece["entity"], piece["header"], length)
            opened.append(span)
            spans.append(span)
            continue
        if kind == "broken":
            raise DataError(f"broken mark-up at {_excerpt(piece)}; a phrase is [/EN#ID/CATEGORY WORDS]")
        words = piece[0]
        if words == "]":
            if not opened:
                raise DataError("a ']' closes no phrase; remove it or fix the mark-up before it")
            if (closed := opened.pop()) is not None:
                closed.end = length - after_space
                if closed.end <= closed.start:
                    raise DataError(f"the phrase [/EN#{closed.entity}{closed.header} ] has no words")
                continue
        elif words == "[":
            opened.append(None)
        elif after_space and words[0] == " ":
            words = words[1:]
        if words:
            parts.append(words)
            length += len(words)
            after_space = words[-1] == " "
    if opened:
        raise DataError("a '[' is never closed; the line may be truncated")
    if len({(span.start, span.end) for span in spans}) < len(spans):
        raise DataError("two phrases have the same span; keep one of them")
    return "".join(parts).removesuffix(" "), spans


def _excerpt(piece: re.Match[str]) -> str:
    return repr(piece.string[piece.start() : piece.start() + 30])


@lru_cache(maxsize=1024)
def _categories(header: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(header.split("/")[1:]))


def _exact(text: str, start: int, end: int) -> tuple[int, int]:
    return text.count(" ", 0, start), text.count(" ", 0, end) + 1


def _first_match(text: str, start: int, end: int) -> tuple[int, int]:
    words = text[start:end].lower()
    lowered = text.lower()
    first = lowered.count(" ", 0, lowered.find(words))
    tokens = lowered.count(" ") + 1
    return first, min(first + words.count(" ") + 1, tokens)
