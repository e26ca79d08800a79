"""How long runs were trained, and how long they take for a caption of three phrases and 100 regions.

Training is the time from the first look at the data to the last checkpoint, with what is fitted before the first step.
It is noted in ``timing.json`` of the run's folder. Inference is scores and decoding, one caption at a time, with the
regions at hand: the processor's time in one thread, so that what else the computer does hardly matters, and all rows
take turns. It is noted in ``inference.json`` of the comparison's folder, and measured again where a row is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from statistics import median
from time import process_time
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
CAPTIONS, ROUNDS = 30, 4  # the first round is not counted
TRAINING, INFERENCE = "timing.json", "inference.json"
_LIMIT = 1 << 20


def note_training(run: Path, seconds: float) -> None:
    """Note how long a run was trained, if it was trained at one go; a resumed one took longer."""
    write_output(run / TRAINING, json_bytes({"training seconds": seconds}))


def training_seconds(run: Path) -> float:
    """How long a run was trained: at least the sum of its steps."""
    noted = _read(run / TRAINING).get("training seconds", 0)
    return max(float(noted), sum(line.get("seconds", 0) for line in read_metrics(run)))


def noted_times(out: Path) -> dict[str, dict[str, float]]:
    """Milliseconds by row and decoder that are noted in a folder."""
    return dict(_read(out / INFERENCE).get("milliseconds", {}))


def time_inference(
    out: Path,
    runs: Mapping[str, Path],
    methods: Mapping[str, Sequence[str]],
    examples: Iterable[Example],
    regions: RegionSource,
) -> dict[str, dict[str, float]]:
    """Milliseconds by row and decoder: noted in the folder ``out``, or measured now.

    ``runs`` are the folders of the rows, ``methods`` the decoders of each. There is nothing where no caption has three
    phrases.
    """
    if set(runs) <= set(noted := noted_times(out)):
        return noted
    batches = list(islice(three_phrase_batches(examples, regions), CAPTIONS))
    models = {row: load_checkpoint(run, BUILDERS).model.eval() for row, run in runs.items()} if batches else {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = milliseconds(models, methods, batches)
    torch.set_num_threads(threads)
    sizes = {"phrases": PHRASES, "regions": REGIONS, "captions": len(batches)}
    write_output(out / INFERENCE, json_bytes({**sizes, "milliseconds": times}))
    return times


@torch.inference_mode()
def milliseconds(
    models: Mapping[str, GroundingSystem], methods: Mapping[str, Sequence[str]], batches: Sequence[Batch]
) -> dict[str, dict[str, float]]:
    """The median over captions of the shortest time of some rounds, by row and decoder."""
    pairs = [(row, method) for row in models for method in methods[row]]
    least = {pair: [inf] * len(batches) for pair in pairs}
    for number in range(ROUNDS):
        for place, batch in enumerate(batches):
            for row, method in pairs:
                start = process_time()
                models[row].decode(models[row](batch), batch, method)
                took = 1000 * (process_time() - start)
                if number:
                    least[row, method][place] = min(least[row, method][place], took)
    return {row: {method: median(least[row, method]) for method in methods[row]} for row in models}


def _read(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    with located(str(file)):
        found = parse_json(read_bounded(file, _LIMIT))
        if not isinstance(found, dict):
            raise DataError("no times; remove the file")
    return found


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
