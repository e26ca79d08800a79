"""Two things, two boxes: links between phrases of one category, which keep them from taking the same region.

Two phrases of one caption that name things of one category ("a man … a woman", "a red cap … a blue cap") are rivals:
they hardly ever mean the same box. What a chain learns of that is weak, and of phrases with another one between them
("A man in a hat and a woman") it learns nothing. So the link is stated, with one number for how strong it is:

    −strength · sigmoid(12 (IoU(k, k') − 0.5))

is added to the transitions of neighbours, and as a skip between phrases with one between them (an exact second-order
chain). Rivals that are farther apart get its expectation by the softmax of the other's emissions. It is for choosing
boxes; models are trained without it. "the man" after "a man" is the same man, and no rival.

Axes: I images, B captions, T phrases in a chain, P phrases, K regions, R pairs of rivals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from phrasechain.core.boxes import iou_xyxy
from phrasechain.model.batch import Batch
from phrasechain.model.scores import Scores

_SAME_AGAIN = frozenset({"the", "this", "that", "these", "those", "it", "itself", "himself", "herself", "themselves"})


def with_rivals(scores: Scores, batch: Batch, strength: float) -> Scores:
    """The scores of a chain with links between rivals; those of independent phrases as they are."""
    if scores.transitions is None or not strength:
        return scores
    beside, apart, *far = (rival_pairs(batch, distance) for distance in range(1, max(3, batch.steps)))
    if not any(map(len, (beside, apart, *far))):
        return scores
    overlap = iou_xyxy(batch.boxes[:, :, None], batch.boxes[:, None])  # (I, K, K)
    link = (-strength * torch.sigmoid(12 * (overlap - 0.5))).to(scores.transitions)
    B, T, K = len(batch.lengths), batch.steps, batch.boxes.shape[1]
    transitions = _add(scores.transitions.expand(B, T - 1, K, K), link, beside, batch)
    skips = scores.skips
    if len(apart):
        skips = transitions.new_zeros(()) if skips is None else skips
        skips = _add(skips.expand(B, T - 2, K, K), link, apart, batch)
    emissions = _add_expected(scores.emissions, link, far, batch)
    return replace(scores, emissions=emissions, transitions=transitions, skips=skips)


def _add_expected(emissions: Tensor, link: Tensor, far: Sequence[Tensor], batch: Batch) -> Tensor:
    """Emissions (P, K) with the expected links to rivals that are 3, 4, … phrases apart."""
    first = torch.cat([torch.empty_like(batch.phrase_caption[:0]), *far])
    second = torch.cat([first[:0], *(pairs + distance for distance, pairs in enumerate(far, 3))])
    image = batch.phrase_image
    p = emissions.masked_fill(~batch.region_mask[image], -torch.inf).softmax(-1)[..., None]  # (P, K, 1)
    more = torch.zeros_like(emissions)
    for mine, other in ((first, second), (second, first)):
        more = more.index_add(0, mine, (link[image[mine]] @ p[other].to(link))[..., 0].to(more))
    return emissions + more


def _add(links: Tensor, link: Tensor, pairs: Tensor, batch: Batch) -> Tensor:
    """Links (B, S, K, K) with more at pairs, which are given by their first phrases (R,)."""
    caption = batch.phrase_caption[pairs]
    place = caption, batch.phrase_step[pairs]
    return links.index_put(place, links[place] + link[batch.caption_image[caption]])


def rival_pairs(batch: Batch, distance: int) -> Tensor:
    """The first phrases (R,) of pairs of rivals of one caption that are so many phrases apart."""
    first = torch.arange(max(0, len(batch.phrase_caption) - distance), device=batch.phrase_caption.device)
    second = first + distance
    together = batch.phrase_caption[first] == batch.phrase_caption[second]
    alike = (batch.categories[first] & batch.categories[second]) != 0
    found = first[together & alike]
    keep = [not _is_same_again(_words(batch, row), _words(batch, row + distance)) for row in found.tolist()]
    return found[torch.tensor(keep, dtype=torch.bool, device=found.device)]


def _words(batch: Batch, phrase: int) -> tuple[str, ...]:
    first, end = batch.token_spans[phrase].tolist()
    return batch.tokens[int(batch.phrase_caption[phrase])][first:end]


def _is_same_again(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether the second phrase, by its words, takes up the first.

    >>> _is_same_again(["a", "tall", "man"], ["the", "man"]), _is_same_again(["a", "man"], ["another", "man"])
    (True, False)
    """
    is_definite = second[0].lower() in _SAME_AGAIN
    return is_definite and (len(second) == 1 or first[-1].lower() == second[-1].lower())
