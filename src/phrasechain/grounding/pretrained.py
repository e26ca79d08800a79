"""Pretrained grounders: loading, saving and uploading a grounder's folder.

    model.safetensors, config.json, text.json    the checkpoint, in float16
    calibration.json                             from the chain's mass to a probability, for each decoder
    regions.safetensors, finder.safetensors      where they are not the embedded ones
    MODEL_CARD.md                                where there is one

A training run will do as well; its probabilities are not calibrated. Nothing in a folder is code.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from reprlib import repr as short
from typing import Any

import torch
from torch import Tensor

from phrasechain import __version__
from phrasechain.baselines.registry import BUILDERS
from phrasechain.core.errors import DataError, located, one_line
from phrasechain.core.files import json_bytes, read_bounded, reason, write_atomically
from phrasechain.core.json_lines import are_numbers, read_json
from phrasechain.model.checkpoint import CARD, TEXT, WEIGHTS, FeatureSource, ModelInfo, load_checkpoint, save_checkpoint
from phrasechain.model.confidence import EVIDENCE, EVIDENCE_WITH_PRESENCE, Calibration, Logistic
from phrasechain.model.decode import DECODERS
from phrasechain.model.system import GroundingSystem
from phrasechain.phrases.finder import PhraseFinder
from phrasechain.regions.extractor import RegionExtractor

CALIBRATION_FORMAT = "phrasechain calibration 1"
CALIBRATION_FILE, REGIONS_FILE, FINDER_FILE, MODEL_CARD_FILE = (
    "calibration.json",
    "regions.safetensors",
    "finder.safetensors",
    "MODEL_CARD.md",
)
FILES = (WEIGHTS, CARD, TEXT, CALIBRATION_FILE, REGIONS_FILE, FINDER_FILE, MODEL_CARD_FILE)
_TEXT_LIMIT = 1 << 20  # bytes of a calibration, and of a model card
_WEIGHT_LIMIT = 1_000_000  # of a calibration: the sum of larger ones may be no number
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Pretrained:
    """All parts of a grounder, ready to run."""

    name: str
    model: GroundingSystem
    card: ModelInfo
    extractor: RegionExtractor
    finder: PhraseFinder
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)  # by decoder
    regions_file: Path | None = None  # None: the embedded one
    finder_file: Path | None = None
    model_card: str | None = None
    runtime: str = "torch"  # of the region network

    def calibration(self, decode: str) -> Calibration:
        return self.calibrations.get(decode, Calibration())


def load_pretrained(
    name: str | Path | None = None,
    *,
    regions: str | Path | None = None,
    finder: str | Path | None = None,
    runtime: str = "torch",
    revision: str | None = None,
    cache_dir: str | Path | None = None,
) -> Pretrained:
    """The embedded grounder, that of a folder or a run, or one of the hub."""
    folder = find_folder(name, revision, cache_dir)
    checkpoint = load_checkpoint(folder, BUILDERS)
    home = checkpoint.folder
    regions_file, finder_file = (
        Path(given) if given is not None else home / own if (home / own).exists() else None
        for given, own in ((regions, REGIONS_FILE), (finder, FINDER_FILE))
    )
    extractor = RegionExtractor.from_pretrained(regions_file, runtime)
    require_these_regions(checkpoint.card, extractor, home)
    return Pretrained(
        name=f"phrasechain {__version__}" if name is None else str(name),
        model=checkpoint.model,
        card=checkpoint.card,
        extractor=extractor,
        finder=PhraseFinder.from_pretrained(finder_file),
        calibrations=read_calibrations(home / CALIBRATION_FILE),
        regions_file=regions_file,
        finder_file=finder_file,
        model_card=_read_text(home / MODEL_CARD_FILE),
        runtime=runtime,
    )


def find_folder(name: str | Path | None, revision: str | None = None, cache_dir: str | Path | None = None) -> Path:
    """Where a grounder lies; one of the hub is downloaded first."""
    if name is None:
        return _embedded("phrasechain.grounding", "embedded", "give the folder of a run or of a grounder")
    if Path(name).exists():
        return Path(name)
    if not _HUB_ID.fullmatch(str(name)):
        raise DataError(f"{name}: no such folder; give a run, a grounder's folder, or a hub id (OWNER/NAME)")
    return _download(str(name), revision, cache_dir)


def _embedded(package: str, name: str, otherwise: str) -> Path:
    path = Path(str(files(package) / name))
    if not path.exists():
        raise DataError(f"{path}: not in this installation; install phrasechain anew, or {otherwise}")
    return path


def _download(hub_id: str, revision: str | None, cache_dir: str | Path | None) -> Path:
    """The files of a grounder, and no others, from the hub or its cache."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            hub_id, revision=revision, cache_dir=cache_dir, allow_patterns=list(FILES), library_name="phrasechain"
        )
    except Exception as error:  # of the network, of the disk, of its own: there are many
        raise DataError(f"{hub_id}: no such folder, and the hub does not have it: {one_line(error)}") from None
    if not (Path(found) / WEIGHTS).exists():
        raise DataError(f"{hub_id}: on the hub, but not a grounder of phrasechain: it has no {WEIGHTS}")
    return Path(found)


def require_these_regions(card: ModelInfo, extractor: RegionExtractor, folder: Path) -> None:
    """Refuse a model that was trained on the regions of another network."""
    info = extractor.info
    if card.regions == FeatureSource(info.dimension, info.extractor, info.weights_sha256):
        return
    if card.regions.extractor != info.extractor:
        raise DataError(
            f"{folder}: trained on the regions of {card.regions.extractor!r}, which cannot be found in a new photo; "
            "train on a store that phrasechain extract made"
        )
    expected, found = (str(digest or "unknown")[:12] for digest in (card.regions.weights_sha256, info.weights_sha256))
    raise DataError(
        f"{folder}: trained on the regions of another network ({expected}…, not {found}…); put the file of that one "
        f"beside it as {REGIONS_FILE}, or train on a store of this one"
    )


# ---- calibration ----


def read_calibrations(file: Path) -> dict[str, Calibration]:
    """The calibration of each decoder; none where there is no file."""
    if not file.exists():
        return {}
    found = read_json(file, _TEXT_LIMIT)
    with located(f"{file}: broken"):
        decoders, evidence = found.get("decoders"), found.get("evidence")
        if found.get("format") != CALIBRATION_FORMAT or evidence not in (list(EVIDENCE), list(EVIDENCE_WITH_PRESENCE)):
            raise DataError(f"not of this version ({short(found.get('format'))}, not {CALIBRATION_FORMAT!r})")
        if not isinstance(decoders, dict):
            raise DataError("it has no decoders")
        return {name: _calibration(values, len(evidence)) for name, values in decoders.items() if name in DECODERS}


def _calibration(values: Any, count: int) -> Calibration:
    weights, constant = _logistic(values, count)
    if count == len(EVIDENCE):
        return Calibration(weights, constant)
    presence = values.get("presence")
    threshold: Any = presence.get("threshold") if isinstance(presence, dict) else None
    if not are_numbers([threshold]) or not 0 <= threshold <= 1:
        raise DataError(f"a threshold is a number from 0 to 1, not {short(threshold)}")
    return Calibration(weights, constant, Logistic(*_logistic(presence, count)), float(threshold))


def _logistic(values: Any, count: int) -> tuple[tuple[float, ...], float]:
    weights, constant = (values.get(key) if isinstance(values, dict) else None for key in ("weights", "constant"))
    numbers = [*weights, constant] if isinstance(weights, list) else []
    is_whole = len(numbers) == count + 1 and are_numbers(numbers)
    if not is_whole or not all(abs(value) <= _WEIGHT_LIMIT for value in numbers):
        raise DataError(f"a calibration has {count} weights and a constant, within ±{_WEIGHT_LIMIT:,}")
    *weights, constant = map(float, numbers)
    return tuple(weights), constant


def calibrations_json(calibrations: Mapping[str, Calibration], notes: Mapping[str, Any] | None = None) -> bytes:
    """The file of the calibrations, with notes on how they were found."""
    has_presence = any(len(each.weights) == len(EVIDENCE_WITH_PRESENCE) for each in calibrations.values())
    evidence = EVIDENCE_WITH_PRESENCE if has_presence else EVIDENCE
    decoders = {name: _calibration_dict(each, has_presence) for name, each in calibrations.items()}
    return json_bytes({"format": CALIBRATION_FORMAT, "evidence": evidence, "decoders": decoders, **(notes or {})})


def _calibration_dict(calibration: Calibration, has_presence: bool) -> dict[str, Any]:
    values: dict[str, Any] = {"weights": calibration.weights, "constant": calibration.constant}
    if has_presence:
        presence = {"weights": calibration.presence.weights, "constant": calibration.presence.constant}
        values["presence"] = presence | {"threshold": calibration.threshold}
    return values


# ---- writing ----


def require_free(folder: Path, force: bool) -> None:
    """Refuse a folder that has something in it, unless by ``force``."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: cannot be written: it is no folder")
    if not force and folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder}: is not empty; choose another folder, or replace its grounder with force")


def save_pretrained(
    folder: Path, grounder: Pretrained, notes: Mapping[str, Any] | None = None, *, force: bool = False
) -> None:
    """Write a grounder's folder; with ``force`` in place of another, whose other files are kept.

    All of it is written beside the folder first and takes its place by renaming: whatever interrupts it, a folder is
    never of two grounders.
    """
    require_free(folder, force)
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(temporary, grounder.model, compact(grounder.model), grounder.card)
        for name, data in _other_files(grounder, notes).items():
            write_atomically(temporary / name, data)
        _move(temporary, folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {reason(error)}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def compact(model: GroundingSystem) -> dict[str, Tensor]:
    """The weights in float16; buffers, and weights beyond its range, as they are."""
    buffers = {name for name, _ in model.named_buffers()}
    halves = {name: weight.half() for name, weight in model.state_dict().items() if name not in buffers}
    return model.state_dict() | {name: half for name, half in halves.items() if bool(torch.isfinite(half).all())}


def _other_files(grounder: Pretrained, notes: Mapping[str, Any] | None) -> dict[str, bytes]:
    found = {CALIBRATION_FILE: calibrations_json(grounder.calibrations, notes)}
    for name, package, file in (
        (REGIONS_FILE, "phrasechain.regions", grounder.regions_file),
        (FINDER_FILE, "phrasechain.phrases", grounder.finder_file),
    ):
        if file is not None and _digest(file) != _digest(Path(str(files(package) / name))):
            found[name] = file.read_bytes()
    if grounder.model_card is not None:
        found[MODEL_CARD_FILE] = grounder.model_card.encode()
    return found


def _digest(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None


def _move(new: Path, folder: Path) -> None:
    """Rename the new folder; one in its place is renamed first, and removed once its other files have moved over."""
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    if old.exists():
        for file in [file for file in old.iterdir() if file.name not in FILES]:
            file.rename(folder / file.name)
        shutil.rmtree(old)


def push_to_hub(
    grounder: Pretrained,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str = "Upload a grounder of phrasechain",
    token: str | bool | None = None,
    folder: Path,
) -> str:
    """Write the grounder to ``folder`` and upload it; the address of what was made."""
    from huggingface_hub import HfApi

    save_pretrained(folder, grounder)
    write_atomically(folder / "README.md", hub_page(grounder, repo_id).encode())
    api = HfApi(token=token, library_name="phrasechain")
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        done = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=commit_message, revision=revision)
    except Exception as error:  # of the network, of the rights, of the name
        raise DataError(f"{repo_id}: cannot be uploaded: {one_line(error)}") from None
    return str(done.commit_url)


def hub_page(grounder: Pretrained, repo_id: str) -> str:
    """What the hub shows: how to use it, and the model card."""
    use = f'from phrasechain import Grounder\n\ngrounder = Grounder.from_pretrained("{repo_id}")\n'
    use += 'grounder.ground("photo.jpg", "a dog chases a ball").draw().save("out.png")'
    head = "---\nlibrary_name: phrasechain\ntags:\n- phrase-grounding\n---\n"
    return f"{head}\n```python\n{use}\n```\n\n{grounder.model_card or ''}".rstrip() + "\n"


def _read_text(file: Path) -> str | None:
    return read_bounded(file, _TEXT_LIMIT).decode("utf-8", "replace") if file.exists() else None
