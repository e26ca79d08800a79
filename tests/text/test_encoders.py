"""The encoders by name."""

import pytest

from phrasechain.core.errors import DataError
from phrasechain.text.base import TextEncoder
from phrasechain.text.encoders import ENCODERS, build_encoder
from phrasechain.text.words import WordEncoder


def test_names() -> None:
    assert list(ENCODERS) == ["words", "elmo", "transformer"]
    assert all(issubclass(kind, TextEncoder) for kind in ENCODERS.values())


def test_an_encoder_is_built_from_its_settings() -> None:
    encoder = build_encoder("words", WordEncoder(["dog"], 3, buckets=7).settings)
    assert isinstance(encoder, WordEncoder)
    assert (encoder.words, encoder.dimension, encoder.buckets) == (("dog",), 3, 7)


def test_unknown_names_and_settings() -> None:
    with pytest.raises(DataError, match=r"no text encoder named 'word'; there are: .*did you mean 'words'"):
        build_encoder("word", {})
    with pytest.raises(DataError, match=r"settings of the text encoder 'words' do not fit it: .*depth"):
        build_encoder("words", {"words": [], "dimension": 2, "depth": 3})
