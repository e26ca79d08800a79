"""From a config to a model of any kind, with what it learns before the first step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phrasechain.baselines.base import Annotated
from phrasechain.baselines.registry import BUILDERS, SYSTEMS, make_system
from phrasechain.core.errors import DataError, unknown_name
from phrasechain.core.schema import Example
from phrasechain.model.batch import RegionSource, collate_annotated, make_groups
from phrasechain.model.build import build_model, make_encoder
from phrasechain.model.config import Config
from phrasechain.model.system import GroundingSystem
from phrasechain.store.reader import FeatureStore

IMAGES_AT_ONCE = 16


def build_system(config: Config, examples: Sequence[Example], store: FeatureStore) -> GroundingSystem:
    """A model with the examples' vocabulary and the store's feature dimension."""
    kind = config.model.kind
    if kind not in BUILDERS:
        raise DataError(unknown_name("kind of model", kind, BUILDERS))
    if kind not in SYSTEMS:
        return build_model(config, examples, store)
    captions = [caption.tokens for example in examples for caption in example.captions]
    system = make_system(make_encoder(config.text, captions), store.info.dimension, config.model)
    system.eval().fit(AnnotatedBatches(examples, store))
    return system


class AnnotatedBatches:
    """The images of examples, a few at a time and in their order, as often as they are asked for."""

    def __init__(self, examples: Sequence[Example], regions: RegionSource) -> None:
        self.groups, self.regions = make_groups(examples), regions

    def __iter__(self) -> Iterator[Annotated]:
        for start in range(0, len(self.groups), IMAGES_AT_ONCE):
            items = [item for group in self.groups[start : start + IMAGES_AT_ONCE] for item in group]
            yield collate_annotated(items, self.regions)
