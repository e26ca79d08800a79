"""How sure a box is, and which other boxes a phrase could mean.

What the chain says of a box is the mass of the regions that agree with it (IoU ≥ 0.5), each moved by its offsets. A
softmax over regions cannot say that none of them will do, so a small logistic looks at two more things:

    probability = sigmoid(w₁ logit(mass) + w₂ emission + w₃ entropy + b)

with the highest emission of the agreeing regions, and the entropy of the phrase's marginals.

Axes: P phrases, K regions, C boxes of each phrase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.schema import Alternative
from phrasechain.model.decode import Decoded
from phrasechain.model.scores import Scores
from phrasechain.regions.nms import suppress

AGREE = 0.5  # the IoU from which two boxes say the same
EVIDENCE = ("logit of the mass", "emission", "entropy")
_LEAST = 1e-4  # mass that counts: less is taken for this much, and makes no alternative
_AT_ONCE = 64  # phrases that alternatives are looked for at a time


@dataclass(frozen=True, slots=True)
class Calibration:
    """From evidence to a probability: the weights of ``EVIDENCE`` and a constant.

    The default leaves the mass as it is.
    """

    weights: tuple[float, ...] = (1.0, 0.0, 0.0)
    constant: float = 0.0

    def __call__(self, evidence: Tensor) -> Tensor:
        """(..., 3) to (...)."""
        return (evidence @ evidence.new_tensor(self.weights) + self.constant).sigmoid()


def evidence_of(boxes: Tensor, decoded: Decoded, emissions: Tensor) -> Tensor:
    """What there is to be said for boxes (P, C, 4) of phrases with emissions (P, K): (P, C, 3) float64."""
    p = decoded.probabilities.double()  # (P, K)
    overlap = iou_xyxy(boxes[:, :, None], decoded.refined[:, None])  # (P, C, K)
    overlap = overlap.masked_fill((decoded.probabilities == 0)[:, None], -1.0)
    agree = overlap >= AGREE
    mass = (agree.double() @ p[..., None])[..., 0]  # (P, C)
    nearest = overlap == overlap.amax(-1, keepdim=True)  # where none agrees
    emission = emissions[:, None].masked_fill(~(agree | nearest), -torch.inf).amax(-1)
    entropy = -torch.xlogy(p, p).sum(-1, keepdim=True).expand_as(mass)
    return torch.stack([torch.logit(mass, _LEAST), emission.double(), entropy], -1)


def chosen_evidence(scores: Scores, decoded: Decoded) -> Tensor:
    """What there is to be said for the box that each phrase is given: (P, 3)."""
    return evidence_of(decoded.boxes[:, None], decoded, scores.emissions)[:, 0]


Answer = tuple[Alternative, tuple[Alternative, ...]]


def answers_of(scores: Scores, decoded: Decoded, calibration: Calibration, top_k: int) -> list[Answer]:
    """The box of each phrase, and up to ``top_k`` other boxes, the most probable first, no two of which agree."""
    found: list[Answer] = []
    for rows in torch.arange(len(decoded.region)).split(_AT_ONCE):  # type: ignore[no-untyped-call]
        part = Decoded(*(each[rows] for each in _fields(decoded)))
        found += _answers_of_few(part, scores.emissions[rows], calibration, top_k)
    return found


def _fields(decoded: Decoded) -> Sequence[Tensor]:
    return decoded.region, decoded.boxes, decoded.probabilities, decoded.refined


def _answers_of_few(decoded: Decoded, emissions: Tensor, calibration: Calibration, top_k: int) -> list[Answer]:
    boxes = torch.cat([decoded.boxes[:, None], decoded.refined], 1)  # (P, 1 + K, 4): the chosen one first
    evidence = evidence_of(boxes, decoded, emissions)  # (P, 1 + K, 3)
    probability = calibration(evidence)
    keys = probability.masked_fill(evidence[..., 0] <= torch.logit(torch.tensor(_LEAST)) + 1e-6, -1.0)
    keys[:, 1:].masked_fill_(decoded.probabilities == 0, -1.0)
    keys[:, 0] = 2.0
    order = keys.argsort(dim=-1, descending=True, stable=True)
    boxes, keys = boxes.gather(1, order[..., None].expand_as(boxes)), keys.gather(1, order)
    kept = suppress(boxes, AGREE) & (keys > 0)  # (P, 1 + K)
    rows = zip(boxes.tolist(), probability.gather(1, order).tolist(), kept, strict=True)
    return [_answer(box, each, row.nonzero()[: 1 + top_k, 0].tolist()) for box, each, row in rows]


def _answer(boxes: list[list[float]], probabilities: list[float], places: list[int]) -> Answer:
    first, *others = (Alternative(tuple(boxes[place]), probabilities[place]) for place in places)  # type: ignore[arg-type]
    return first, tuple(others)
