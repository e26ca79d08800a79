"""How Phrase-Region CCA learns: the projections, then the classifiers of its cues, then the weights of the cues.

Weights are found by Nelder-Mead on the error, from 20 random starts (``cues.fit_cue_weights``): first those of regions,
by how many phrases' region of least cost is wrong; then those of pairs, with the pairs by themselves as in the released
code, by how many of their two regions of least cost are wrong.

Decided: every tenth batch is kept for the weights and the rest is for all else, so that the validation split is left
alone; where there are fewer than ten batches, all are used for both. Where several regions cost the same, the worst of
them counts: weights of 0 are no solution.

Axes: N regions or pairs of all S phrases or relations, C cues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from phrasechain.baselines.base import Annotated
from phrasechain.baselines.cues import fit_cue_weights, position_features
from phrasechain.baselines.fitting import matched_pairs
from phrasechain.baselines.logistic import Array, fit_logistic
from phrasechain.baselines.relations import GROUP_OF, GROUPS, Link
from phrasechain.core.schema import Phrase
from phrasechain.model.batch import Batch
from phrasechain.model.targets import POSITIVE, make_targets

if TYPE_CHECKING:
    from phrasechain.baselines.cca import PhraseRegionCCA

_HELD_OUT = 10
_BATCHES = 100  # that classifiers learn from
_DRAWN = 15  # samples that a classifier sees beside those that fit
_LEAST = 30  # samples that make a classifier
_MOST_PHRASES, _MOST_RELATIONS = 2000, 500  # that weights are found by


Samples = tuple[Tensor, Tensor, Tensor]  # features (N, F), kinds (N,) and whether they fit (N,)


class Choices(NamedTuple):
    """What one phrase, or two, can choose from."""

    fixed: Array  # (N,) costs without a weight
    cues: Array  # (N, C) costs to be weighed
    right: Array  # (N,) how much of the choice is right, from 0 to 1


@torch.no_grad()
def fit_cues(model: PhraseRegionCCA, batches: Iterable[Annotated]) -> None:
    """Learn everything from annotated batches, which are gone through five times."""
    learnt, kept = _parts(batches)
    pairs = matched_pairs(learnt(), model.encoder)
    model.projection.fit(pairs)
    model.categories.fit(pairs.phrases, pairs.categories)
    samples = [_position_samples(model, *each) for each in islice(learnt(), _BATCHES)]
    _fit_classifiers(model.position_weight, model.position_bias, samples)
    _fit_weights(model.cue_weights, islice(_region_choices(model, kept()), _MOST_PHRASES))
    related = [each for batch in islice(learnt(), _BATCHES) for each in _pair_samples(model, *batch)]
    _fit_classifiers(model.pair_weight, model.pair_bias, related)
    _fit_weights(model.group_weights, islice(_pair_choices(model, kept()), _MOST_RELATIONS))


def _parts(batches: Iterable[Annotated]) -> tuple[Callable[[], Iterator[Annotated]], Callable[[], Iterator[Annotated]]]:
    """The batches to learn from, and those kept for the weights, each from its beginning at every call."""
    is_short = sum(1 for _ in islice(batches, _HELD_OUT)) < _HELD_OUT

    def part(is_kept: bool) -> Iterator[Annotated]:
        for number, each in enumerate(batches):
            if is_short or (number % _HELD_OUT == _HELD_OUT - 1) == is_kept:
                yield each

    return lambda: part(False), lambda: part(True)


def _fit_classifiers(weight: Tensor, bias: Tensor, samples: Sequence[Samples]) -> None:
    """A logistic regression per kind that has some samples."""
    if not samples:
        return
    features, kinds, fits = (torch.cat(parts) for parts in zip(*samples, strict=True))
    for kind in range(len(bias)):
        own = kinds == kind
        if int(own.sum()) >= _LEAST:
            found, constant = fit_logistic(features[own].double().numpy(force=True), fits[own].numpy(force=True))
            weight[kind] = torch.from_numpy(found)
            bias[kind] = constant


def _position_samples(model: PhraseRegionCCA, batch: Batch, phrases: Sequence[Phrase]) -> Samples:
    """Of each labelled phrase its best region and some drawn: their places, its category, whether they fit."""
    targets = make_targets(batch, phrases)
    row = targets.labelled.nonzero()[:, 0]  # (Q,)
    image = batch.phrase_image[row]
    rng = torch.Generator().manual_seed(len(row))
    counts = batch.region_mask[image].sum(1, keepdim=True)
    drawn = (torch.rand(len(row), _DRAWN, generator=rng) * counts).long()
    region = torch.cat([targets.iou[row].argmax(1, keepdim=True), drawn], 1)  # (Q, 16)
    features = position_features(batch.boxes[image[:, None], region], batch.sizes[image, None])
    category = model.categories(model.phrase_vectors(batch))[row, None].expand_as(region)
    fits = targets.iou[row[:, None], region] >= POSITIVE
    return features.flatten(0, 1), category.flatten(), fits.flatten()


def _region_choices(model: PhraseRegionCCA, batches: Iterable[Annotated]) -> Iterator[Choices]:
    """The regions of every phrase with a known box."""
    for batch, phrases in batches:
        targets, costs = make_targets(batch, phrases), model.unary_costs(batch)  # (P, K, C)
        mask = batch.region_mask[batch.phrase_image]
        for row in targets.has_box.nonzero()[:, 0].tolist():
            cues, fits = (_array(values[row, mask[row]]) for values in (costs, targets.iou >= POSITIVE))
            yield Choices(np.zeros(len(cues)), cues, fits)


def _related(
    model: PhraseRegionCCA, batch: Batch, phrases: Sequence[Phrase]
) -> Iterator[tuple[Link, Tensor, Tensor, Tensor, Tensor]]:
    """Related phrases with known boxes: features (n, n', F), both costs (n, n'), and which fit, (n,) and (n',)."""
    targets = make_targets(batch, phrases)
    emissions = model.masked(model(batch).emissions, batch)
    for link in model.links(batch):
        rows = link.left, link.right
        if all(bool(targets.has_box[row]) for row in rows):
            candidates = {row: model.candidates(emissions, batch, row) for row in rows}
            features = model.pair_features(emissions, batch, link, candidates)
            left, right = (-emissions[row, candidates[row]] for row in rows)
            is_left, is_right = (targets.iou[row, candidates[row]] >= POSITIVE for row in rows)
            yield link, features, left[:, None] + right, is_left, is_right


def _pair_samples(model: PhraseRegionCCA, batch: Batch, phrases: Sequence[Phrase]) -> Iterator[Samples]:
    """Of related phrases some pairs that fit both, and as many others, with the kind of the relation."""
    for link, features, _, left, right in _related(model, batch, phrases):
        fits = (left[:, None] & right).flatten()
        rng = torch.Generator().manual_seed(link.right)
        order = torch.randperm(len(fits), generator=rng)
        some = torch.cat([order[fits[order]][:_DRAWN], order[~fits[order]][:_DRAWN]])
        yield features.flatten(0, 1)[some], torch.full((len(some),), link.kind), fits[some]


def _pair_choices(model: PhraseRegionCCA, batches: Iterable[Annotated]) -> Iterator[Choices]:
    """The pairs of candidates of every two related phrases with known boxes."""
    for batch, phrases in batches:
        for link, features, costs, left, right in _related(model, batch, phrases):
            cues = np.zeros((costs.numel(), len(GROUPS)))
            cues[:, GROUP_OF[link.kind]] = _array(model.pair_cue(features, link.kind).flatten())
            yield Choices(_array(costs.flatten()), cues, _array((left[:, None].float() + right.float()).flatten() / 2))


def _fit_weights(weights: Tensor, choices: Iterable[Choices]) -> None:
    """Put the weights of least error there; they stay as they are where there is nothing to choose."""
    if found := list(choices):
        weights.copy_(torch.from_numpy(fit_cue_weights(choice_error(found), len(weights))))


def choice_error(choices: Sequence[Choices]) -> Callable[[Array], float]:
    """From weights (C,) to how much is wrong, on average, of what costs least; of equals the worst counts."""
    starts = np.cumsum([0, *(len(each.fixed) for each in choices[:-1])])
    lengths = [len(each.fixed) for each in choices]
    fixed, cues, right = (np.concatenate(parts) for parts in zip(*choices, strict=True))

    def error(weights: Array) -> float:
        costs = fixed + cues @ weights
        least = np.repeat(np.minimum.reduceat(costs, starts), lengths)
        worst = np.minimum.reduceat(np.where(costs <= least, right, 1.0), starts)
        return 1.0 - float(worst.mean())

    return error


def _array(values: Tensor) -> Array:
    return values.double().numpy(force=True)
