"""Fitting the calibration of a model's probabilities on images that it was not trained on.

One number has two tasks: of the phrases with 80 % four in five should be right, and for a caption of another image it
should be low. So the logistic is fitted on captions with their own images, where phrases are right or wrong, and with
other images, where all are wrong.

- A model with the label ∅ knows which is which: a tenth of what its probability is fitted on is absent phrases. Its
  presence is fitted on phrases in captions and alone, a fifth of them absent, and the threshold is the presence that
  nine in ten present phrases reach.
- For other models scale and constant are fitted again on the own images alone. The more the absent phrases weigh, the
  better they are separated from the real ones and the worse right is separated from wrong: the smallest weight is taken
  whose AUROC suffices.

Axes: N phrases, F kinds of evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Example
from phrasechain.data.absent import PhotoWords, as_foreign
from phrasechain.data.absent import alone as alone_caption
from phrasechain.data.regimes import chain_phrases, is_scored
from phrasechain.evaluation.metrics import RIGHT
from phrasechain.model.batch import Item, RegionSource, collate_annotated
from phrasechain.model.confidence import Calibration, Logistic, auroc, calibration_error, chosen_evidence, fit_logistic
from phrasechain.model.decode import DECODERS
from phrasechain.model.system import GroundingSystem
from phrasechain.model.targets import merged_boxes

AUROC = 0.78  # of real against absent captions: enough
ABSENT_WEIGHTS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)  # of an absent phrase; a real one has 1
ABSENT_SHARE = 0.1  # of what a probability is fitted on, with the label ∅
PRESENCE_ABSENT_SHARE = 0.2  # of what a presence is fitted on
FOUND_SHARE = 0.9  # of the present phrases whose presence reaches the threshold
_AT_ONCE = 8  # captions that go through the model together


@dataclass(frozen=True, slots=True)
class Collected:
    """The evidence for a model's boxes, and which of them are right."""

    evidence: Tensor  # (N, F) float64
    caption: Tensor  # (N,) int64
    has_box: Tensor  # (N,) bool
    right: Tensor  # (N,) bool: IoU ≥ 0.5 with the merged box
    absent: Tensor  # (N,) bool: the photo very probably does not show it

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
    presence_auroc: tuple[float, float] | None = None  # of phrases: in captions, and alone; with the label ∅


def collect(
    model: GroundingSystem,
    examples: Sequence[Example],
    regions: RegionSource,
    regime: str = "all",
    absent: bool = False,
    alone: bool = False,
) -> dict[str, Collected]:
    """The evidence of each decoder for caption 0 of the examples, or with ``alone`` for each of its phrases by itself.

    With ``absent`` each caption is asked of another's image.
    """
    parts: dict[str, list[Collected]] = {method: [] for method in DECODERS}
    captions = _captions(examples, absent)
    items = [item for item in (_alone(captions) if alone else captions) if chain_phrases(item[1], regime)]
    for start in range(0, len(items), _AT_ONCE):
        for method, part in _collect_few(model, items[start : start + _AT_ONCE], regions, regime).items():
            parts[method].append(replace(part, caption=part.caption + start))
    if not items:
        raise DataError("there is no caption with a phrase to calibrate on")
    return {method: _joined(each) for method, each in parts.items()}


def _captions(examples: Sequence[Example], absent: bool) -> Iterator[Item]:
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0)).tolist()
    other = dict(zip(order, order[1:] + order[:1], strict=True))
    for place, example in enumerate(examples):
        caption = examples[other[place]].captions[0] if absent else example.captions[0]
        caption = as_foreign(caption, PhotoWords.of(example)) if absent else caption
        yield replace(example, captions=(caption,)), caption


def _alone(captions: Iterable[Item]) -> Iterator[Item]:
    """The phrases with a box, and those that are absent, each as a caption."""
    for example, caption in captions:
        for phrase in caption.phrases:
            if is_scored(phrase) or phrase.is_absent:
                yield example, alone_caption(caption, phrase)


@torch.inference_mode()
def _collect_few(
    model: GroundingSystem, items: Sequence[Item], regions: RegionSource, regime: str
) -> dict[str, Collected]:
    batch, phrases = collate_annotated(items, regions, regime)
    has_box, gold = torch.tensor([bool(phrase.boxes) for phrase in phrases]), merged_boxes(phrases)
    absent = torch.tensor([phrase.is_absent for phrase in phrases])
    scores = model(batch)
    found = {}
    for method in DECODERS:
        decoded = model.decode(scores, batch, method)
        right = iou_xyxy(decoded.boxes, gold) >= RIGHT
        found[method] = Collected(chosen_evidence(scores, decoded), batch.phrase_caption, has_box, right, absent)
    return found


def _joined(parts: Sequence[Collected]) -> Collected:
    columns = ([getattr(part, name) for part in parts] for name in Collected.__slots__)
    return Collected(*map(torch.cat, columns))


def calibrate(real: Collected, absent: Collected) -> Calibrated:
    """The calibration of one decoder of a model without ∅: the smallest weight of absent phrases that suffices."""
    found = [measure(_fit(real, absent, weight), real, absent) for weight in ABSENT_WEIGHTS]
    return next((each for each in found if each.auroc >= AUROC), found[-1])


def calibrate_presence(
    real: Collected, absent: Collected, real_alone: Collected, absent_alone: Collected
) -> Calibrated:
    """The calibration of one decoder of a model with the label ∅."""
    present, lacking = real.evidence[real.has_box], absent.evidence[absent.absent]
    slopes, constant = _fit_two(present, real.right[real.has_box].double(), lacking, ABSENT_SHARE)
    every_present = torch.cat([present, real_alone.evidence[real_alone.has_box]])
    every_lacking = torch.cat([lacking, absent_alone.evidence[absent_alone.absent]])
    ones = every_present.new_ones(len(every_present))
    presence = Logistic(*_fit_two(every_present, ones, every_lacking, PRESENCE_ABSENT_SHARE))
    threshold = float(presence(every_present).quantile(1 - FOUND_SHARE))
    found = measure(Calibration(slopes, constant, presence, threshold), real, absent)
    within, by_itself = (presence_auroc(presence, *pair) for pair in ((real, absent), (real_alone, absent_alone)))
    return replace(found, presence_auroc=(within, by_itself))


def presence_auroc(presence: Logistic, real: Collected, absent: Collected) -> float:
    """How well phrases with a box are told from absent ones."""
    return auroc(presence(real.evidence[real.has_box]), presence(absent.evidence[absent.absent]))


def _fit_two(rows: Tensor, targets: Tensor, lacking: Tensor, absent_share: float) -> tuple[tuple[float, ...], float]:
    """A logistic on rows (N, F) with their targets, and on absent phrases, whose targets are 0, of a given weight."""
    weight = len(rows) / max(1, len(lacking)) * absent_share / (1 - absent_share)
    slopes, constant = fit_logistic(
        torch.cat([rows, lacking]),
        torch.cat([targets, targets.new_zeros(len(lacking))]),
        torch.cat([torch.ones_like(targets), targets.new_full((len(lacking),), weight)]),
    )
    return tuple(slopes.tolist()), float(constant)


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
