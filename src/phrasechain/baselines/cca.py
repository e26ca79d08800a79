"""Phrase-Region CCA with cues (Plummer et al., "Phrase Localization and Visual Relationship Detection with
Comprehensive Image-Language Cues", ICCV 2017).

What a region costs a phrase is a weighted sum of cues:
- the cosine distance of phrase and region in the space of canonical correlation analysis;
- size: 1 − the share of the image that the region covers;
- position: −log p that a phrase of this category is where the region is.

Two related phrases (``relations``) cost a weight times −log p that regions which lie so to each other, and cost that,
belong to phrases of such a relation. Each phrase keeps the 30 regions of least cost after non-maximum suppression at
0.8, and the caption's regions are chosen together by a quadratic program (``quadratic``).

Nothing is learnt by gradients; ``cca_fit`` says how.

Decided:
- Phrases are means of word vectors, and a phrase's region for the analysis is the best of IoU ≥ 0.5.
- The category is that of a classifier of words; the paper takes the annotators'. Its detectors of single
  words are left out.
- Classifiers are logistic regressions on features and their squares: calibrated, and kept as weights, where the paper
  has SVMs with a radial kernel.

Axes: P phrases, K regions, C cues, n ≤ 30 candidates, R relations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from phrasechain.baselines.base import Annotated, Baseline
from phrasechain.baselines.categories import PhraseCategories
from phrasechain.baselines.cca_fit import fit_cues
from phrasechain.baselines.cues import PAIR, POSITION, cue_costs, pair_features, position_features, size_costs
from phrasechain.baselines.projection import CanonicalProjection
from phrasechain.baselines.quadratic import choose
from phrasechain.baselines.relations import GROUP_OF, GROUPS, KINDS, Link, find_links
from phrasechain.baselines.words import phrase_means
from phrasechain.core.schema import CATEGORIES
from phrasechain.model.batch import Batch
from phrasechain.model.decode import Decoded, marginals, refine
from phrasechain.model.losses import LossTerms
from phrasechain.model.scores import Scores
from phrasechain.model.targets import POSITIVE, Targets
from phrasechain.regions.nms import nms
from phrasechain.text.base import TextEncoder

CANDIDATES = 30
SUPPRESS = 0.8
CUES = ("phrase", "size", "position")


class PhraseRegionCCA(Baseline):
    """Canonical correlations, cues, and a quadratic program.

    Args:
        encoder: gives the word vectors, which are kept as they are.
        region_dimension: D.
    """

    needs = ("scipy", "sklearn")
    frozen_words = True
    position_weight: Tensor
    position_bias: Tensor
    pair_weight: Tensor
    pair_bias: Tensor
    cue_weights: Tensor
    group_weights: Tensor

    def __init__(self, encoder: TextEncoder, region_dimension: int) -> None:
        super().__init__(encoder)
        self.projection = CanonicalProjection(encoder.dimension, region_dimension)
        self.categories = PhraseCategories(encoder.dimension)
        self.register_buffer("position_weight", torch.zeros(len(CATEGORIES), POSITION))
        self.register_buffer("position_bias", torch.zeros(len(CATEGORIES)))
        self.register_buffer("pair_weight", torch.zeros(len(KINDS), PAIR))
        self.register_buffer("pair_bias", torch.zeros(len(KINDS)))
        self.register_buffer("cue_weights", torch.tensor([1.0, 0.0, 0.0]))
        self.register_buffer("group_weights", torch.zeros(len(GROUPS)))
        self.requires_grad_(False)

    def fit(self, batches: Iterable[Annotated]) -> None:
        fit_cues(self, batches)

    def forward(self, batch: Batch) -> Scores:
        """Emissions are the negative costs."""
        return Scores(-(self.unary_costs(batch) @ self.cue_weights), None, None)

    def unary_costs(self, batch: Batch) -> Tensor:
        """The cost of each cue: (P, K, C)."""
        phrases = self.phrase_vectors(batch)
        image = batch.phrase_image
        boxes, sizes = batch.boxes[image], batch.sizes[image, None]  # (P, K, 4), (P, 1, 2)
        category = self.categories(phrases)
        weight, bias = self.position_weight[category, None], self.position_bias[category, None]
        position = cue_costs(position_features(boxes, sizes), weight, bias)
        distance = 1 - self.projection(phrases, batch.features, batch)
        return torch.stack([distance, size_costs(boxes, sizes), position], -1)

    def phrase_vectors(self, batch: Batch) -> Tensor:
        """(P, e)."""
        return phrase_means(batch.token_vectors(self.encoder), batch)

    def loss_counts(self, batch: Batch, targets: Targets) -> Tensor:
        known = targets.has_box.sum()
        return torch.stack([known, known.new_zeros(()), known])

    def loss(self, batch: Batch, targets: Targets) -> LossTerms:
        """The error that the cues' weights make small: how many phrases' regions of least cost are wrong."""
        count, pairs, _ = self.loss_counts(batch, targets).unbind()
        best = self.masked(self(batch).emissions, batch).argmax(1, keepdim=True)
        wrong = (targets.iou.gather(1, best)[:, 0] < POSITIVE) & targets.has_box
        return LossTerms(wrong.sum().float(), targets.gold.new_zeros(()), count, pairs)

    @torch.no_grad()
    def infer(self, scores: Scores, batch: Batch) -> Decoded:
        """The regions of least cost for each caption together; probabilities are the softmax of the emissions."""
        emissions = self.masked(scores.emissions, batch)
        region = emissions.argmax(1)
        for group in _connected(self.links(batch)):
            rows = sorted({row for link in group for row in (link.left, link.right)})
            candidates = {row: self.candidates(emissions, batch, row) for row in rows}
            tables = {
                (rows.index(link.left), rows.index(link.right)): self.pair_costs(emissions, batch, link, candidates)
                for link in group
            }
            costs = [-emissions[row, candidates[row]].double().numpy(force=True) for row in rows]
            chosen = choose(costs, {key: table.double().numpy(force=True) for key, table in tables.items()})
            for row, place in zip(rows, chosen, strict=True):
                region[row] = candidates[row][place]
        refined = refine(scores, batch)
        boxes = refined[torch.arange(len(region), device=region.device), region]
        return Decoded(region, boxes, marginals(scores, batch), refined)

    def links(self, batch: Batch) -> list[Link]:
        return find_links(batch, self.categories(self.phrase_vectors(batch)).tolist())

    def pair_costs(self, emissions: Tensor, batch: Batch, link: Link, candidates: Mapping[int, Tensor]) -> Tensor:
        """What a relation costs for each two candidates, its weight included: (n, n')."""
        cue = self.pair_cue(self.pair_features(emissions, batch, link, candidates), link.kind)
        return self.group_weights[GROUP_OF[link.kind]] * cue

    def pair_cue(self, features: Tensor, kind: int) -> Tensor:
        """−log p of a kind of relation: (..., 12) to (...)."""
        return cue_costs(features, self.pair_weight[kind], self.pair_bias[kind])

    @staticmethod
    def pair_features(emissions: Tensor, batch: Batch, link: Link, candidates: Mapping[int, Tensor]) -> Tensor:
        """How each two candidates of two phrases lie to each other, and what they cost: (n, n', 12)."""
        rows = link.left, link.right
        boxes = [batch.boxes[batch.phrase_image[row], candidates[row]] for row in rows]
        costs = [-emissions[row, candidates[row]] for row in rows]
        return pair_features(*boxes, *costs)

    @staticmethod
    def candidates(emissions: Tensor, batch: Batch, row: int) -> Tensor:
        """The regions of a phrase that pairs are made of, least cost first: (n,)."""
        count = int(emissions[row].isfinite().sum())
        order = emissions[row].argsort(descending=True, stable=True)[:count]
        return order[nms(batch.boxes[batch.phrase_image[row], order], SUPPRESS, CANDIDATES)]

    @staticmethod
    def masked(emissions: Tensor, batch: Batch) -> Tensor:
        """Emissions with −∞ where an image has no region."""
        return emissions.masked_fill(~batch.region_mask[batch.phrase_image], -torch.inf)


def _connected(links: Sequence[Link]) -> list[list[Link]]:
    """Links by the caption that they belong to: those that share a phrase are together."""
    groups: dict[int, list[Link]] = {}
    root: dict[int, int] = {}
    for link in links:  # a link's left phrase comes before its right one, which has no other link to an earlier phrase
        root[link.right] = root.get(link.left, link.left)
        groups.setdefault(root[link.right], []).append(link)
    return list(groups.values())
