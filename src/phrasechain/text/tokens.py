"""Tokens of plain text, split as the captions of Flickr30k are, and back to text.

    tokenise("The man's dog isn't here.")   The · man · 's · dog · is · n't · here · .

- Punctuation stands alone, a run of the same sign is one token (``...``, ``!!``), and so is a run of emoji.
- Hyphens, ampersands and most apostrophes stay within a word: ``t-shirt``, ``A&M``, ``o'clock``; but ``'s``, ``'re``,
  ``'m``, ``'ll``, ``'ve``, ``'d`` and ``n't`` are split off. Numbers stay whole: ``37,000``, ``4:06pm``, ``1/2``.
- Abbreviations keep their full stops (``U.S.``, ``Mr. Smith``), and so do the addresses of web sites.
- Any Unicode will do. Letters, digits and signs in another form (full-width, bold, circled) are split like plain ones.
  White space, control characters, marks of direction, the zero-width space and the byte-order mark separate; combining
  marks and joiners stay with their letter. Scripts that use no spaces (Chinese, Japanese, Thai) are not segmented: what
  stands between two signs of punctuation is one token.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from phrasechain.core.errors import DataError

#: The longest text that is taken, in code points and in tokens; a page of a book has about 2,500 and 500.
CHARACTER_LIMIT = 20_000
TOKEN_LIMIT = 2_000

_EMOJI, _JOINER = "\x01", "\x02"  # stand-ins; real control characters have become spaces
_ANY_SIGN = ";"  # stands for any other punctuation
_SAME = dict.fromkeys("\u2018\u2019\u02bc\u00b4", "'") | dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"')
_SAME |= dict.fromkeys("\u2010\u2011", "-") | dict.fromkeys("\u200b\ufeff\u2060", " ") | {"\u2026": "."}
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_MARKS_OF_DIRECTION = "\u200e\u200f\u061c"

_CONTRACTION = r"'(?:s|re|m|ll|ve|d)(?!W)"
_PIECE = r"(?:\d+(?:[.,:/]\d+)*W*|[A-Za-z_]W*)"
_TOKEN = re.compile(
    "|".join(
        (
            r"(?:https?://|www\.)[^ ]*[A-Za-z0-9/]",
            r"V{1,63}(?:\.V{1,63}){0,3}\.(?:com|org|net|edu|gov|co|uk|de|fr|io)(?!W)",
            r"(?:[A-Za-z]\.){2,}(?!W)",
            r"(?:mr|mrs|ms|dr|st|jr|sr|prof|univ|corp|inc)\.(?= +[^ ])",
            r"[A-Za-z]+?(?=n't(?!W))",
            r"n't(?!W)",
            rf"{_CONTRACTION}(?:-W+)*",
            r"'n'(?!W)",
            rf"{_PIECE}(?:(?:[-&]|(?!{_CONTRACTION})'){_PIECE})*",
            r"(?<!W)\.\d+",
            rf"{_EMOJI}[{_EMOJI}{_JOINER}]*",
            r"''|``|\.+|-+|!+|\?+|\*+",
            rf"[^ {_JOINER}]",
        )
    )
    .replace("W", f"[A-Za-z0-9_{_JOINER}]")
    .replace("V", f"[A-Za-z0-9_{_JOINER}-]"),
    re.IGNORECASE,
)
_FORMATS = re.compile("[\u00ad\u200c\u200d\u2060\ufe0e\ufe0f]")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a text: ``text[start:end]``, in code points."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Span:
    """Some tokens in a row, ``tokens[first_token:end_token]``, which are ``text[start:end]``."""

    start: int
    end: int
    first_token: int
    end_token: int


def tokenise(text: str) -> tuple[Token, ...]:
    """The tokens of a text, in order and without overlap; none for white space.

    >>> [token.text for token in tokenise("Two kids' t-shirts (red) don't match.")]
    ['Two', 'kids', "'", 't-shirts', '(', 'red', ')', 'do', "n't", 'match', '.']
    """
    if not isinstance(text, str):
        raise DataError(f"a caption is a text, not {type(text).__name__}")
    if len(text) > CHARACTER_LIMIT:
        raise DataError(f"the text has {len(text):,} characters; {CHARACTER_LIMIT:,} are the most, so split it")
    spans = [match.span() for match in _TOKEN.finditer(text.translate(_STAND_IN))]
    if len(spans) > TOKEN_LIMIT:
        raise DataError(f"the text has {len(spans):,} words and signs; {TOKEN_LIMIT:,} are the most, so split it")
    return tuple(Token(text[start:end], start, end) for start, end in spans)


def plain(token: str) -> str:
    """The token in plain form: straight quotes, NFKC, no invisible characters.

    >>> plain("\u201d"), plain("caf\u0065\u0301"), plain("\uff24\uff4f\uff47")
    ('"', 'café', 'Dog')
    """
    if token.isascii():
        return token
    straight = "".join(_SAME.get(sign, sign) for sign in _FORMATS.sub("", token))
    return unicodedata.normalize("NFKC", straight)


class _StandIn(dict[int, str]):
    """One ASCII character for each code point, so that a pattern for ASCII finds the tokens of any text."""

    def __missing__(self, code: int) -> str:
        self[code] = _stand_in(chr(code))
        return self[code]


def _stand_in(sign: str) -> str:
    category = unicodedata.category(sign)
    if sign in _SAME:
        return _SAME[sign]
    if category[0] == "Z" or category == "Cc" or sign in _MARKS_OF_DIRECTION:
        return " "
    if category == "Cf":
        return " " if unicodedata.bidirectional(sign) in _DIRECTIONS else _JOINER
    if sign.isascii():
        return sign
    if category[0] == "M" or ord(sign) in _SKIN_TONES:
        return _JOINER
    if len(simple := unicodedata.normalize("NFKC", sign)) == 1 and simple.isascii():
        return simple
    if category == "So":
        return _EMOJI
    if category[0] in "PS":
        return _ANY_SIGN
    return "9" if category == "Nd" else "x"


_STAND_IN = _StandIn()

# ---- back to text ----

_NO_SPACE_BEFORE = re.compile(r"[.!?]+|[,;:)%\u201d]|n't|'(?:s|re|m|ll|ve|d)(?:-\w+)*", re.IGNORECASE)
_NO_SPACE_AFTER = frozenset("($#")
_QUOTES = frozenset("\"'")


def written(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """The tokens as ordinary text, and the span of each token in it.

    >>> written(["The", "man", "'s", '"', "dog", '"', "is", "n't", "here", "."])[0]
    'The man\\'s "dog" isn\\'t here.'
    """
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    length, glued, opened = 0, True, ""  # glued: no space may come; opened: the quotes that are not closed yet
    for place, token in enumerate(tokens):
        opens = token in _QUOTES and token not in opened and (token == '"' or token in tokens[place + 1 :])
        closes = token in _QUOTES and not opens
        if not (glued or closes or _NO_SPACE_BEFORE.fullmatch(token)):
            parts.append(" ")
            length += 1
        opened = opened + token if opens else opened.replace(token, "") if closes else opened
        parts.append(token)
        spans.append((length, length + len(token)))
        length += len(token)
        glued = opens or token in _NO_SPACE_AFTER
    return "".join(parts), spans
