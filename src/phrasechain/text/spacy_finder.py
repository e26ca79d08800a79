"""spaCy's noun chunks as phrases, where it is installed: another way to find them, for text unlike captions.

Its chunks know no categories: those come from our own finder. Pronouns are left out (``it``, ``she``), and chunks grow
to whole tokens of ours.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Self

from phrasechain.errors import DataError, one_line
from phrasechain.text.finder import FoundPhrase, PhraseFinder
from phrasechain.text.tokens import Span, Token, tokenise

DEFAULT_MODEL = "en_core_web_sm"


class SpacyFinder:
    """Finds phrases as :class:`PhraseFinder` does, with the parser of a spaCy pipeline.

    Args:
        pipeline: what ``spacy.load`` gives; it needs a parser.
        finder: says the categories.
    """

    def __init__(self, pipeline: Any, finder: PhraseFinder) -> None:
        self.pipeline, self.finder = pipeline, finder

    @classmethod
    def from_pretrained(cls, model: str = DEFAULT_MODEL, finder: PhraseFinder | None = None) -> Self:
        """Load a spaCy pipeline by its name or folder."""
        try:
            spacy = import_module("spacy")
        except ImportError:
            raise DataError("spaCy is not installed: pip install spacy, or use the embedded phrase finder") from None
        try:
            pipeline = spacy.load(model, exclude=["ner", "lemmatizer"])
        except (OSError, ValueError) as error:
            hint = f"python -m spacy download {model}"
            raise DataError(f"spaCy cannot load {model!r} ({hint}): {one_line(error)}") from None
        return cls(pipeline, finder or PhraseFinder.from_pretrained())

    def find(self, text: str) -> list[FoundPhrase]:
        """The noun chunks of a text in their order, with our categories."""
        tokens = tokenise(text)
        try:
            chunks = [chunk for chunk in self.pipeline(text).noun_chunks if chunk.root.pos_ != "PRON"]
        except (ValueError, NotImplementedError) as error:  # a pipeline without a parser, or of another language
            raise DataError(f"this spaCy pipeline finds no noun chunks: {one_line(error)}") from None
        spans: list[Span] = []
        for chunk in chunks:
            span = _widened(tokens, chunk.start_char, chunk.end_char)
            if span and (not spans or span.first_token >= spans[-1].end_token):
                spans.append(span)
        return self.finder.categorise(text, spans)


def _widened(tokens: tuple[Token, ...], start: int, end: int) -> Span | None:
    """All tokens that a piece of the text touches."""
    touched = [place for place, token in enumerate(tokens) if token.start < end and token.end > start]
    if not touched:
        return None
    return Span(tokens[touched[0]].start, tokens[touched[-1]].end, touched[0], touched[-1] + 1)
