"""The compared systems by name, with the sizes of the section ``model``, and what they learn before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec

from phrasechain.baselines.ban import BAN
from phrasechain.baselines.base import Annotated, Baseline
from phrasechain.baselines.cca import PhraseRegionCCA
from phrasechain.baselines.ddpn import DDPN
from phrasechain.baselines.qrc import QRCNet
from phrasechain.baselines.structured_matching import StructuredMatching
from phrasechain.core.errors import DataError, unknown_name
from phrasechain.core.schema import Example
from phrasechain.model.batch import RegionSource, collate_annotated, make_groups
from phrasechain.model.build import build_model, make_encoder
from phrasechain.model.checkpoint import BUILDERS as OWN
from phrasechain.model.checkpoint import Builder, ModelInfo
from phrasechain.model.config import Config, Model
from phrasechain.model.system import GroundingSystem
from phrasechain.store.reader import FeatureStore
from phrasechain.text.base import TextEncoder

#: From a text encoder, the dimension of regions and sizes to a system.
Maker = Callable[[TextEncoder, int, Model], Baseline]
IMAGES_AT_ONCE = 16

SYSTEMS: dict[str, Maker] = {
    "structured-matching": lambda encoder, regions, sizes: StructuredMatching(encoder, regions, joint=sizes.rank),
    "cca": lambda encoder, regions, sizes: PhraseRegionCCA(encoder, regions),
    "qrc": lambda encoder, regions, sizes: QRCNet(encoder, regions, lstm=sizes.lstm, hidden=sizes.joint),
    "qrc-supervised": lambda encoder, regions, sizes: QRCNet(
        encoder, regions, lstm=sizes.lstm, hidden=sizes.joint, policy="supervised"
    ),
    "ban": lambda encoder, regions, sizes: BAN(encoder, regions, hidden=sizes.lstm, joint=3 * sizes.lstm),
    "ddpn": lambda encoder, regions, sizes: DDPN(encoder, regions, lstm=sizes.lstm, hidden=sizes.joint),
}


def _builder(kind: str) -> Builder:
    def build(info: ModelInfo, encoder: TextEncoder) -> GroundingSystem:
        return _require_libraries(kind, SYSTEMS[kind](encoder, info.regions.dimension, info.model))

    return build


#: What a checkpoint of each kind is built by.
BUILDERS: Mapping[str, Builder] = {**OWN, **{kind: _builder(kind) for kind in SYSTEMS}}


def build_system(config: Config, examples: Sequence[Example], store: FeatureStore) -> GroundingSystem:
    """The model that a config asks for, with what it learns before the first step."""
    kind = config.model.kind
    if kind not in BUILDERS:
        raise DataError(unknown_name("kind of model", kind, BUILDERS))
    if kind not in SYSTEMS:
        return build_model(config, examples, store)
    captions = [caption.tokens for example in examples for caption in example.captions]
    encoder = make_encoder(config.text, captions)
    system = _require_libraries(kind, SYSTEMS[kind](encoder, store.info.dimension, config.model))
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


def _require_libraries(kind: str, system: Baseline) -> Baseline:
    if missing := [name for name in system.needs if find_spec(name) is None]:
        raise DataError(
            f"model.kind={kind} needs {' and '.join(missing)}, not installed here: pip install 'phrasechain[baselines]'"
        )
    return system
