"""The metrics of predicted boxes: pure functions of tensors, one row per scored phrase.

N phrases, M gold boxes, C categories, I images. A phrase's boxes are packed: ``boxes`` (M, 4) with ``owner`` (M,), the
phrase of each box; ``merged`` (N, 4) is the smallest box around a phrase's boxes. The functions say per phrase what is
right; ``bootstrap_means`` turns that into means with their denominators and confidence intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phrasechain.core.boxes import centre_xyxy, contains_xy, iou_xyxy, max_by_group

#: The IoU from which a box is right, in every protocol of the field.
RIGHT = 0.5
#: The rank of a region that is not there: larger than every rank.
NEVER = torch.iinfo(torch.int64).max
_COUNTS_AT_ONCE = 1 << 22


def any_box_iou_xyxy(predicted: Tensor, boxes: Tensor, owner: Tensor) -> Tensor:
    """The IoU of each predicted box (N, 4) with the best of its phrase's boxes: (N,).

    >>> boxes, owner = torch.tensor([[0.0, 0, 2, 2], [5.0, 5, 7, 7], [0.0, 0, 1, 1]]), torch.tensor([0, 0, 1])
    >>> any_box_iou_xyxy(torch.tensor([[5.0, 5, 7, 6], [0.0, 0, 2, 2]]), boxes, owner)
    tensor([0.5000, 0.2500])
    """
    return max_by_group(iou_xyxy(predicted[owner], boxes), owner, len(predicted))


def any_box_pointing_xyxy(predicted: Tensor, boxes: Tensor, owner: Tensor) -> Tensor:
    """Whether the centre of each predicted box (N, 4) lies in one of its phrase's boxes: (N,) bool."""
    inside = contains_xy(boxes, centre_xyxy(predicted[owner]))
    return max_by_group(inside.to(torch.uint8), owner, len(predicted)).bool()


def merged_box_pointing_xyxy(predicted: Tensor, merged: Tensor) -> Tensor:
    """Whether the centre of each predicted box (N, 4) lies in its phrase's merged box: (N,) bool."""
    return contains_xy(merged, centre_xyxy(predicted))


def first_hits_xyxy(regions: Tensor, counts: Tensor, boxes: Tensor, owner: Tensor, threshold: float = RIGHT) -> Tensor:
    """The rank, from 0, of the first region with IoU ≥ threshold with one of its phrase's boxes, else ``NEVER``: (N,).

    ``regions`` are the ranked regions of all phrases one after the other, ``counts`` (N,) how many each phrase has.
    ``ranks < k`` is recall at k and ``ranks < NEVER`` the upper bound of these regions. With ``merged`` as boxes and
    ``torch.arange(N)`` as owner it is the merged-box protocol.

    >>> regions = torch.tensor([[9.0, 9, 10, 10], [0.0, 0, 2, 1], [0.0, 0, 9, 9]])
    >>> ranks = first_hits_xyxy(regions, torch.tensor([2, 1]), torch.tensor([[0.0, 0, 2, 2]] * 2), torch.arange(2))
    >>> (ranks < 1).tolist(), (ranks < 5).tolist()
    ([False, False], [True, False])
    """
    starts = counts.cumsum(0) - counts
    pairs = counts[owner]  # (M,) a box meets every region of its phrase
    box = torch.repeat_interleave(torch.arange(len(boxes)), pairs)
    rank = torch.arange(len(box)) - (pairs.cumsum(0) - pairs)[box]
    hit = iou_xyxy(regions[starts[owner][box] + rank], boxes[box]) >= threshold
    ranks = torch.full((len(counts),), NEVER)
    return ranks.scatter_reduce(0, owner[box][hit], rank[hit], "amin")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Ordered pairs of phrases of one caption that name different entities."""

    phrase: Tensor  # (P,)
    other: Tensor  # (P,)
    shared: Tensor  # (P,) bool: they have a category in common, so the other is a rival


def neighbours(caption: Tensor, entity: Tensor, categories: Tensor) -> Neighbours:
    """All pairs of phrases with the same ``caption`` (N,) and another ``entity`` (N,); ``categories`` (N, C) bool.

    >>> found = neighbours(torch.tensor([0, 0, 1]), torch.tensor([7, 8, 7]), torch.eye(3).bool())
    >>> found.phrase.tolist(), found.other.tolist(), found.shared.tolist()
    ([0, 1], [1, 0], [False, False])
    """
    order = caption.argsort(stable=True)
    ahead = list(_same_ahead(caption[order]))
    first, second = (order[torch.cat([pair[side] for pair in ahead])] for side in (0, 1))
    phrase, other = torch.cat([first, second]), torch.cat([second, first])
    differ = entity[phrase] != entity[other]
    phrase, other = phrase[differ], other[differ]
    return Neighbours(phrase, other, (categories[phrase] & categories[other]).any(-1))


def _same_ahead(sorted_values: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions i, i + d with the same value, for d = 1, 2, … while there are any (and at least once)."""
    for distance in range(1, max(2, len(sorted_values))):
        first = (sorted_values[distance:] == sorted_values[:-distance]).nonzero()[:, 0]
        yield first, first + distance
        if not len(first):
            return


def has_rival(near: Neighbours, count: int) -> Tensor:
    """Whether another phrase with a box in the caption, of another entity, shares a category: (count,) bool."""
    rival = torch.zeros(count, dtype=torch.bool)
    rival[near.phrase[near.shared]] = True
    return rival


def split_errors_xyxy(predicted: Tensor, merged: Tensor, right: Tensor, near: Neighbours) -> dict[str, Tensor]:
    """What the wrong phrases took instead, each error once: name to (N,) bool.

    "Took another phrase" means IoU ≥ 0.5 with that phrase's merged box; a rival's counts before another's.
    """
    took = iou_xyxy(predicted[near.phrase], merged[near.other]) >= RIGHT
    same, different = torch.zeros_like(right), torch.zeros_like(right)
    same[near.phrase[took & near.shared]] = True
    different[near.phrase[took & ~near.shared]] = True
    wrong = ~right
    return {
        "took another of the same category": wrong & same,
        "took another of another category": wrong & different & ~same,
        "other": wrong & ~same & ~different,
    }


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over phrases with its denominator, and a confidence interval over images; NaN where total is 0."""

    value: float
    sum: float
    total: int
    low: float
    high: float


def bootstrap_means(
    values: Tensor,
    counted: Tensor,
    image: Tensor,
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> list[Mean]:
    """The mean of each column of ``values`` (N, F) over its ``counted`` (N, F) phrases, with percentile intervals.

    Phrases of one image are not independent, so whole images (``image`` (N,), any numbers) are drawn with replacement:
    a resample is a vector of multinomial counts c over images, its mean Σ_i c_i·sum_i / Σ_i c_i·total_i.

    >>> right = torch.tensor([[1.0], [0.0], [1.0], [1.0]])
    >>> mean = bootstrap_means(right, torch.ones(4, 1, dtype=torch.bool), torch.tensor([0, 0, 1, 1]))[0]
    >>> mean.value, mean.total, mean.low, mean.high
    (0.75, 4, 0.5, 1.0)
    """
    weights = counted.double()
    sums = torch.stack([values.double() * weights, weights])  # (2, N, F)
    per_image = _sum_by_image(sums, image).numpy()  # (2, I, F)
    drawn = _resampled_means(per_image, resamples, seed)  # (R, F)
    totals = per_image.sum(1)  # (2, F)
    return [_mean(totals[0, column], totals[1, column], drawn[:, column], level) for column in range(totals.shape[1])]


def _sum_by_image(values: Tensor, image: Tensor) -> Tensor:
    """Add up the phrases of each image: (A, N, F) and (N,) to (A, I, F)."""
    names, index = np.unique(image.numpy(), return_inverse=True)
    per_image = values.new_zeros(values.shape[0], len(names), values.shape[2])
    return per_image.index_add_(1, torch.from_numpy(index), values)


def _resampled_means(per_image: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    images = per_image.shape[1]
    if images == 0:
        return np.empty((0, per_image.shape[2]))
    rng = np.random.default_rng(seed)
    uniform = np.full(images, 1 / images)
    at_once = max(1, _COUNTS_AT_ONCE // images)
    means = []
    for start in range(0, resamples, at_once):
        drawn = rng.multinomial(images, uniform, size=min(at_once, resamples - start)).astype(np.float64)
        sums, totals = drawn @ per_image[0], drawn @ per_image[1]
        means.append(np.divide(sums, totals, out=np.full_like(sums, nan), where=totals > 0))
    return np.concatenate(means) if means else np.empty((0, per_image.shape[2]))


def _mean(total_sum: float, total: float, drawn: NDArray[np.float64], level: float) -> Mean:
    if total == 0:
        return Mean(nan, 0.0, 0, nan, nan)
    drawn = drawn[~np.isnan(drawn)]  # a resample may hold no phrase of a rare kind
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]).tolist() if len(drawn) else (nan, nan)
    return Mean(float(total_sum / total), float(total_sum), int(total), low, high)


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Two systems on the same phrases: the mean of first - second, and the p-value of their equality."""

    difference: Mean
    first_only: int  # phrases that only the first has right
    second_only: int
    p_value: float


def paired_test(
    first: Tensor, second: Tensor, image: Tensor, *, resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> PairedTest:
    """Compare who is right, (N,) bool each, on the same phrases; ``image`` (N,) says which belong together.

    The p-value is of the two-sided sign-flip test over images: if neither system is better, swapping their predictions
    on an image is as likely as not, for each image by itself. A test over phrases (McNemar's) would take the phrases of
    an image for independent and call too much significant.
    """
    gain = first.double() - second.double()  # (N,)
    counted = torch.ones(len(gain), 1, dtype=torch.bool)
    mean = bootstrap_means(gain[:, None], counted, image, resamples=resamples, seed=seed, level=level)[0]
    per_image = _sum_by_image(gain[None, :, None], image).flatten().long().tolist()
    return PairedTest(mean, int((gain > 0).sum()), int((gain < 0).sum()), sign_flip_p_value(per_image))


def sign_flip_p_value(differences: list[int]) -> float:
    """P(|Σ ±d_i| ≥ |Σ d_i|) with independent fair signs, exactly.

    The d_i are whole numbers, so the distribution of the sum over all 2^n sign patterns is built by convolution, one
    image after the other: no random draws, no seed, and small p-values are as exact as large ones.

    >>> sign_flip_p_value([1, 1, 1])  # only +++ and --- are as far from 0
    0.25
    """
    observed = abs(sum(differences))
    mass = np.ones(1)  # of the sums -reach..reach
    for size in sorted(abs(difference) for difference in differences if difference):
        wider = np.zeros(len(mass) + 2 * size)
        wider[: len(mass)] = mass
        wider[2 * size :] += mass
        mass = wider / 2
    reach = len(mass) // 2
    return min(1.0, 2 * float(mass[reach + observed :].sum())) if observed else 1.0
