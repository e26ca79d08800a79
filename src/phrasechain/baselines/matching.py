"""Which phrase takes which region when no region may be taken twice: a bipartite matching with relations, as a linear
program.

With scores W of T phrases and K regions, and for some pairs (i, j) of phrases scores S of pairs of their candidates,

    max  Σ_tk W_tk y_tk + Σ_(i,j) Σ_ab S_ab z_ab        0 ≤ y, z ≤ 1
    Σ_k y_tk = 1 for each phrase,        Σ_t y_tk ≤ 1 for each region,
    z_ab ≤ y_ia,   z_ab ≤ y_jb,   z_ab ≥ y_ia + y_jb − 1,   Σ_ab z_ab ≤ 1.

Without relations the solution is integral, and an assignment by the Hungarian method. With them it may be fractional.
There are more phrases than regions at times; then Σ_t y_tk ≤ 1 cannot hold and is left out.

Only regions among a phrase's T best, or among its candidates in a relation, get a variable: mass anywhere else could
move to one of the T best, of which the other phrases leave one free, and would score no less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError

Array = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Relation:
    """Two phrases, some regions of each, and the scores of taking one with the other; those are ≥ 0."""

    left: int
    right: int
    left_regions: Places  # (A,)
    right_regions: Places  # (B,)
    scores: Array  # (A, B)


@dataclass(frozen=True, slots=True)
class Matching:
    """The best y, the z of each relation, and their score."""

    y: Array  # (T, K)
    z: tuple[Array, ...]  # each (A, B)
    score: float

    @property
    def is_integral(self) -> bool:
        """Whether every phrase takes one region whole."""
        return bool((self.y.max(1) > 1 - 1e-6).all())


def match(scores: Array, relations: Sequence[Relation] = ()) -> Matching:
    """The best matching of (T, K) scores."""
    if relations:
        return solve_program(scores, relations)
    y = np.zeros_like(scores)
    y[assign(scores)] = 1.0
    return Matching(y, (), float((scores * y).sum()))


def assign(scores: Array) -> tuple[Places, Places]:
    """Every phrase and its region in the best assignment; each phrase's best region where there are too few."""
    from scipy.optimize import linear_sum_assignment

    T, K = scores.shape
    if T > K:
        return np.arange(T), scores.argmax(1)
    phrases, regions = linear_sum_assignment(scores, maximize=True)
    return phrases, regions


def best_regions(matching: Matching, scores: Array) -> Places:
    """A region for each phrase, (T,): the assignment of most mass, of higher scores where that is the same."""
    spread = np.ptp(scores) or 1.0
    return assign(matching.y + 1e-6 * scores / spread)[1]


def gold_assignment(iou: Array, positive: float) -> Places:
    """A region of IoU ≥ ``positive`` for as many phrases as can have one of their own, −1 for the others: (T,).

    Of all such assignments, the one of highest total IoU.
    """
    from scipy.optimize import linear_sum_assignment

    worth = np.where(iou >= positive, len(iou) + iou, 0.0)  # one more phrase outweighs any IoU
    regions = np.full(len(iou), -1)
    phrases, places = linear_sum_assignment(worth, maximize=True)
    has_one = worth[phrases, places] > 0
    regions[phrases[has_one]] = places[has_one]
    return regions


def solve_program(scores: Array, relations: Sequence[Relation]) -> Matching:
    """The linear program by HiGHS."""
    from scipy.optimize import linprog

    T, K = scores.shape
    is_kept = _kept(scores, relations)
    phrase, region = is_kept.nonzero()
    place = np.full((T, K), -1)
    place[phrase, region] = np.arange(len(phrase))
    starts = len(phrase) + np.cumsum([0, *(relation.scores.size for relation in relations)])
    objective = np.concatenate([scores[phrase, region], *(relation.scores.ravel() for relation in relations)])
    A, b = _upper_bounds(place, relations, starts)
    once = _sparse([(phrase, np.arange(len(phrase)), 1.0)], (T, len(objective)))
    found = linprog(-objective, A, b, once, np.ones(T), bounds=(0, 1), method="highs")
    if found.x is None:
        raise DataError(f"the matching of {T} phrases and {K} regions has no solution: {found.message}")
    y = np.zeros((T, K))
    y[phrase, region] = found.x[: len(phrase)]
    z = [found.x[start:].ravel()[: each.scores.size] for start, each in zip(starts[:-1], relations, strict=True)]
    pairs = tuple(values.reshape(each.scores.shape) for values, each in zip(z, relations, strict=True))
    return Matching(y, pairs, -float(found.fun))


def _kept(scores: Array, relations: Sequence[Relation]) -> NDArray[np.bool_]:
    """Which phrases and regions get a variable: (T, K)."""
    T, K = scores.shape
    kept = np.zeros((T, K), dtype=bool)
    best = np.argpartition(-scores, min(T, K) - 1, axis=1)[:, : min(T, K)]
    kept[np.arange(T)[:, None], best] = True
    for relation in relations:
        kept[relation.left, relation.left_regions] = True
        kept[relation.right, relation.right_regions] = True
    return kept


def _upper_bounds(place: Places, relations: Sequence[Relation], starts: Places) -> tuple[object, Array]:
    """All constraints A x ≤ b; ``place`` (T, K) is that of each y in x, −1 for none, ``starts`` those of the z."""
    T, K = place.shape
    parts, bounds, rows = [], [], 0
    if T <= K:
        shared = place.T[(place >= 0).sum(0) > 1]  # the regions that two phrases could take: (rows, T)
        taken = shared >= 0
        parts.append((taken.nonzero()[0], shared[taken], 1.0))
        bounds, rows = [np.ones(len(shared))], len(shared)
    for start, relation in zip(starts[:-1], relations, strict=True):
        left, right = np.broadcast_arrays(
            place[relation.left, relation.left_regions][:, None], place[relation.right, relation.right_regions]
        )
        left, right, z = left.ravel(), right.ravel(), start + np.arange(relation.scores.size)
        under_left, under_right, over = (rows + number * len(z) + np.arange(len(z)) for number in range(3))
        parts += [(under_left, z, 1.0), (under_left, left, -1.0), (under_right, z, 1.0), (under_right, right, -1.0)]
        parts += [(over, left, 1.0), (over, right, 1.0), (over, z, -1.0)]
        rows += 3 * len(z)
        parts.append((np.full(len(z), rows), z, 1.0))
        rows += 1
        bounds += [np.zeros(2 * len(z)), np.ones(len(z) + 1)]
    return _sparse(parts, (rows, int(starts[-1]))), np.concatenate(bounds)


def _sparse(parts: Sequence[tuple[Places, Places, float]], shape: tuple[int, int]) -> object:
    """A sparse matrix from rows, columns and the value that they share."""
    from scipy.sparse import csr_array

    rows, columns = (np.concatenate([part[axis] for part in parts]) for axis in (0, 1))
    values = np.concatenate([np.full(len(part[0]), part[2]) for part in parts])
    return csr_array((values, (rows, columns)), shape=shape)
