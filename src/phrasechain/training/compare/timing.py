"""How long a run was trained, and how long it takes for a caption of three phrases and 100 regions.

Both are noted in ``timing.json`` of the run's folder. Training is the time from the first look at the data to the last
checkpoint: what is fitted before the first step counts. Inference is scores and decoding on the CPU, one caption at a
time, with the regions at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from phrasechain.baselines.registry import BUILDERS
from phrasechain.core.errors import DataError, located
from phrasechain.core.files import json_bytes, read_bounded, write_output
from phrasechain.core.json_lines import parse_json
from phrasechain.core.schema import Example, Regions
from phrasechain.data.regimes import chain_phrases
from phrasechain.model.batch import Batch, GroundQuery, RegionSource, collate
from phrasechain.model.checkpoint import load_checkpoint
from phrasechain.model.system import GroundingSystem
from phrasechain.training.log import read_metrics

PHRASES, REGIONS = 3, 100
CAPTIONS, WARM_UP = 30, 5  # that are timed, after some that are not
FILE = "timing.json"
_LIMIT = 1 << 16


def note_training(run: Path, seconds: float) -> None:
    """Note how long a run was trained, if it was trained at one go; a resumed one took longer."""
    _note(run, {"training seconds": seconds})


def training_seconds(run: Path) -> float:
    """How long a run was trained: at least the sum of its steps."""
    return max(float(_noted(run).get("training seconds", 0)), sum(line.get("seconds", 0) for line in read_metrics(run)))


def time_inference(run: Path, examples: Iterable[Example], regions: RegionSource, methods: Sequence[str]) -> None:
    """Time a run's best checkpoint by these decoders and note it, if it is not noted yet."""
    if set(methods) <= set(inference_milliseconds(run)):
        return
    model = load_checkpoint(run, BUILDERS).model.eval()
    batches = list(islice(three_phrase_batches(examples, regions), CAPTIONS + WARM_UP))
    found = {"phrases": PHRASES, "regions": REGIONS, "captions": len(batches), "threads": torch.get_num_threads()}
    times = {method: milliseconds(model, batches, method) if batches else None for method in methods}
    _note(run, {"inference": {**found, "milliseconds": times}})


def inference_milliseconds(run: Path) -> dict[str, float | None]:
    """By decoder, where it was measured; ``None`` where no caption has three phrases."""
    return dict(_noted(run).get("inference", {}).get("milliseconds", {}))


def _noted(run: Path) -> dict[str, Any]:
    file = run / FILE
    if not file.exists():
        return {}
    with located(str(file)):
        found = parse_json(read_bounded(file, _LIMIT))
        if not isinstance(found, dict):
            raise DataError("no times of a run; remove the file")
    return found


def _note(run: Path, values: dict[str, Any]) -> None:
    write_output(run / FILE, json_bytes(_noted(run) | values))


@torch.inference_mode()
def milliseconds(model: GroundingSystem, batches: Sequence[Batch], method: str) -> float:
    """The median time of a batch, the first few apart."""
    times = []
    for batch in batches:
        start = perf_counter()
        model.decode(model(batch), batch, method)
        times.append(1000 * (perf_counter() - start))
    return median(times[WARM_UP:] or times)


def three_phrase_batches(examples: Iterable[Example], regions: RegionSource) -> Iterator[Batch]:
    """Captions with three phrases or more, the first three of them, each with exactly 100 regions of its image.

    The regions of an image with fewer are repeated.
    """
    for example in examples:
        for caption in example.captions:
            phrases = chain_phrases(caption, "all")[:PHRASES]
            if len(phrases) == PHRASES:
                yield collate([GroundQuery(_exactly(regions[example.image]), caption.tokens, phrases, caption.index)])


def _exactly(regions: Regions) -> Regions:
    chosen = np.arange(REGIONS) % len(regions.boxes)
    return replace(regions, boxes=regions.boxes[chosen], features=regions.features[chosen], objectness=None, names=None)
