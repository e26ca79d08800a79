"""Finding the logistic that makes a probability of what a model says about its boxes, on images it has not learnt from.

One number has to serve two ends: of the phrases that it calls 80 % sure, four in five should be right, and where a
caption is about another image it should be low. So the weights are found on phrases of both kinds, right or wrong, and
on captions of other images, whose phrases are all wrong; scale and constant are then found again on the real ones
alone. The more the absent phrases weigh, the better they are told apart and the worse right is told from wrong: the
least weight is taken that tells captions apart well enough.

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
from phrasechain.model.confidence import Calibration, chosen_evidence
from phrasechain.model.decode import DECODERS, decode
from phrasechain.model.model import GroundingModel
from phrasechain.model.targets import merged_boxes

APART = 0.78  # the area under the curve of real against absent captions that is well enough
ABSENT_WEIGHTS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)  # of an absent phrase beside a real one
BINS = 10
_AT_ONCE = 8  # captions that go through the model together
_RIDGE = 1e-3


@dataclass(frozen=True, slots=True)
class Collected:
    """What a model says about the phrases of captions."""

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
    apart: float  # area under the curve of captions: theirs against another image's
    accuracy: float
    phrases: int


def collect(
    model: GroundingModel, examples: Sequence[Example], regions: RegionSource, regime: str = "all", absent: bool = False
) -> dict[str, Collected]:
    """What each way of decoding says about caption 0 of the examples; with ``absent``, each on another's image."""
    parts: dict[str, list[Collected]] = {how: [] for how in DECODERS}
    items = [item for item in _captions(examples, absent) if chain_phrases(item[1], regime)]
    for start in range(0, len(items), _AT_ONCE):
        for how, part in _collect_few(model, items[start : start + _AT_ONCE], regions, regime).items():
            parts[how].append(replace(part, caption=part.caption + start))
    if not items:
        raise DataError("there is no caption with a phrase to calibrate on")
    return {how: _joined(each) for how, each in parts.items()}


def _captions(examples: Sequence[Example], absent: bool) -> Iterator[tuple[Example, Caption]]:
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).tolist()
    other = dict(zip(order, order[1:] + order[:1], strict=True))
    for place, example in enumerate(examples):
        caption = examples[other[place] if absent else place].captions[0]
        yield replace(example, captions=(caption,)), caption


@torch.inference_mode()
def _collect_few(
    model: GroundingModel, items: Sequence[tuple[Example, Caption]], regions: RegionSource, regime: str
) -> dict[str, Collected]:
    batch, phrases = collate_annotated(items, regions, regime)
    has_box, gold = torch.tensor([bool(phrase.boxes) for phrase in phrases]), merged_boxes(phrases)
    scores = model(batch)
    found = {}
    for how in DECODERS:
        decoded = decode(scores, batch, how)
        right = iou_xyxy(decoded.boxes, gold) >= RIGHT
        found[how] = Collected(chosen_evidence(scores, decoded), batch.phrase_caption, has_box, right)
    return found


def _joined(parts: Sequence[Collected]) -> Collected:
    columns = ([getattr(part, name) for part in parts] for name in Collected.__slots__)
    return Collected(*map(torch.cat, columns))


def calibrate(real: Collected, absent: Collected) -> Calibrated:
    """The calibration of one way of decoding, with the least weight of absent phrases that tells captions apart."""
    found = [measure(_fit(real, absent, weight), real, absent) for weight in ABSENT_WEIGHTS]
    return next((each for each in found if each.apart >= APART), found[-1])


def measure(calibration: Calibration, real: Collected, absent: Collected) -> Calibrated:
    """How good a calibration is on phrases that have a box, and at telling captions from those of other images."""
    mine, others = calibration(real.evidence), calibration(absent.evidence)
    right = real.right[real.has_box]
    return Calibrated(
        calibration,
        error=calibration_error(mine[real.has_box], right),
        apart=area_under_curve(real.mean_by_caption(mine), absent.mean_by_caption(others)),
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


def fit_logistic(rows: Tensor, targets: Tensor, counts: Tensor, steps: int = 50) -> tuple[Tensor, Tensor]:
    """Slopes (F,) and the constant of the logistic regression of targets (N,), which count (N,) times, on rows (N, F).

    By Newton's method on standardised rows, with a small penalty that keeps weights finite where all is told apart.
    """
    mean, spread = rows.mean(0), rows.std(0).clamp(min=1e-6)
    inputs = torch.cat([(rows - mean) / spread, torch.ones_like(rows[:, :1])], 1)  # (N, F + 1)
    penalty = _RIDGE * counts.sum() * torch.eye(inputs.shape[1], dtype=rows.dtype)
    penalty[-1, -1] = 1e-9 * counts.sum()
    weights = rows.new_zeros(inputs.shape[1])
    for _ in range(steps):
        p = (inputs @ weights).sigmoid()
        slope = inputs.T @ (counts * (p - targets)) + penalty @ weights
        bend = (inputs * (counts * p * (1 - p))[:, None]).T @ inputs + penalty
        weights = weights - torch.linalg.solve(bend, slope)
    slopes = weights[:-1] / spread
    return slopes, weights[-1] - slopes @ mean


def bins(probability: Tensor, right: Tensor) -> list[tuple[int, float, float]]:
    """Of each of ten equal bins: how many phrases, their mean probability, and how many of them are right."""
    place = (probability * BINS).long().clamp(0, BINS - 1)
    chosen = [place == number for number in range(BINS)]
    return [
        (int(each.sum()), float(probability[each].mean()), float(right[each].double().mean()))
        if each.any()
        else (0, 0, 0)
        for each in chosen
    ]


def calibration_error(probability: Tensor, right: Tensor) -> float:
    """The mean over phrases of how far the share of right ones in their bin is from the mean probability there."""
    return sum(count * abs(mean - share) for count, mean, share in bins(probability, right)) / len(right)


def area_under_curve(positive: Tensor, negative: Tensor) -> float:
    """How often one of the positive is above one of the negative; a tie is half.

    >>> area_under_curve(torch.tensor([3.0, 1.0]), torch.tensor([0.0, 1.0]))
    0.875
    """
    above = (positive[:, None] > negative).double() + 0.5 * (positive[:, None] == negative).double()
    return float(above.mean())
