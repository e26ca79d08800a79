"""From a config to an initialised model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phrasechain.core.errors import DataError, require_name
from phrasechain.core.schema import Example
from phrasechain.model.config import Config, Text
from phrasechain.model.model import GroundingModel
from phrasechain.store.reader import FeatureStore
from phrasechain.text.base import Captions, TextEncoder
from phrasechain.text.cache import CachedEncoder
from phrasechain.text.elmo import ElmoEncoder
from phrasechain.text.transformer import TransformerEncoder
from phrasechain.text.vectors import read_vectors
from phrasechain.text.vocabulary import build_vocabulary
from phrasechain.text.words import WordEncoder

_SAMPLED = 1000  # images that the mean and deviation of features are estimated from


def build_model(config: Config, examples: Sequence[Example], store: FeatureStore) -> GroundingModel:
    """A model with the examples' vocabulary and the store's feature dimension."""
    captions = [caption.tokens for example in examples for caption in example.captions]
    encoder = make_encoder(config.text, captions)
    model = GroundingModel(encoder, store.info.dimension, **config.model.options())
    model.region_input.fit(_features(examples, store, config.train.seed))
    return model


def make_encoder(text: Text, captions: Captions) -> TextEncoder:
    """The text encoder that the section asks for, with the captions' vocabulary."""
    require_name("text encoder", text.encoder, MAKERS)
    encoder = MAKERS[text.encoder](text, captions)
    return CachedEncoder(encoder, text.cache) if text.cache else encoder


def _words(text: Text, captions: Captions) -> TextEncoder:
    words = build_vocabulary(captions, text.rare)
    options: dict[str, Any] = {"buckets": text.buckets, "word_dropout": text.word_dropout, "frozen": text.frozen}
    if not text.vectors:
        return WordEncoder(words, text.dimension, **options)
    vectors = read_vectors(text.vectors, None if text.all_vectors else words)
    return WordEncoder.from_vectors(words, vectors, **options)


def _elmo(text: Text, captions: Captions) -> TextEncoder:
    for key, file in (("options", text.options), ("weights", text.weights)):
        if not file:
            raise DataError(f"the encoder 'elmo' needs its files: --set text.{key}=PATH, or choose text.encoder=words")
    settings = {"stateful": text.stateful, "lowercase": text.lowercase, "frozen": not text.fine_tune}
    return ElmoEncoder.from_files(text.options, text.weights, text.layers, **settings)


def _transformer(text: Text, captions: Captions) -> TextEncoder:
    if not text.model:
        raise DataError("the encoder 'transformer' needs a model: --set text.model=FOLDER or a hub id")
    return TransformerEncoder.from_pretrained(text.model, frozen=not text.fine_tune)


#: From the section ``text`` and the captions to an encoder.
MAKERS: dict[str, Callable[[Text, Captions], TextEncoder]] = {
    "words": _words,
    "elmo": _elmo,
    "transformer": _transformer,
}


def _features(examples: Sequence[Example], store: FeatureStore, seed: int) -> Iterator[Tensor]:
    """The region features of a random sample of images."""
    order = np.random.default_rng(seed).permutation(len(examples))[:_SAMPLED]
    for number in order.tolist():
        yield torch.from_numpy(store[examples[number].image].features.astype(np.float32))
