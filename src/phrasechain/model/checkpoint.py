"""Checkpoints: a model in a folder, and which checkpoint of a run is its best.

A checkpoint is a folder with ``model.safetensors``, ``config.json`` (the architecture), ``text.json`` (the text encoder
and its vocabulary) and, for resuming a run, ``training.safetensors`` and ``state.json``. It holds all that the model is
built from, and no code. A run's ``checkpoints.json`` names its best and its last checkpoint. It is written once both
are complete, so a run that is killed at any moment leaves a whole one behind.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from reprlib import repr as short
from types import NoneType
from typing import TYPE_CHECKING, Any

from safetensors.torch import save
from torch import Tensor

from phrasechain import __version__
from phrasechain.core.errors import DataError, UnknownNameError, located, require_name
from phrasechain.core.files import json_bytes, sync_folder
from phrasechain.core.json_lines import read_json
from phrasechain.core.tensors import EmptyParameters, assign_weights, file_errors, read_tensors
from phrasechain.model.config import Model, model_from_dict
from phrasechain.model.model import GroundingModel
from phrasechain.model.system import GroundingSystem
from phrasechain.store.shard import MAX_DIMENSION
from phrasechain.text.base import TextEncoder
from phrasechain.text.cache import CachedEncoder
from phrasechain.text.encoders import ENCODERS, build_encoder

if TYPE_CHECKING:
    from phrasechain.store.reader import FeatureStore

CHECKPOINT_FORMAT = "phrasechain model 1"
POINTERS = "checkpoints.json"
WEIGHTS, CARD, TEXT = "model.safetensors", "config.json", "text.json"
_JSON_LIMIT = 1 << 25  # bytes; a vocabulary of two million words takes 24 million
_CARD_KINDS: Mapping[str, tuple[type, ...]] = {
    "model": (dict,),
    "regions": (dict,),
    "decode": (str,),
    "step": (int,),
    "score": (int, float, NoneType),
    "trained": (dict, NoneType),
}
STEP_FOLDER = re.compile(r"step-\d+")


@dataclass(frozen=True, slots=True)
class FeatureSource:
    """What made the region features that a model was trained on; it works with no others."""

    dimension: int
    extractor: str
    weights_sha256: str | None

    @staticmethod
    def of(store: FeatureStore) -> FeatureSource:
        return FeatureSource(store.info.dimension, store.info.extractor, store.info.weights_sha256)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The contents of ``config.json``: how to build the model, and how it was trained."""

    model: Model
    regions: FeatureSource
    decode: str = "viterbi"
    step: int = 0
    score: float | None = None  # accuracy on dev
    trained: Mapping[str, Any] | None = None  # the run's config, for reference

    @property
    def kind(self) -> str:
        """Which builder makes the model."""
        return self.model.kind


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded model, ready to run, and its info."""

    folder: Path
    model: GroundingSystem
    card: ModelInfo


@dataclass(frozen=True, slots=True)
class RunState:
    """The checkpoints of a run, by the names of their folders."""

    last: str
    best: str
    is_finished: bool


def save_checkpoint(folder: Path, model: GroundingSystem, weights: Mapping[str, Tensor], card: ModelInfo) -> None:
    """Write a checkpoint atomically. ``weights`` are the model's, or others in their place such as rounded ones."""
    write_folder(folder, checkpoint_files(model, weights, card))


def checkpoint_files(model: GroundingSystem, weights: Mapping[str, Tensor], card: ModelInfo) -> dict[str, bytes]:
    """The files of a checkpoint, by name."""
    encoder = model.text.encoder
    return {
        WEIGHTS: save(_plain(weights), {"format": CHECKPOINT_FORMAT}),
        CARD: json_bytes({"format": CHECKPOINT_FORMAT, "phrasechain": __version__, **asdict(card)}),
        TEXT: json_bytes({"encoder": _encoder_name(encoder), "settings": encoder.settings}),
    }


#: From a checkpoint's info and its text encoder to a model of any weights.
Builder = Callable[[ModelInfo, TextEncoder], GroundingSystem]


def build_model_of(info: ModelInfo, encoder: TextEncoder) -> GroundingModel:
    """The model of this package."""
    return GroundingModel(encoder, info.regions.dimension, **info.model.options())


BUILDERS: Mapping[str, Builder] = {"phrasechain": build_model_of}


def load_checkpoint(path: Path | str, builders: Mapping[str, Builder] = BUILDERS) -> Checkpoint:
    """The model in a checkpoint's folder, or the best one of a run, for inference.

    ``builders`` maps each ``kind`` of model to what builds it; other packages can pass their own.
    """
    folder = find_checkpoint(Path(path))
    info, text = read_model_info(folder), read_json(folder / TEXT, _JSON_LIMIT)
    with _naming(folder / CARD):
        require_name("kind of model", info.kind, builders)
    file = read_tensors(folder / WEIGHTS, "checkpoint", format=CHECKPOINT_FORMAT)
    with EmptyParameters():
        with _naming(folder / TEXT):
            encoder = build_encoder(text.get("encoder"), text.get("settings"))
        with _naming(folder / CARD):
            model = builders[info.kind](info, encoder)
    with file_errors(folder / WEIGHTS, "checkpoint"):
        assign_weights(model, file.tensors, CARD)
    return Checkpoint(folder, model.eval(), info)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Say which file asks for what cannot be built."""
    with located(file):
        try:
            yield
        except UnknownNameError as error:
            raise DataError(f"{error}; if it is a plugin's, load that first (--plugin MODULE)") from None


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint, or a run that has one."""
    return (path / WEIGHTS).exists() or (path / POINTERS).exists()


def find_checkpoint(path: Path) -> Path:
    """The folder of a checkpoint: the given one, or the best one of a run."""
    if (path / WEIGHTS).exists():
        return path
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; give a run or a checkpoint")
    state = read_run_state(path)
    if state is None:
        raise DataError(f"{path}: neither a checkpoint nor a run that has one: no {WEIGHTS}, no {POINTERS} in it")
    return path / state.best


def read_model_info(folder: Path) -> ModelInfo:
    """Read a checkpoint's ``config.json``."""
    file = folder / CARD
    found = read_json(file, _JSON_LIMIT)
    if found.get("format") != CHECKPOINT_FORMAT:
        shown = short(found.get("format", "no format at all"))
        raise DataError(f"{file}: not of this version ({shown}, not {CHECKPOINT_FORMAT!r})")
    with located(f"{file}: broken"):
        for key, kinds in _CARD_KINDS.items():
            if key not in found or type(found[key]) not in kinds:
                raise DataError(f"{key!r} is not there, or not as it was written")
        regions = _feature_source(found["regions"])
    return ModelInfo(
        model=model_from_dict(found["model"], str(file)),
        regions=regions,
        decode=found["decode"],
        step=found["step"],
        score=None if found["score"] is None else float(found["score"]),
        trained=found["trained"],
    )


def _feature_source(found: Mapping[str, Any]) -> FeatureSource:
    dimension, extractor, digest = (found.get(part.name) for part in fields(FeatureSource))
    if type(dimension) is not int or not 1 <= dimension <= MAX_DIMENSION or len(found) != len(fields(FeatureSource)):
        raise DataError(f"'regions' has a dimension from 1 to {MAX_DIMENSION}, an extractor and a hash of its weights")
    if not isinstance(extractor, str) or not isinstance(digest, str | None):
        raise DataError("the names in 'regions' are no texts")
    return FeatureSource(dimension, extractor, digest)


def require_same_regions(card: ModelInfo, store: FeatureStore, where: Path) -> None:
    """Refuse features of another network or dimension."""
    mine, theirs = card.regions, FeatureSource.of(store)
    if mine == theirs:
        return
    if mine.dimension != theirs.dimension:
        what = f"{theirs.dimension} features a region, the model {mine.dimension}"
    elif mine.weights_sha256 != theirs.weights_sha256:
        what = f"weights {_short(theirs.weights_sha256)}, the model was trained with {_short(mine.weights_sha256)}"
    else:
        what = f"features of {theirs.extractor!r}, the model was trained with those of {mine.extractor!r}"
    raise DataError(f"{store.path}: has {what} ({where}); extract the features with the same network")


def read_run_state(run: Path) -> RunState | None:
    """The checkpoints of a run; ``None`` before the first one."""
    file = run / POINTERS
    if not file.exists():
        return None
    found = read_json(file, _JSON_LIMIT)
    last, best, finished = (found.get(key) for key in ("last", "best", "finished"))
    names = [name for name in (last, best) if isinstance(name, str) and STEP_FOLDER.fullmatch(name)]
    if len(names) != 2 or not isinstance(finished, bool):
        raise DataError(f"{file}: broken; remove it to start again")
    return RunState(names[0], names[1], finished)


def _encoder_name(encoder: TextEncoder) -> str:
    kind = type(encoder.encoder) if isinstance(encoder, CachedEncoder) else type(encoder)
    return next(name for name, known in ENCODERS.items() if known is kind)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files under another name and rename it when all of it is on the disk."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir()
        for name, data in files.items():
            with (temporary / name).open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(temporary)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder.parent)


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}


def _short(digest: str | None) -> str:
    return "unknown" if digest is None else f"{digest[:12]}…"
