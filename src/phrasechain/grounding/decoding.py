"""From queries to the ranked boxes of their phrases: scored once, decoded jointly or each phrase alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from phrasechain.core.errors import DataError
from phrasechain.core.parallel import one_thread
from phrasechain.model.batch import Batch, GroundQuery, collate
from phrasechain.model.confidence import Calibration, RankedBoxes, rank_boxes
from phrasechain.model.decode import Decoded, decode_independently
from phrasechain.model.scores import Scores
from phrasechain.model.system import GroundingSystem

#: Sees what the boxes of a batch are made from.
Look = Callable[[Scores, Batch, Decoded], None]
_MOST_STEPS = 512  # B·T of the chains that are computed at once: a long caption would pad the others


class DecodeOptions(NamedTuple):
    """How captions are grounded."""

    decode: str
    top_k: int
    least: float  # presence of a phrase that is found
    calibration: Calibration


def score_queries(
    model: GroundingSystem, queries: Iterable[GroundQuery], device: torch.device, name: str
) -> Iterator[tuple[Batch, Scores]]:
    """The queries in batches, with the model's scores; ``name`` is the model's, for messages."""
    for group in _groups(queries):
        with _exactly(device):
            batch = collate(group).to(device)
            scores = model(batch)
            if not bool(scores.emissions.isfinite().all()):
                raise DataError(f"{name}: its scores are not finite; its weights are broken")
        yield batch, scores


def decode_jointly(
    model: GroundingSystem, batch: Batch, scores: Scores, options: DecodeOptions, look: Look | None = None
) -> list[RankedBoxes]:
    """The boxes of all phrases of a batch, one after the other."""
    with _exactly(scores.emissions.device):
        decoded = model.decode(scores, batch, options.decode)
        if look is not None:
            look(scores, batch, decoded)
        return rank_boxes(scores, decoded, options.calibration, options.top_k)


def decode_alone(batch: Batch, scores: Scores, method: str, options: DecodeOptions) -> list[RankedBoxes]:
    """The same with each phrase by itself, by the rule of the decoder ``method``."""
    with _exactly(scores.emissions.device):
        decoded = decode_independently(scores, batch, method)
        return rank_boxes(scores, decoded, options.calibration, options.top_k)


@contextmanager
def _exactly(device: torch.device) -> Iterator[None]:
    """Without gradients, without a caller's autocast, and on one thread, since the operators are small."""
    with torch.inference_mode(), one_thread(), torch.autocast(device.type, enabled=False):
        yield


def _groups(queries: Iterable[GroundQuery]) -> Iterator[list[GroundQuery]]:
    """Captions that go through the model together, in their order."""
    group: list[GroundQuery] = []
    for query in queries:
        longest = max(len(each.phrases) for each in (*group, query))
        if group and longest * (len(group) + 1) > _MOST_STEPS:
            yield group
            group = []
        group.append(query)
    if group:
        yield group
