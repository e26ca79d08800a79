"""Structured Matching (Wang et al., "Structured Matching for Phrase Localization", ECCV 2016).

A phrase and a region score W = cos(A r + a, B p + b), with r the region's features and p the mean of the phrase's word
vectors; A and B begin as the projections of canonical correlation analysis. A caption's phrases and their regions are a
matching (``matching``): no region is taken twice. Phrases that a possessive links ("a man … his shirt": partial match
coreference) score λ σ(w·[r_i ; r_j] + c) more for the regions i and j that they take, among the ten best of each, with
λ = 0.1. The loss is that of a structured perceptron, without a margin:

    max_y s(y) − s(y_gold),        whose subgradient by W is y* − y_gold, also where y* is fractional.

Decided:
- y_gold must be a matching itself. If two phrases had one gold region, s(y_gold) could exceed every s(y), and the loss
  could fall below 0, where all is right. So each phrase's gold is a region of IoU ≥ 0.5 of its own, as
  many phrases as possible having one, with the highest IoU in total; those that go without leave the training, as do
  phrases without any such region. The loss is then never below 0.
- Related are a phrase with his, her or their in it and the nearest people phrase before it; the paper does not say how
  it found them. What a people phrase is, a classifier of words says.
- The relation's w and c are a logistic regression on pairs of gold regions against other pairs of the same images, fit
  beforehand. In training, gold regions count among the ten best, so that s(y_gold) has its relations.
- More phrases than regions: they share regions.
- Fractional y: the phrases take the assignment of most mass.

Axes: B captions, P phrases, T phrases of a caption, I images, K regions, D features, e numbers of a word vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from phrasechain.baselines.base import Annotated, Baseline
from phrasechain.baselines.categories import PhraseCategories
from phrasechain.baselines.fitting import matched_pairs
from phrasechain.baselines.logistic import fit_logistic
from phrasechain.baselines.matching import Array, Places, Relation, best_regions, gold_assignment, match
from phrasechain.baselines.projection import CanonicalProjection
from phrasechain.baselines.relations import possessive_links
from phrasechain.baselines.words import phrase_means
from phrasechain.core.schema import CATEGORIES
from phrasechain.model.batch import Batch, keep_phrases
from phrasechain.model.decode import Decoded, marginals, refine
from phrasechain.model.losses import LossTerms
from phrasechain.model.scores import Scores
from phrasechain.model.targets import POSITIVE, Targets, make_targets
from phrasechain.text.base import TextEncoder

RELATION_WEIGHT = 0.1  # λ
CANDIDATES = 10
_OTHER_PAIRS = 10  # that the classifier of relations sees beside a pair of gold regions


class StructuredMatching(Baseline):
    """A matching of phrases and regions.

    Args:
        encoder: gives the word vectors, which are kept as they are.
        region_dimension: D.
        joint: numbers of A r and B p.
    """

    needs = ("scipy", "sklearn")
    frozen_words = True
    relation_weight: Tensor
    relation_bias: Tensor

    def __init__(self, encoder: TextEncoder, region_dimension: int, *, joint: int = 256) -> None:
        super().__init__(encoder)
        self.projection = CanonicalProjection(encoder.dimension, region_dimension, joint)
        self.categories = PhraseCategories(encoder.dimension)
        self.register_buffer("relation_weight", torch.zeros(2, region_dimension))
        self.register_buffer("relation_bias", torch.zeros(()))

    @torch.no_grad()
    def fit(self, batches: Iterable[Annotated]) -> None:
        """A and B by canonical correlation analysis, and the classifiers of people phrases and of related regions."""
        pairs = matched_pairs(batches, self.encoder)
        self.projection.fit(pairs)
        self.categories.fit(pairs.phrases, pairs.categories)
        samples = [
            sample for batch, phrases in batches for sample in self._samples(batch, make_targets(batch, phrases))
        ]
        if samples:
            rows, answers = (np.concatenate(parts) for parts in zip(*samples, strict=True))
            weight, bias = fit_logistic(rows, answers)
            self.relation_weight.copy_(torch.from_numpy(weight).view_as(self.relation_weight))
            self.relation_bias.fill_(bias)

    def forward(self, batch: Batch) -> Scores:
        return Scores(self.projection(self.phrase_vectors(batch), batch.features, batch), None, None)

    def phrase_vectors(self, batch: Batch) -> Tensor:
        """(P, e)."""
        return phrase_means(batch.token_vectors(self.encoder), batch)

    def loss_counts(self, batch: Batch, targets: Targets) -> Tensor:
        has_gold = gold_regions(batch, targets) >= 0
        captions = batch.to_chains(has_gold).any(1).sum()
        return torch.stack([captions, captions.new_zeros(()), has_gold.sum()])

    def loss(self, batch: Batch, targets: Targets) -> LossTerms:
        """The sum over captions, and their number."""
        gold = gold_regions(batch, targets)  # (P,)
        has_gold = gold >= 0
        count = batch.to_chains(has_gold).any(1).sum()
        if not bool(has_gold.any()):
            nothing = self(batch).emissions.sum() * 0.0
            return LossTerms(nothing, nothing.detach(), count, count.new_zeros(()))
        batch, gold = keep_phrases(batch, has_gold), gold[has_gold]
        scores = self(batch).emissions
        change, related = torch.zeros_like(scores), 0.0
        for rows, W, relations in self._problems(scores, batch, gold.numpy(force=True)):
            best = match(W, relations)
            own = gold[rows].numpy(force=True)
            change[rows, : W.shape[1]] += torch.from_numpy(best.y).to(change)
            change[rows, gold[rows]] -= 1.0
            related += sum(float((z * each.scores).sum()) for z, each in zip(best.z, relations, strict=True))
            related -= sum(_score_of(each, own) for each in relations)
        loss = (scores * change).sum() + related
        return LossTerms(loss, loss.new_zeros(()), count, count.new_zeros(()))

    @torch.no_grad()
    def infer(self, scores: Scores, batch: Batch) -> Decoded:
        """The best matching of each caption; probabilities are the softmax of the scores."""
        region = torch.empty(len(scores.emissions), dtype=torch.int64)
        for rows, W, relations in self._problems(scores.emissions, batch):
            region[rows] = torch.from_numpy(best_regions(match(W, relations), W))
        region, refined = region.to(batch.spans.device), refine(scores, batch)
        boxes = refined[torch.arange(len(region), device=region.device), region]
        return Decoded(region, boxes, marginals(scores, batch), refined)

    def _problems(
        self, scores: Tensor, batch: Batch, gold: Places | None = None
    ) -> Iterator[tuple[Tensor, Array, list[Relation]]]:
        """Each caption's rows of the batch, its scores (T, K) of the regions that there are, and its relations."""
        links = self.links(batch)
        values = scores.detach().double().numpy(force=True)
        counts = batch.label_mask.sum(1).tolist()
        ends = batch.lengths.cumsum(0).tolist()
        for caption, (end, length) in enumerate(zip(ends, batch.lengths.tolist(), strict=True)):
            start = end - length
            W = values[start:end, : counts[caption]]
            own = None if gold is None else gold[start:end]
            features = batch.features[batch.caption_image[caption]]
            related = [self._relation(W, features, i - start, j - start, own) for i, j in links.get(caption, ())]
            yield torch.arange(start, end), W, related

    def _relation(self, W: Array, features: Tensor, left: int, right: int, gold: Places | None) -> Relation:
        i, j = (_candidates(W[phrase], None if gold is None else int(gold[phrase])) for phrase in (left, right))
        weight = self.relation_weight[..., None]  # (2, D, 1)
        first, second = (features[torch.from_numpy(each)].float() for each in (i, j))  # (A, D), (B, D)
        logits = first @ weight[0] + (second @ weight[1]).T + self.relation_bias  # (A, B)
        return Relation(left, right, i, j, RELATION_WEIGHT * logits.double().sigmoid().numpy(force=True))

    @torch.no_grad()
    def links(self, batch: Batch) -> dict[int, list[tuple[int, int]]]:
        """The related phrases of each caption that has some: a possessive's, and the nearest people phrase before."""
        people = (self.categories(self.phrase_vectors(batch)) == CATEGORIES.index("people")).tolist()
        return possessive_links(batch, people)

    def _samples(self, batch: Batch, targets: Targets) -> Iterator[tuple[Array, np.ndarray]]:
        """For each related pair with gold regions: [r_i ; r_j] of those, and of other pairs, and which is which."""
        gold = gold_regions(batch, targets).tolist()
        for caption, links in self.links(batch).items():
            image = int(batch.caption_image[caption])
            features, count = batch.features[image].double().numpy(force=True), int(batch.region_mask[image].sum())
            for left, right in links:
                if gold[left] >= 0 and gold[right] >= 0:
                    rng = np.random.default_rng([left, right, gold[left], gold[right]])
                    i, j = (np.append(gold[phrase], rng.integers(count, size=_OTHER_PAIRS)) for phrase in (left, right))
                    yield np.concatenate([features[i], features[j]], 1), (i == gold[left]) & (j == gold[right])


def gold_regions(batch: Batch, targets: Targets) -> Tensor:
    """Each phrase's gold in its caption's gold matching, −1 for none: (P,) int64."""
    iou = targets.iou.double().numpy(force=True)
    ends = batch.lengths.cumsum(0).tolist()
    parts = [
        gold_assignment(iou[end - length : end], POSITIVE)
        for end, length in zip(ends, batch.lengths.tolist(), strict=True)
    ]
    return torch.from_numpy(np.concatenate(parts)).to(targets.iou.device)


def _candidates(scores: Array, gold: int | None) -> Places:
    """The ten best regions of a phrase, its gold one among them if there is one."""
    if gold is not None:
        scores = scores.copy()
        scores[gold] = np.inf
    count = min(CANDIDATES, len(scores))
    return np.argpartition(-scores, count - 1)[:count]


def _score_of(relation: Relation, regions: Places) -> float:
    """What a relation gives to phrases that take these regions: (T,)."""
    (i,) = (relation.left_regions == regions[relation.left]).nonzero()
    (j,) = (relation.right_regions == regions[relation.right]).nonzero()
    return float(relation.scores[i, j].sum())
