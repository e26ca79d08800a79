"""The text encoders by name."""

from __future__ import annotations

from typing import Any

from phrasechain.core.errors import DataError, require_name
from phrasechain.text.base import TextEncoder
from phrasechain.text.elmo import ElmoEncoder
from phrasechain.text.transformer import TransformerEncoder
from phrasechain.text.words import WordEncoder

ENCODERS: dict[str, type[TextEncoder]] = {
    "words": WordEncoder,
    "elmo": ElmoEncoder,
    "transformer": TransformerEncoder,
}


def build_encoder(name: str, settings: dict[str, Any]) -> TextEncoder:
    """An encoder from its ``settings``; its weights come from a ``state_dict``.

    >>> encoder = build_encoder("words", {"words": ["a", "dog"], "dimension": 8})
    >>> encoder([["A", "dog"], ["a", "spotted", "dog"]]).shape
    torch.Size([2, 3, 8])
    """
    require_name("text encoder", name, ENCODERS)
    try:
        return ENCODERS[name](**settings)
    except TypeError as error:
        raise DataError(f"the settings of the text encoder {name!r} do not fit it: {error}") from None
