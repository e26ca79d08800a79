"""``phrasechain export``: from a training run to a grounder's folder, its probabilities calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from phrasechain.baselines.registry import BUILDERS
from phrasechain.core.errors import DataError, require_name
from phrasechain.core.schema import Example
from phrasechain.core.terminal import print_table
from phrasechain.data.dataset import open_dataset
from phrasechain.evaluation.coverage import with_regions
from phrasechain.grounding.calibrate import Calibrated, calibrate, calibrate_presence, collect, measure
from phrasechain.grounding.pretrained import (
    CALIBRATION_FILE,
    Pretrained,
    compact,
    read_calibrations,
    require_free,
    require_these_regions,
    save_pretrained,
)
from phrasechain.model.checkpoint import load_checkpoint, require_same_regions
from phrasechain.model.confidence import EVIDENCE, Calibration
from phrasechain.model.decode import DECODERS
from phrasechain.model.system import GroundingSystem
from phrasechain.phrases.finder import PhraseFinder
from phrasechain.regions.extractor import RegionExtractor
from phrasechain.store.reader import FeatureStore

_PATHS = ("vectors", "options", "weights", "cache")  # values of a run's text that are files


def export(
    run: Path,
    data: Path,
    features: Path,
    out: Path,
    *,
    split: str = "dev",
    decode: str | None = None,
    regions: Path | None = None,
    finder: Path | None = None,
    calibration: Path | None = None,
    missing: str = "refuse",
    force: bool = False,
) -> dict[str, Calibrated]:
    """Write the best model of a run as a grounder, in float16; the figures of each decoder.

    Probabilities are calibrated on caption 0 of ``split``, which the run must not have been trained on. The grounder's
    default decoder is ``decode``, or else the most accurate one there. ``calibration`` is a grounder's folder whose
    calibration is taken over, for a run that learnt from all images that there are: it is only measured on ``split``.
    Only with ``force`` is a grounder replaced.
    """
    require_free(out, force)
    if decode is not None:
        require_name("decoder", decode, DECODERS)
    known = None if calibration is None else _calibrations_of(calibration)
    checkpoint, store = load_checkpoint(run, BUILDERS), FeatureStore.open(features)
    require_same_regions(checkpoint.card, store, checkpoint.folder)
    extractor = RegionExtractor.from_pretrained(regions)
    require_these_regions(checkpoint.card, extractor, checkpoint.folder)
    model, examples = checkpoint.model, with_regions(open_dataset(data).examples(split), store, missing)
    model.load_state_dict(compact(model))  # what is calibrated is what is written
    found = _calibrated(model, examples, store) if known is None else _measured(known, model, examples, store)
    chosen = decode or max(found, key=lambda method: found[method].accuracy)
    parts = Pretrained(
        name=str(out),
        model=model,
        card=replace(checkpoint.card, decode=chosen, trained=_without_paths(checkpoint.card.trained)),
        extractor=extractor,
        finder=PhraseFinder.from_pretrained(finder),
        calibrations={method: each.calibration for method, each in found.items()},
        regions_file=regions,
        finder_file=finder,
    )
    save_pretrained(out, parts, _notes(found, split), force=force)
    return found


def _calibrations_of(folder: Path) -> dict[str, Calibration]:
    """The calibrations of a grounder, one for each decoder."""
    found = read_calibrations(folder / CALIBRATION_FILE)
    if missing := [method for method in DECODERS if method not in found]:
        raise DataError(f"{folder}: has no calibration of {missing[0]}; give the folder of an exported grounder")
    return found


def _calibrated(model: GroundingSystem, examples: Sequence[Example], store: FeatureStore) -> dict[str, Calibrated]:
    """The calibration of each decoder."""
    real, absent = (collect(model, examples, store, absent=each) for each in (False, True))
    if next(iter(real.values())).evidence.shape[1] == len(EVIDENCE):
        return {method: calibrate(real[method], absent[method]) for method in DECODERS}
    alone = [collect(model, examples, store, absent=each, alone=True) for each in (False, True)]
    return {
        method: calibrate_presence(real[method], absent[method], *(each[method] for each in alone))
        for method in DECODERS
    }


def _measured(
    known: Mapping[str, Calibration], model: GroundingSystem, examples: Sequence[Example], store: FeatureStore
) -> dict[str, Calibrated]:
    """How good given calibrations are."""
    real, absent = (collect(model, examples, store, absent=each) for each in (False, True))
    return {method: measure(known[method], real[method], absent[method]) for method in DECODERS}


def _without_paths(trained: Mapping[str, Any] | None) -> dict[str, Any]:
    """The values of the run, with the names of its files but not the folders of the machine that it ran on."""
    values = dict(trained or {})
    if isinstance(text := values.get("text"), dict):
        names = {key: Path(text[key]).name for key in _PATHS if isinstance(text.get(key), str)}
        values["text"] = text | names
    return values


def _notes(found: dict[str, Calibrated], split: str) -> dict[str, object]:
    figures: dict[str, dict[str, object]] = {
        method: {"error": round(each.error, 4), "apart": round(each.auroc, 4), "accuracy": round(each.accuracy, 4)}
        for method, each in found.items()
    }
    for method, each in found.items():
        if each.presence_auroc is not None:
            figures[method]["presence"] = [round(value, 4) for value in each.presence_auroc]
    return {"measured": {"split": split, "phrases": next(iter(found.values())).phrases, **figures}}


def print_export(found: dict[str, Calibrated], console: Console, split: str) -> None:
    """The figures of each decoder on a split."""
    table = Table(title=f"{split}, caption 0, {next(iter(found.values())).phrases:,} phrases")
    names = ["decode", "accuracy, %", "calibration error", "AUROC, other captions"]
    has_presence = any(each.presence_auroc for each in found.values())
    for name in (*names, *(("AUROC of presence", "alone") if has_presence else ())):
        table.add_column(name, justify="left" if name == "decode" else "right")
    for method, each in found.items():
        presence = (f"{value:.3f}" for value in each.presence_auroc or ())
        table.add_row(method, f"{100 * each.accuracy:.2f}", f"{each.error:.3f}", f"{each.auroc:.3f}", *presence)
    print_table(table, console)
