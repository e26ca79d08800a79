"""The compared systems by name, with the sizes of the section ``model``. Each is imported when it is built."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from phrasechain.core.errors import DataError
from phrasechain.model.checkpoint import BUILDERS as OWN
from phrasechain.model.checkpoint import Builder, ModelInfo
from phrasechain.model.config import Model
from phrasechain.text.base import TextEncoder

if TYPE_CHECKING:
    from phrasechain.baselines.base import Baseline


def _structured_matching(encoder: TextEncoder, regions: int, sizes: Model) -> Baseline:
    from phrasechain.baselines.structured_matching import StructuredMatching

    return StructuredMatching(encoder, regions, joint=sizes.rank)


def _cca(encoder: TextEncoder, regions: int, sizes: Model) -> Baseline:
    from phrasechain.baselines.cca import PhraseRegionCCA

    return PhraseRegionCCA(encoder, regions)


def _qrc(encoder: TextEncoder, regions: int, sizes: Model, policy: str = "reinforce") -> Baseline:
    from phrasechain.baselines.qrc import QRCNet

    return QRCNet(encoder, regions, lstm=sizes.lstm, hidden=sizes.joint, policy=policy)


def _qrc_supervised(encoder: TextEncoder, regions: int, sizes: Model) -> Baseline:
    return _qrc(encoder, regions, sizes, "supervised")


def _ban(encoder: TextEncoder, regions: int, sizes: Model) -> Baseline:
    from phrasechain.baselines.ban import BAN

    return BAN(encoder, regions, hidden=sizes.lstm, joint=3 * sizes.lstm)  # the paper's proportion


def _ddpn(encoder: TextEncoder, regions: int, sizes: Model) -> Baseline:
    from phrasechain.baselines.ddpn import DDPN

    return DDPN(encoder, regions, lstm=sizes.lstm, hidden=sizes.joint)


#: From a text encoder, the dimension of region features and sizes to a system.
SYSTEMS: dict[str, Callable[[TextEncoder, int, Model], Baseline]] = {
    "structured-matching": _structured_matching,
    "cca": _cca,
    "qrc": _qrc,
    "qrc-supervised": _qrc_supervised,
    "ban": _ban,
    "ddpn": _ddpn,
}


def make_system(encoder: TextEncoder, regions: int, sizes: Model) -> Baseline:
    """The system of the kind that ``sizes`` names, if its libraries are here."""
    system = SYSTEMS[sizes.kind](encoder, regions, sizes)
    if missing := [name for name in system.needs if find_spec(name) is None]:
        raise DataError(
            f"model.kind={sizes.kind} needs {' and '.join(missing)}, not installed here: "
            "pip install 'phrasechain[baselines]'"
        )
    return system


def build_of_kind(info: ModelInfo, encoder: TextEncoder) -> Baseline:
    """The system of a checkpoint's kind."""
    return make_system(encoder, info.regions.dimension, info.model)


#: What a checkpoint of each kind is built by.
BUILDERS: dict[str, Builder] = {**OWN, **dict.fromkeys(SYSTEMS, build_of_kind)}
