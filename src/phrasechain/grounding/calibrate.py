"""Fitting the calibration of a model's probabilities on images that it was not trained on.

One number has two tasks: of the phrases with 80 % four in five should be right, and for a caption of another image it
should be low. So the logistic is fitted on captions with their own images, where phrases are right or wrong, and with
other images, where all are wrong; scale and constant are then fitted again on the own images alone. The more the absent
phrases weigh, the better they are separated from the real ones and the worse right is separated from wrong: the
smallest weight is taken whose AUROC suffices.

Axes: N phrases, F kinds of evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Caption, Example
from phrasechain.data.regimes import chain_phrases
from phrasechain.evaluation.metrics import RIGHT
from phrasechain.model.batch import RegionSource, collate_annotated
from phrasechain.model.confidence import Calibration, auroc, calibration_error, chosen_evidence, fit_logistic
from phrasechain.model.decode import DECODERS
from phrasechain.model.system import GroundingSystem
from phrasechain.model.targets import merged_boxes

AUROC = 0.78  # of real against absent captions: enough
ABSENT_WEIGHTS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)  # of an absent phrase; a real one has 1
_AT_ONCE = 8  # captions that go through the model together


@dataclass(frozen=True, slots=True)
class Collected:
    """The evidence for a model's boxes, and which of them are right."""

    evidence: Tensor  # (N, F) float64
    caption: Tensor  # (N,) int64
    has_box: Tensor  # (N,) bool
    right: Tensor  # (N,) bool: IoU ≥ 0.5 with the merged box

    def mean_by_caption(self, probability: Tensor) -> Tensor:
        """The mean of (N,) over the phrases of each caption."""
        count = self.caption.bincount()
        total = probability.new_zeros(len(count)).index_add(0, self.caption, probability)
        return total[count > 0] / count[count > 0]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibration and how good it is where it was measured."""

    calibration: Calibration
    error: float  # expected calibration error
    auroc: float  # of captions: on their own image against another
    accuracy: float
    phrases: int


def collect(
    model: GroundingSystem,
    examples: Sequence[Example],
    regions: RegionSource,
    regime: str = "all",
    absent: bool = False,
) -> dict[str, Collected]:
    """The evidence of each decoder for caption 0 of the examples; with ``absent``, each on another's image."""
    parts: dict[str, list[Collected]] = {method: [] for method in DECODERS}
    items = [item for item in _captions(examples, absent) if chain_phrases(item[1], regime)]
    for start in range(0, len(items), _AT_ONCE):
        for method, part in _collect_few(model, items[start : start + _AT_ONCE], regions, regime).items():
            parts[method].append(replace(part, caption=part.caption + start))
    if not items:
        raise DataError("there is no caption with a phrase to calibrate on")
    return {method: _joined(each) for method, each in parts.items()}


def _captions(examples: Sequence[Example], absent: bool) -> Iterator[tuple[Example, Caption]]:
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).tolist()
    other = dict(zip(order, order[1:] + order[:1], strict=True))
    for place, example in enumerate(examples):
        caption = examples[other[place] if absent else place].captions[0]
        yield replace(example, captions=(caption,)), caption


@torch.inference_mode()
def _collect_few(
    model: GroundingSystem, items: Sequence[tuple[Example, Caption]], regions: RegionSource, regime: str
) -> dict[str, Collected]:
    batch, phrases = collate_annotated(items, regions, regime)
    has_box, gold = torch.tensor([bool(phrase.boxes) for phrase in phrases]), merged_boxes(phrases)
    scores = model(batch)
    found = {}
    for method in DECODERS:
        decoded = model.decode(scores, batch, method)
        right = iou_xyxy(decoded.boxes, gold) >= RIGHT
        found[method] = Collected(chosen_evidence(scores, decoded), batch.phrase_caption, has_box, right)
    return found


def _joined(parts: Sequence[Collected]) -> Collected:
    columns = ([getattr(part, name) for part in parts] for name in Collected.__slots__)
    return Collected(*map(torch.cat, columns))


def calibrate(real: Collected, absent: Collected) -> Calibrated:
    """The calibration of one decoder, with the smallest weight of absent phrases whose AUROC suffices."""
    found = [measure(_fit(real, absent, weight), real, absent) for weight in ABSENT_WEIGHTS]
    return next((each for each in found if each.auroc >= AUROC), found[-1])


def measure(calibration: Calibration, real: Collected, absent: Collected) -> Calibrated:
    """The calibration error on phrases with a box, and the AUROC of captions against those of other images."""
    own, others = calibration(real.evidence), calibration(absent.evidence)
    right = real.right[real.has_box]
    return Calibrated(
        calibration,
        error=calibration_error(own[real.has_box], right),
        auroc=auroc(real.mean_by_caption(own), absent.mean_by_caption(others)),
        accuracy=float(right.double().mean()),
        phrases=len(right),
    )


def _fit(real: Collected, absent: Collected, weight: float) -> Calibration:
    evidence, right = real.evidence[real.has_box], real.right[real.has_box].double()
    rows = torch.cat([evidence, absent.evidence])
    targets = torch.cat([right, right.new_zeros(len(absent.evidence))])
    counts = torch.cat([torch.ones_like(right), right.new_full((len(absent.evidence),), weight)])
    slopes, _ = fit_logistic(rows, targets, counts)
    scale, constant = fit_logistic((evidence @ slopes)[:, None], right, torch.ones_like(right))
    return Calibration(tuple((slopes * scale).tolist()), float(constant))
