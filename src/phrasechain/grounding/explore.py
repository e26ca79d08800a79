"""More of what the model thinks of one caption: all marginals, and the best groundings that differ.

The most probable sequences of regions are mostly one grounding, drawn with boxes that hardly differ. So each phrase
first gets representatives, regions of which no two agree (IoU ≥ 0.5), and the best sequences of those are told: any two
differ in some box.

Axes: P phrases, K regions, n sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phrasechain.core.schema import Alternative, Box, GroundedPhrase
from phrasechain.grounding.result import PhotoGrounding, box_dict
from phrasechain.model.batch import Batch
from phrasechain.model.confidence import AGREE
from phrasechain.model.decode import Decoded, chain, kbest
from phrasechain.model.scores import Scores
from phrasechain.regions.nms import suppress

_LEAST = 1e-3  # a region's probability from which it is told
_NEVER = -1e6  # the emission of a region that must not be chosen


class RankedGrounding(NamedTuple):
    """One of the best sequences of regions: a box for each phrase, and the probability of just this sequence."""

    boxes: tuple[Box, ...]
    probability: float


class Details(NamedTuple):
    """What there is beside the boxes of a caption."""

    marginals: tuple[tuple[Alternative, ...], ...]  # for each phrase its regions, the most probable first
    k_best: tuple[RankedGrounding, ...]  # the best first


@dataclass(frozen=True, slots=True)
class Exploration:
    """A grounding and what is behind it."""

    grounding: PhotoGrounding
    marginals: tuple[tuple[Alternative, ...], ...] = ()  # for each phrase, or none at all
    k_best: tuple[RankedGrounding, ...] = ()

    def at_least(self, probability: float) -> Exploration:
        """Without the phrases whose boxes are less probable, and without less probable alternatives."""
        kept = [place for place, each in enumerate(self.grounding.phrases) if each.probability >= probability]
        phrases = tuple(_without_unlikely(self.grounding.phrases[place], probability) for place in kept)
        marginals = tuple(self.marginals[place] for place in kept if self.marginals)
        k_best = tuple(each._replace(boxes=tuple(each.boxes[place] for place in kept)) for each in self.k_best)
        return Exploration(replace(self.grounding, phrases=phrases), marginals, k_best)

    def without_marginals(self) -> Exploration:
        return replace(self, marginals=())

    def to_dict(self) -> dict[str, Any]:
        """The grounding as JSON has it; each phrase with ``marginals``, and ``k_best``, where there are any."""
        record = self.grounding.to_dict()
        for phrase, regions in zip(record["phrases"], self.marginals, strict=False):
            phrase["marginals"] = [box_dict(region.box, region.probability) for region in regions]
        if self.k_best:
            record["k_best"] = [
                {
                    "boxes": [[round(side, 3) for side in box] for box in each.boxes],
                    "probability": each.probability,
                }
                for each in self.k_best
            ]
        return record


def _without_unlikely(phrase: GroundedPhrase, probability: float) -> GroundedPhrase:
    kept = tuple(other for other in phrase.alternatives if other.probability >= probability)
    return replace(phrase, alternatives=kept)


def details_of(scores: Scores, batch: Batch, decoded: Decoded, k_best: int) -> Details:
    """The details of a batch of one caption."""
    regions = tuple(_marginals(*row) for row in zip(decoded.probabilities, decoded.refined, strict=True))
    return Details(regions, _different(scores, batch, decoded, k_best) if k_best else ())


def _marginals(probabilities: Tensor, boxes: Tensor) -> tuple[Alternative, ...]:
    """(K,) and (K, 4), the most probable first."""
    order = probabilities.argsort(descending=True, stable=True)
    kept = order[probabilities[order] >= _LEAST]
    found = zip(boxes[kept].tolist(), probabilities[kept].clamp(max=1.0).tolist(), strict=True)
    return tuple(Alternative(tuple(box), p) for box, p in found)


def _different(scores: Scores, batch: Batch, decoded: Decoded, count: int) -> tuple[RankedGrounding, ...]:
    emissions = scores.emissions.masked_fill(~_representatives(decoded), _NEVER)
    found = kbest(replace(scores, emissions=emissions), batch, count)
    regions, score = found.regions[0], found.scores[0]  # (n, T), (n,)
    kept = score > _NEVER / 2
    places = torch.arange(len(decoded.region))
    boxes = decoded.refined[places, regions[kept][:, : len(places)]]  # (n, P, 4)
    log_z = chain(scores, batch).log_partition[0]
    probability = (score[kept] - log_z).exp()
    rows = zip(boxes.tolist(), probability.tolist(), strict=True)
    return tuple(RankedGrounding(tuple(tuple(box) for box in row), p) for row, p in rows)


def _representatives(decoded: Decoded) -> Tensor:
    """For each phrase the regions whose boxes agree with that of no likelier one: (P, K)."""
    order = decoded.probabilities.argsort(dim=-1, descending=True, stable=True)
    boxes = decoded.refined.gather(1, order[..., None].expand_as(decoded.refined))
    kept = suppress(boxes, AGREE)
    kept &= decoded.probabilities.gather(1, order) > 0
    return torch.zeros_like(kept).scatter(1, order, kept)
