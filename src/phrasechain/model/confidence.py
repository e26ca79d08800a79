"""How sure a box is, and which other boxes a phrase could mean.

What the chain says of a box is the mass of the regions that agree with it (IoU ≥ 0.5), each moved by its offsets. A
softmax over regions cannot say that none of them will do, so a small logistic looks at two more things:

    probability = sigmoid(w₁ logit(mass) + w₂ emission + w₃ entropy + b)

with the highest emission of the agreeing regions, and the entropy of the phrase's marginals. Where the model has the
label ∅, all of that is given presence, the logit of presence is a fourth kind of evidence, and a second logistic on the
evidence for the chosen box is the presence; a probability is never above it. Below are also the pure functions of a
calibration: its fit and its figures.

Axes: P phrases, K regions, C boxes of each phrase, F kinds of evidence; N phrases where a calibration is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.schema import Alternative, Box
from phrasechain.model.decode import Decoded
from phrasechain.model.scores import Scores
from phrasechain.regions.nms import suppress

AGREE = 0.5  # the IoU from which two boxes say the same
EVIDENCE = ("logit of the mass", "emission", "entropy")
EVIDENCE_WITH_PRESENCE = (*EVIDENCE, "logit of presence")
_LEAST = 1e-4  # mass that counts: less is taken for this much, and makes no alternative
BINS = 10  # of a reliability diagram
_AT_ONCE = 64  # phrases that alternatives are looked for at a time
_RIDGE = 1e-3
_NEWTON_STEPS = 50


@dataclass(frozen=True, slots=True)
class Logistic:
    """sigmoid of the weighted evidence and a constant; evidence without a weight does not count."""

    weights: tuple[float, ...]
    constant: float = 0.0

    def __call__(self, evidence: Tensor) -> Tensor:
        """(..., F) to (...)."""
        used = evidence[..., : len(self.weights)]
        return (used @ used.new_tensor(self.weights) + self.constant).sigmoid()


@dataclass(frozen=True, slots=True)
class Calibration(Logistic):
    """From evidence to a probability and, where the model has the label ∅, to a presence.

    The default leaves the mass and the chain's presence as they are. A phrase is found if its presence is not below the
    ``threshold``.
    """

    weights: tuple[float, ...] = (1.0, 0.0, 0.0)
    presence: Logistic = Logistic((0.0, 0.0, 0.0, 1.0))
    threshold: float = 0.0


def evidence_of(boxes: Tensor, decoded: Decoded, emissions: Tensor) -> Tensor:
    """What there is to be said for boxes (P, C, 4) of phrases with emissions (P, K): (P, C, F) float64.

    F is 3, or 4 where the model has the label ∅.
    """
    p = decoded.probabilities.double()  # (P, K)
    overlap = iou_xyxy(boxes[:, :, None], decoded.refined[:, None])  # (P, C, K)
    overlap = overlap.masked_fill((decoded.probabilities == 0)[:, None], -1.0)
    agree = overlap >= AGREE
    mass = (agree.double() @ p[..., None])[..., 0]  # (P, C)
    nearest = overlap == overlap.amax(-1, keepdim=True)  # where none agrees
    emission = emissions[:, None].masked_fill(~(agree | nearest), -torch.inf).amax(-1)
    entropy = -torch.xlogy(p, p).sum(-1, keepdim=True).expand_as(mass)
    found = [torch.logit(mass, _LEAST), emission.double(), entropy]
    if decoded.presence is not None:
        found.append(torch.logit(decoded.presence.double(), _LEAST)[:, None].expand_as(mass))
    return torch.stack(found, -1)


def chosen_evidence(scores: Scores, decoded: Decoded) -> Tensor:
    """What there is to be said for the box that each phrase is given: (P, F)."""
    return evidence_of(decoded.boxes[:, None], decoded, scores.emissions)[:, 0]


class RankedBoxes(NamedTuple):
    """The box of a phrase, its probability, and the next best boxes, the most probable first; its presence."""

    box: Box
    probability: float
    alternatives: tuple[Alternative, ...]
    presence: float | None = None


def rank_boxes(scores: Scores, decoded: Decoded, calibration: Calibration, top_k: int) -> list[RankedBoxes]:
    """The box of each phrase and up to ``top_k`` alternatives, no two of which agree."""
    found: list[RankedBoxes] = []
    for rows in torch.arange(len(decoded.region)).split(_AT_ONCE):  # type: ignore[no-untyped-call]
        found += _rank_few(_rows(decoded, rows), scores.emissions[rows], calibration, top_k)
    return found


def _rows(decoded: Decoded, rows: Tensor) -> Decoded:
    """What was decoded for some phrases."""
    values = {item.name: getattr(decoded, item.name) for item in fields(decoded)}
    chosen: dict[str, Any] = {name: value if value is None else value[rows] for name, value in values.items()}
    return Decoded(**chosen)


def _rank_few(decoded: Decoded, emissions: Tensor, calibration: Calibration, top_k: int) -> list[RankedBoxes]:
    boxes = torch.cat([decoded.boxes[:, None], decoded.refined], 1)  # (P, 1 + K, 4): the chosen one first
    evidence = evidence_of(boxes, decoded, emissions)  # (P, 1 + K, F)
    probability, presence = calibration(evidence), None
    if decoded.presence is not None:
        presence = calibration.presence(evidence[:, 0])  # (P,)
        probability = torch.minimum(probability, presence[:, None])
    keys = probability.masked_fill(evidence[..., 0] <= torch.logit(torch.tensor(_LEAST)) + 1e-6, -1.0)
    keys[:, 1:].masked_fill_(decoded.probabilities == 0, -1.0)
    keys[:, 0] = 2.0
    order = keys.argsort(dim=-1, descending=True, stable=True)
    boxes, keys = boxes.gather(1, order[..., None].expand_as(boxes)), keys.gather(1, order)
    kept = suppress(boxes, AGREE) & (keys > 0)  # (P, 1 + K)
    shown = [None] * len(boxes) if presence is None else presence.tolist()
    rows = zip(boxes.tolist(), probability.gather(1, order).tolist(), kept, shown, strict=True)
    return [_ranked(box, each, row.nonzero()[: 1 + top_k, 0].tolist(), there) for box, each, row, there in rows]


def _ranked(
    boxes: list[list[float]], probabilities: list[float], places: list[int], presence: float | None
) -> RankedBoxes:
    first, *others = (Alternative(tuple(boxes[place]), probabilities[place]) for place in places)  # type: ignore[arg-type]
    return RankedBoxes(first.box, first.probability, tuple(others), presence)


# ---- fitting and judging a calibration ----


def fit_logistic(rows: Tensor, targets: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes (F,) and the constant of the logistic regression of targets (N,), weighted by counts (N,), on rows (N, F).

    Newton's method on standardised rows, with a ridge that keeps the weights finite where the classes are separable.
    """
    mean, spread = rows.mean(0), rows.std(0).clamp(min=1e-6)
    inputs = torch.cat([(rows - mean) / spread, torch.ones_like(rows[:, :1])], 1)  # (N, F + 1)
    penalty = _RIDGE * counts.sum() * torch.eye(inputs.shape[1], dtype=rows.dtype)
    penalty[-1, -1] = 1e-9 * counts.sum()
    weights = rows.new_zeros(inputs.shape[1])
    for _ in range(_NEWTON_STEPS):
        p = (inputs @ weights).sigmoid()
        gradient = inputs.T @ (counts * (p - targets)) + penalty @ weights
        hessian = (inputs * (counts * p * (1 - p))[:, None]).T @ inputs + penalty
        weights = weights - torch.linalg.solve(hessian, gradient)
    slopes = weights[:-1] / spread
    return slopes, weights[-1] - slopes @ mean


def reliability_bins(probability: Tensor, right: Tensor) -> list[tuple[int, float, float]]:
    """The reliability diagram: for each of ten equal bins its phrases, their mean probability and their accuracy."""
    place = (probability * BINS).long().clamp(0, BINS - 1)
    chosen = [place == number for number in range(BINS)]
    return [
        (int(each.sum()), float(probability[each].mean()), float(right[each].double().mean()))
        if each.any()
        else (0, 0, 0)
        for each in chosen
    ]


def calibration_error(probability: Tensor, right: Tensor) -> float:
    """The expected calibration error (ECE) over ten equal bins."""
    rows = reliability_bins(probability, right)
    return sum(count * abs(mean - accuracy) for count, mean, accuracy in rows) / len(right)


def auroc(positive: Tensor, negative: Tensor) -> float:
    """The area under the ROC curve: how often a positive is above a negative; a tie is half.

    >>> auroc(torch.tensor([3.0, 1.0]), torch.tensor([0.0, 1.0]))
    0.875
    """
    above = (positive[:, None] > negative).double() + 0.5 * (positive[:, None] == negative).double()
    return float(above.mean())
