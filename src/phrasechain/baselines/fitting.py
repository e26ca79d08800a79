"""Pairs of a phrase and its region to learn from before the first step.

Axes: N pairs, e numbers of a mean word vector, D features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from phrasechain.baselines.base import Annotated
from phrasechain.baselines.logistic import Array
from phrasechain.baselines.words import phrase_means
from phrasechain.core.errors import DataError
from phrasechain.model.targets import hard_targets, make_targets
from phrasechain.text.base import TextEncoder

PER_PHRASE = 10  # pairs of one and the same phrase
MOST_PAIRS = 50_000


@dataclass(frozen=True, slots=True)
class MatchedPairs:
    """Phrases and the regions that fit them best, at IoU ≥ 0.5."""

    phrases: Array  # (N, e)
    regions: Array  # (N, D)
    categories: tuple[str, ...]  # N, the first of each phrase's


@torch.no_grad()
def matched_pairs(batches: Iterable[Annotated], encoder: TextEncoder) -> MatchedPairs:
    """At most ten pairs of each distinct phrase, whatever its case: "a man" would outweigh all the rest."""
    seen: Counter[str] = Counter()
    phrases, regions = [], []
    categories: list[str] = []
    for batch, annotated in batches:
        targets = make_targets(batch, annotated)
        kept = []
        for row in targets.labelled.nonzero()[:, 0].tolist():
            text = annotated[row].text.lower()
            if seen[text] < PER_PHRASE and len(categories) < MOST_PAIRS:
                seen[text] += 1
                kept.append(row)
                categories.append(next(iter(annotated[row].categories), ""))
        rows = torch.tensor(kept, dtype=torch.int64)
        phrases.append(phrase_means(batch.token_vectors(encoder), batch)[rows])
        regions.append(batch.features[batch.phrase_image, hard_targets(targets.iou)][rows])
    if len(categories) < 2:
        raise DataError("fewer than two phrases have a region with IoU ≥ 0.5: there is nothing to learn from")
    means, features = (torch.cat(parts).double().numpy() for parts in (phrases, regions))
    return MatchedPairs(means, features, tuple(categories))
