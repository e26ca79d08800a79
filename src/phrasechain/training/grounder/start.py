"""What the training of a grounder can start from: a grounder that was trained before, which is fine-tuned."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

from phrasechain.baselines.registry import BUILDERS
from phrasechain.core.errors import DataError
from phrasechain.core.settings import Values, flatten, make_settings, upgraded, with_values
from phrasechain.grounding.pretrained import find_folder
from phrasechain.model.checkpoint import WEIGHTS, find_checkpoint, load_checkpoint, read_model_info
from phrasechain.model.config import Config
from phrasechain.model.system import GroundingSystem
from phrasechain.store.reader import FeatureStore

EMBEDDED = "embedded"
#: Of training, what a few hundred images want otherwise than many thousand.
FINE_TUNE: Values = {"train.rate": 3e-4, "train.epochs": 5.0, "train.steps": 0, "train.score_every": 0}
_SHAPE = ("model", "text")  # the sections that a grounder keeps


def start_folder(name: str) -> Path:
    """The checkpoint of a start: ``embedded``, or the folder of a grounder or of a run."""
    return find_checkpoint(find_folder(None if name == EMBEDDED else Path(name)))


def start_config(folder: Path, file: Path | None = None, texts: Iterable[str] = ()) -> Config:
    """The config that a grounder was trained with, with the values of ``FINE_TUNE``, then those of a file and texts.

    Its model and its text encoder stay as they are: another value there is refused. What it learnt from, and for how
    long, is not taken over.
    """
    info = read_model_info(folder)
    trained = upgraded(Config(), dict(info.trained or {}), str(folder))
    known: dict[str, object] = {name: trained[name] for name in ("text", "loss", "train", "decode") if name in trained}
    if "data" in trained:
        known["data"] = {"unboxed": trained["data"]["unboxed"]}
    config = with_values(Config(), flatten(Config(), known, str(folder)), str(folder))
    own = replace(with_values(config, FINE_TUNE), model=info.model)
    wanted = make_settings(own, file, texts)
    for section in _SHAPE:
        for part in fields(getattr(own, section)):
            has, asked = (getattr(getattr(each, section), part.name) for each in (own, wanted))
            if has != asked:
                raise DataError(
                    f"{section}.{part.name}: the grounder to start from has {has!r}, not {asked!r}; leave it out"
                )
    return wanted


def load_start(folder: Path, store: FeatureStore) -> GroundingSystem:
    """The model of a grounder, for features of its dimension from the same kind of network, fine-tuned or not."""
    checkpoint = load_checkpoint(folder, BUILDERS)
    regions, info = checkpoint.card.regions, store.info
    if (regions.dimension, regions.extractor) != (info.dimension, info.extractor):
        raise DataError(
            f"{store.path}: has {info.dimension} features a region by {info.extractor!r}, the grounder to start from "
            f"needs {regions.dimension} by {regions.extractor!r}; extract the features with the same network"
        )
    return checkpoint.model


def start_digest(folder: Path) -> str:
    """A hash of the weights to start from."""
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
