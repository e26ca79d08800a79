"""From scores to boxes: the region of each phrase, its probability, and alternatives.

Axes: B captions, T phrases in a chain, P phrases, K regions, n answers per caption.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from phrasechain.chain import ChainCRF
from phrasechain.core.boxes import clip_xyxy, decode_offsets_xyxy, iou_xyxy
from phrasechain.core.errors import require_name
from phrasechain.model.batch import Batch
from phrasechain.model.presence import with_absent_label, with_absent_mask
from phrasechain.model.scores import Scores

INDEPENDENT, CONSENSUS = "independent", "consensus"
_CHUNK = 1 << 22  # pairs of regions that consensus compares at once


@dataclass(frozen=True, slots=True)
class Decoded:
    """The prediction for each phrase."""

    region: Tensor  # (P,) int64
    boxes: Tensor  # (P, 4): its box, refined by its offsets and clipped to the image
    probabilities: Tensor  # (P, K): p of each region, 0 at padding; given that the photo shows what the phrase names
    refined: Tensor  # (P, K, 4): every region's box, refined and clipped
    presence: Tensor | None = None  # (P,): p that the photo shows it; None without the label ∅


def decode(scores: Scores, batch: Batch, method: str = "viterbi") -> Decoded:
    """Ground every phrase.

    - ``viterbi``: the most probable sequence of regions of the caption.
    - ``smoothing``: the argmax of each phrase's marginals.
    - ``independent``: the region of highest emission; probabilities are the softmax of the emissions.
    - ``consensus``: the box of highest expected agreement (minimum Bayes risk), see ``consensus_boxes``.

    Without a chain the first three are the same. Boxes are given presence. Viterbi's sequence is that of highest
    probability among those without the label ∅; the marginals of ``smoothing`` and ``consensus`` are those of the chain
    with it, p(k | not ∅) of the phrase by itself: a neighbour that is not there does not move its box.
    """
    require_name("decoder", method, DECODERS)
    with torch.no_grad():
        return DECODERS[method](scores, batch)


def decode_independently(scores: Scores, batch: Batch, method: str = "viterbi") -> Decoded:
    """Ground every phrase by the same decoder, but by itself: without transitions between the phrases.

    By ``consensus`` that is the consensus of the softmax of the emissions, by the others ``independent``.
    """
    return decode(replace(scores, transitions=None), batch, method)


def _viterbi(scores: Scores, batch: Batch) -> Decoded:
    region = batch.to_phrases(chain(scores, batch).viterbi()[0])
    return _of_regions(region, *marginals_and_presence(scores, batch), refine(scores, batch))


def _smoothing(scores: Scores, batch: Batch) -> Decoded:
    probabilities, presence = marginals_and_presence(scores, batch)
    return _of_regions(probabilities.argmax(-1), probabilities, presence, refine(scores, batch))


def _independent(scores: Scores, batch: Batch) -> Decoded:
    return _smoothing(replace(scores, transitions=None, skips=None), batch)


def _consensus(scores: Scores, batch: Batch) -> Decoded:
    (probabilities, presence), refined = marginals_and_presence(scores, batch), refine(scores, batch)
    region, boxes = consensus_boxes(probabilities, refined)
    return Decoded(region, boxes, probabilities, refined, presence)


DECODERS: dict[str, Callable[[Scores, Batch], Decoded]] = {
    "viterbi": _viterbi,
    "smoothing": _smoothing,
    INDEPENDENT: _independent,
    CONSENSUS: _consensus,
}


def _of_regions(region: Tensor, probabilities: Tensor, presence: Tensor | None, refined: Tensor) -> Decoded:
    boxes = refined.gather(1, region[:, None, None].expand(-1, 1, 4))[:, 0]
    return Decoded(region, boxes, probabilities, refined, presence)


def chain(scores: Scores, batch: Batch) -> ChainCRF:
    """The chain CRF over the regions of each caption's phrases; without transitions its steps are independent.

    The label ∅ is not among its labels: it is the chain given that the photo shows all of them.
    """
    return _chain(scores, batch, batch.label_mask)


def chain_with_absent(scores: Scores, batch: Batch) -> ChainCRF:
    """The chain CRF over the regions and, as the last label, ∅."""
    return _chain(with_absent_label(scores, batch), batch, with_absent_mask(batch.label_mask))


def _chain(scores: Scores, batch: Batch, labels: Tensor) -> ChainCRF:
    emissions, K = batch.to_chains(scores.emissions), scores.emissions.shape[1]
    transitions = emissions.new_zeros(K, K) if scores.transitions is None else scores.transitions
    return ChainCRF(emissions, transitions, batch.lengths, labels, validate=False, skips=scores.skips)


def marginals(scores: Scores, batch: Batch) -> Tensor:
    """The marginals p(y_t = k) of each phrase, given that the photo shows it: (P, K)."""
    return marginals_and_presence(scores, batch)[0]


def marginals_and_presence(scores: Scores, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """The marginals p(y_t = k | y_t ≠ ∅) of each phrase, (P, K), and p(y_t ≠ ∅), (P,), where there is a label ∅."""
    if scores.transitions is None:
        mask = batch.region_mask[batch.phrase_image]
        by_itself = scores.emissions.masked_fill(~mask, -torch.inf).softmax(-1)
        return by_itself, None if scores.presence is None else scores.presence.sigmoid()
    if scores.presence is None:
        return batch.to_phrases(chain(scores, batch).marginals), None
    every = batch.to_phrases(chain_with_absent(scores, batch).marginals)[:, :-1]  # (P, K)
    presence = every.sum(-1)
    return every / presence.clamp(min=torch.finfo(every.dtype).tiny)[:, None], presence.clamp(max=1.0)


def refine(scores: Scores, batch: Batch) -> Tensor:
    """Every region's box, refined by each phrase's offsets and clipped to the image: (P, K, 4)."""
    image = batch.phrase_image
    boxes = batch.boxes[image]  # (P, K, 4)
    if scores.offsets is not None:
        boxes = decode_offsets_xyxy(scores.offsets, boxes)
    return clip_xyxy(boxes, batch.sizes[image, None])


def consensus_boxes(probabilities: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The region of highest expected agreement and the median of the boxes that agree with it: (P,) and (P, 4).

    Agreement a = sigmoid(12 (IoU − 0.5)) is a smooth form of the metric. The region is argmax_k Σ_k' p(k') a(k, k');
    each side of its box is the median of that side over all boxes k', weighted by p(k') a(k, k'). A mean would be as
    often right, but pulls every box towards the middle. From (P, K) and (P, K, 4).
    """
    size = max(1, _CHUNK // boxes.shape[1] ** 2)
    chunks = zip(torch.split(probabilities, size), torch.split(boxes, size), strict=True)
    regions, medians = zip(*(_consensus_of_few(*chunk) for chunk in chunks), strict=True)
    return torch.cat(regions), torch.cat(medians)


def _consensus_of_few(probabilities: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    agreement = torch.sigmoid(12 * (iou_xyxy(boxes[:, :, None], boxes[:, None]) - 0.5))  # (P, K, K)
    expected = (agreement @ probabilities[..., None])[..., 0]  # (P, K)
    region = expected.masked_fill(probabilities == 0, -1.0).argmax(-1)
    rows = torch.arange(len(region), device=region.device)
    weight = probabilities * agreement[rows, region]  # (P, K)
    return region, _median(weight, boxes)


def _median(weight: Tensor, boxes: Tensor) -> Tensor:
    """The weighted median of each side: (P, K) and (P, K, 4) to (P, 4)."""
    sides, order = boxes.sort(1)
    weight = weight[..., None].expand_as(boxes).gather(1, order).cumsum(1)  # (P, K, 4)
    place = (weight < weight[:, -1:] / 2).sum(1, keepdim=True)
    return sides.gather(1, place)[:, 0]


def ranked(decoded: Decoded, batch: Batch, count: int) -> list[tuple[Tensor, Tensor]]:
    """The ``count`` most probable regions of each phrase: refined boxes (R, 4) and probabilities (R,).

    R is smaller for an image with fewer regions.
    """
    mask = batch.region_mask[batch.phrase_image]  # (P, K)
    keys = decoded.probabilities.masked_fill(~mask, -1.0)
    top, region = keys.topk(min(count, keys.shape[1]), -1)  # (P, R)
    boxes = decoded.refined.gather(1, region[..., None].expand(-1, -1, 4))
    counts = mask.sum(-1).tolist()
    return [(box[:n], p[:n].clamp(max=1.0)) for box, p, n in zip(boxes, top, counts, strict=True)]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The n best groundings of each caption, best first."""

    regions: Tensor  # (B, n, T) int64, 0 past a chain's end
    scores: Tensor  # (B, n), −inf where a caption has fewer than n
    probabilities: Tensor  # (B, n), p of the whole sequence


def kbest(scores: Scores, batch: Batch, count: int) -> Alternatives:
    """The ``count`` best sequences of regions of each caption, exactly."""
    with torch.no_grad():
        crf = chain(scores, batch)
        regions, score = crf.kbest(count)
        return Alternatives(regions, score, (score - crf.log_partition[:, None]).exp())
