"""The text encoders by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phrasechain.core.errors import DataError, library_errors, located, require_name, unknown_name
from phrasechain.text.base import TextEncoder
from phrasechain.text.elmo import ElmoEncoder
from phrasechain.text.elmo_files import SIZES, check_sizes
from phrasechain.text.transformer import TransformerEncoder
from phrasechain.text.transformer_settings import check_settings
from phrasechain.text.vectors import MAX_DIMENSION
from phrasechain.text.words import WordEncoder

MOST_WORDS = 1 << 22  # of a vocabulary, and buckets of n-grams
FLAGS = ("stateful", "lowercase", "frozen")
_NEEDED = {"words": {"words", "dimension"}, "elmo": set(SIZES), "transformer": {"config", "tokenizer", "limit"}}
ENCODERS: dict[str, type[TextEncoder]] = {
    "words": WordEncoder,
    "elmo": ElmoEncoder,
    "transformer": TransformerEncoder,
}


def _words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of ``words``, checked."""
    words = settings.get("words")
    if not isinstance(words, list) or len(words) > MOST_WORDS or not all(isinstance(word, str) for word in words):
        raise DataError(f'"words" is not a list of up to {MOST_WORDS:,} words')
    bounds = {"dimension": MAX_DIMENSION, "buckets": MOST_WORDS}
    for key, most in bounds.items():
        value = settings.get(key, 1)
        if type(value) is not int or not 1 <= value <= most:
            raise DataError(f'"{key}" is not a whole number from 1 to {most:,}')
    dropout = settings.get("word_dropout", 0.0)
    if type(dropout) not in (int, float) or not 0 <= dropout < 1:
        raise DataError('"word_dropout" is not a number from 0 to below 1')
    require_flags(settings, "lowercase", "frozen")
    return {key: value for key, value in settings.items() if key in ("words", "word_dropout", *bounds, *FLAGS[1:])}


def _elmo(settings: Mapping[str, Any]) -> dict[str, Any]:
    require_flags(settings, *FLAGS)
    if not isinstance(settings.get("layers", ""), str):
        raise DataError('"layers" is not a name')
    others = {key: value for key, value in settings.items() if key in ("layers", *FLAGS)}
    return check_sizes(settings) | others


#: What checks the settings of each encoder: the keys that it knows, each within bounds, before anything is built.
CHECKS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "words": _words,
    "elmo": _elmo,
    "transformer": check_settings,
}


def build_encoder(name: Any, settings: Any) -> TextEncoder:
    """An encoder from its ``settings``, which may be untrusted; its weights come from a ``state_dict``.

    >>> encoder = build_encoder("words", {"words": ["a", "dog"], "dimension": 8})
    >>> encoder([["A", "dog"], ["a", "spotted", "dog"]]).shape
    torch.Size([2, 3, 8])
    """
    require_name("text encoder", str(name), ENCODERS)
    problem = f"the settings of the text encoder {name!r} do not fit it"
    if not isinstance(settings, dict):
        raise DataError(f"{problem}: not an object")
    if name not in CHECKS:  # of a plugin, which checks them itself
        with library_errors(problem):
            return ENCODERS[name](**settings)
    with located(problem):
        checked = CHECKS[name](settings)
        if unknown := sorted(settings.keys() - checked.keys()):
            raise DataError(unknown_name("key", unknown[0][:40], checked))
        if missing := sorted(_NEEDED[name] - checked.keys()):
            raise DataError(f'no "{missing[0]}"')
    return ENCODERS[name](**checked)


def require_flags(settings: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if type(settings.get(key, False)) is not bool:
            raise DataError(f'"{key}" is not true or false')
