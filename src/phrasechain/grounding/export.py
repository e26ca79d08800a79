"""``phrasechain export``: from a training run to a grounder's folder, its probabilities calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from phrasechain.baselines.registry import BUILDERS
from phrasechain.core.errors import require_name
from phrasechain.core.terminal import print_table
from phrasechain.data.dataset import open_dataset
from phrasechain.grounding.calibrate import Calibrated, calibrate, collect
from phrasechain.grounding.pretrained import Pretrained, compact, require_free, require_these_regions, save_pretrained
from phrasechain.model.checkpoint import load_checkpoint, require_same_regions
from phrasechain.model.decode import DECODERS
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
    force: bool = False,
) -> dict[str, Calibrated]:
    """Write the best model of a run as a grounder, in float16; the figures of each decoder.

    Probabilities are calibrated on caption 0 of ``split``, which the run must not have been trained on. The grounder's
    default decoder is ``decode``, or else the most accurate one there. Only with ``force`` is a grounder replaced.
    """
    require_free(out, force)
    if decode is not None:
        require_name("decoder", decode, DECODERS)
    checkpoint, store = load_checkpoint(run, BUILDERS), FeatureStore.open(features)
    require_same_regions(checkpoint.card, store, checkpoint.folder)
    extractor = RegionExtractor.from_pretrained(regions)
    require_these_regions(checkpoint.card, extractor, checkpoint.folder)
    model, examples = checkpoint.model, open_dataset(data).examples(split)
    model.load_state_dict(compact(model))  # what is calibrated is what is written
    real, absent = (collect(model, examples, store, absent=each) for each in (False, True))
    found = {method: calibrate(real[method], absent[method]) for method in DECODERS}
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


def _without_paths(trained: Mapping[str, Any] | None) -> dict[str, Any]:
    """The values of the run, with the names of its files but not the folders of the machine that it ran on."""
    values = dict(trained or {})
    if isinstance(text := values.get("text"), dict):
        names = {key: Path(text[key]).name for key in _PATHS if isinstance(text.get(key), str)}
        values["text"] = text | names
    return values


def _notes(found: dict[str, Calibrated], split: str) -> dict[str, object]:
    figures = {
        method: {"error": round(each.error, 4), "apart": round(each.auroc, 4), "accuracy": round(each.accuracy, 4)}
        for method, each in found.items()
    }
    return {"measured": {"split": split, "phrases": next(iter(found.values())).phrases, **figures}}


def print_export(found: dict[str, Calibrated], console: Console) -> None:
    """The figures of each decoder on the split that it was calibrated on."""
    table = Table(title=f"caption 0, {next(iter(found.values())).phrases:,} phrases")
    for name in ("decode", "accuracy, %", "calibration error", "AUROC, other captions"):
        table.add_column(name, justify="left" if name == "decode" else "right")
    for method, each in found.items():
        table.add_row(method, f"{100 * each.accuracy:.2f}", f"{each.error:.3f}", f"{each.auroc:.3f}")
    print_table(table, console)
