"""How well a region follows another: τ(k→k'), the score of phrase t-1 at region k and phrase t at region k'.

Only neighbouring phrases of a caption are linked: a *link* is the pair of phrase t-1 and phrase t, and all of a batch's
links are computed one after the other, without the padding of shorter chains.

Axes: I images, B captions, T phrases in a chain, K regions, D features, L links, h hidden units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phrasechain.core.boxes import area_xyxy, centre_xyxy
from phrasechain.model.batch import Batch
from phrasechain.model.scores import spread, widen

_CHUNK = 1 << 18  # pairs of regions that are looked at together: they stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Links:
    """The neighbouring phrases of a batch."""

    left: Tensor  # (L,) the place of phrase t-1 among the phrases; phrase t stands behind it
    caption: Tensor  # (L,)
    step: Tensor  # (L,) t-1
    image: Tensor  # (L,)

    @staticmethod
    def of(batch: Batch) -> Links:
        left = (batch.phrase_step + 1 < batch.lengths[batch.phrase_caption]).nonzero()[:, 0]
        caption = batch.phrase_caption[left]
        return Links(left, caption, batch.phrase_step[left], batch.caption_image[caption])

    def to_chains(self, values: Tensor, batch: Batch) -> Tensor:
        """One row per link, (L, ...), as (B, T-1, ...) with zeros past each chain's end."""
        chains = values.new_zeros(len(batch.lengths), batch.steps - 1, *values.shape[1:])
        return chains.index_put((self.caption, self.step), values)


class PaperTransition(nn.Module):
    """τ = w·relu(A r_k + B r_k' + C ctx) + b, the paper's two-layer network on [r_k ; r_k' ; ctx].

    Without context it is one (K, K) per image.
    """

    def __init__(self, region_dimension: int, text_dimension: int, context_dimension: int, hidden: int = 16) -> None:
        super().__init__()
        self.a = nn.Linear(region_dimension, hidden)
        self.b = nn.Linear(region_dimension, hidden, bias=False)
        self.c = nn.Linear(context_dimension, hidden, bias=False) if context_dimension else None
        self.out = nn.Linear(hidden, 1)

    def forward(self, regions: Tensor, phrases: Tensor, context: Tensor | None, batch: Batch) -> Tensor:
        """Regions (N, D) and contexts (B, T-1, c) give (B, T-1, K, K), or (B, 1, K, K) without context."""
        before, after = (spread(layer(regions), batch.region_mask) for layer in (self.a, self.b))  # (I, K, h)
        if self.c is None or context is None:
            return self._scores(before, after)[batch.caption_image, None]
        links = Links.of(batch)
        hint = self.c(context)[links.caption, links.step]  # (L, h)
        scores = self._scores(before[links.image] + hint[:, None], after[links.image])  # (L, K, K)
        return links.to_chains(scores, batch)

    def _scores(self, before: Tensor, after: Tensor) -> Tensor:
        return relu_pairs(widen(before), widen(after), self.out.weight[0]) + self.out.bias


def relu_pairs(before: Tensor, after: Tensor, weight: Tensor) -> Tensor:
    """Σ_j w_j relu(before[l,k,j] + after[l,k',j]): (L, K, h), (L, K, h) and (h,) to (L, K, K).

    The (L, K, K, h) of its hidden units is never built: units are added up one by one, a few links at a time.
    """
    with torch.autocast(before.device.type, enabled=False):
        scores: Tensor = _ReluPairs.apply(before, after, weight)  # type: ignore[no-untyped-call]
    return scores


class _ReluPairs(torch.autograd.Function):
    """relu(a + b) = max(a, −b) + b, whose last term does not depend on k; the gradient passes where a + b > 0."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, after: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(before, after, weight)
        L, K, _ = before.shape
        scores = (after @ weight)[:, None, :].repeat(1, K, 1)  # (L, K, K)
        units, factors = _by_unit(before, -after), weight.tolist()
        for rows in _chunks(L, K):
            larger = torch.empty_like(scores[rows])
            for (first, second), factor in zip(units, factors, strict=True):
                torch.maximum(first[rows, :, None], second[rows, None, :], out=larger)
                scores[rows].add_(larger, alpha=factor)
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before, after, weight = ctx.saved_tensors
        L, K, h = before.shape
        over_after, over_before = grad.new_empty(h, L, K), grad.new_empty(h, L, K)  # what passes, summed over k' and k
        units = _by_unit(before, after)
        for rows in _chunks(L, K):
            unit, passed = torch.empty_like(grad[rows]), torch.empty_like(grad[rows])  # (l, K, K)
            for place, (first, second) in enumerate(units):
                torch.add(first[rows, :, None], second[rows, None, :], out=unit)
                torch.ops.aten.threshold_backward.grad_input(grad[rows], unit, 0, grad_input=passed)
                torch.sum(passed, 2, out=over_after[place, rows])
                torch.sum(passed, 1, out=over_before[place, rows])
        sums = over_after.permute(1, 2, 0), over_before.permute(1, 2, 0)  # (L, K, h)
        grad_weight = (sums[0] * before).sum((0, 1)) + (sums[1] * after).sum((0, 1))
        return sums[0] * weight, sums[1] * weight, grad_weight


def _by_unit(before: Tensor, after: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(L, K) of each hidden unit, contiguous."""
    units = zip(before.permute(2, 0, 1).contiguous(), after.permute(2, 0, 1).contiguous(), strict=True)
    return list(units)


def _chunks(links: int, regions: int) -> list[slice]:
    size = max(1, _CHUNK // (regions * regions))
    return [slice(start, start + size) for start in range(0, links, size)]


class GeometricTransition(nn.Module):
    """The paper's transition and what the places of two regions say, weighed by what the caption says of the phrases:

    τ = paper(k, k') + s·(Σ_m g_m relu(W φ(k, k') + b)_m + Σ_j e_j (A' r_k)_j (B' r_k')_j)

    φ are the pair's geometric features; the gates g and e are a small network of [p_{t-1} ; p_t ; ctx], so that "his
    shirt" after "a man" can ask for a region inside the other, and "a woman" for one beside it. s begins at 0: training
    sets out from the paper's transition.
    """

    def __init__(self, region_dimension: int, text_dimension: int, context_dimension: int, hidden: int = 16) -> None:
        super().__init__()
        self.paper = PaperTransition(region_dimension, text_dimension, context_dimension, hidden)
        self.shapes = nn.Linear(PAIR_FEATURES, 2 * hidden)
        self.before = nn.Linear(region_dimension, hidden)
        self.after = nn.Linear(region_dimension, hidden)
        text = 2 * text_dimension + context_dimension
        self.gates = nn.Sequential(nn.Linear(text, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, 3 * hidden))
        self.strength = nn.Parameter(torch.zeros(1))

    def forward(self, regions: Tensor, phrases: Tensor, context: Tensor | None, batch: Batch) -> Tensor:
        """Regions (N, D), phrases (P, d) and contexts (B, T-1, c) give (B, T-1, K, K)."""
        links = Links.of(batch)
        text = [phrases[links.left], phrases[links.left + 1]]
        text += [] if context is None else [context[links.caption, links.step]]
        gates = widen(self.gates(torch.cat(text, -1))) * self.strength  # (L, 3h)
        of_shapes, of_contents = gates.tensor_split([self.shapes.out_features], -1)  # (L, 2h), (L, h)
        features = pair_features_xyxy(batch.boxes, batch.sizes).to(self.shapes.weight)  # (I, K, K, F)
        scores = gated_shapes(of_shapes, self.shapes.weight, self.shapes.bias, features, links.image)  # (L, K, K)
        before = spread(widen(self.before(regions)), batch.region_mask)[links.image] * of_contents[:, None]  # (L, K, h)
        after = spread(widen(self.after(regions)), batch.region_mask)[links.image]
        with torch.autocast(scores.device.type, enabled=False):
            scores = torch.baddbmm(scores, before, after.transpose(1, 2))
        paper: Tensor = self.paper(regions, phrases, context, batch)
        return paper + links.to_chains(scores, batch)


def gated_shapes(gates: Tensor, weight: Tensor, bias: Tensor, features: Tensor, image: Tensor) -> Tensor:
    """Σ_m g[l,m] relu(W φ[image of l] + b)_m: gates (L, m), W (m, F), b (m,), φ (I, K, K, F) to (L, K, K).

    The hidden units exist for one image at a time, and are computed again for the gradient.
    """
    rows = [(image == number).nonzero()[:, 0] for number in range(len(features))]  # the links of each image
    with torch.autocast(gates.device.type, enabled=False):
        inputs = gates, weight, bias, features.flatten(1, 2), rows
        scores: Tensor = _GatedShapes.apply(*inputs)  # type: ignore[no-untyped-call]
    return scores.view(len(gates), *features.shape[1:3])


class _GatedShapes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, features: Tensor, rows: list[Tensor]) -> Tensor:
        ctx.save_for_backward(gates, weight, bias, features)
        ctx.rows = rows
        scores = gates.new_empty(len(gates), features.shape[1])  # (L, K·K)
        for links, pairs in zip(rows, features, strict=True):
            if len(links):
                scores[links] = gates[links] @ torch.addmm(bias, pairs, weight.T).relu_().T
        return scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        gates, weight, bias, features = ctx.saved_tensors
        grad_gates, grad_weight, grad_bias = (torch.zeros_like(each) for each in (gates, weight, bias))
        for links, pairs in zip(ctx.rows, features, strict=True):
            if len(links):
                units, given = torch.addmm(bias, pairs, weight.T).relu_(), grad[links]  # (K·K, m), (l, K·K)
                grad_gates[links] = given @ units
                grad_units = (given.T @ gates[links]).masked_fill_(units == 0, 0.0)  # (K·K, m)
                grad_weight.addmm_(grad_units.T, pairs)
                grad_bias += grad_units.sum(0)
        return grad_gates, grad_weight, grad_bias, None, None


PAIR_FEATURES = 10


def pair_features_xyxy(boxes: Tensor, sizes: Tensor) -> Tensor:
    """How box k' lies to box k: boxes (I, K, 4) in images of ``sizes`` (I, 2) to (I, K, K, 10).

    The way from centre to centre, by the first box's sides (in asinh, since it may be a speck) and by the image's;
    the log ratios of widths and heights; IoU, the shares of the first and of the second box that the other covers, and
    whether they are the same.
    """
    first, second = boxes[:, :, None], boxes[:, None]  # (I, K, 1, 4), (I, 1, K, 4)
    way = centre_xyxy(second) - centre_xyxy(first)  # (I, K, K, 2)
    sides, other_sides = ((each[..., 2:] - each[..., :2]).clamp(min=1.0) for each in (first, second))
    top_left = torch.maximum(first[..., :2], second[..., :2])
    overlap = area_xyxy(torch.cat([top_left, torch.minimum(first[..., 2:], second[..., 2:])], -1))  # (I, K, K)
    area, other_area = sides.prod(-1), other_sides.prod(-1)
    shares = torch.stack([overlap / (area + other_area - overlap), overlap / area, overlap / other_area], -1)
    same = torch.eye(boxes.shape[1], device=boxes.device).expand(len(boxes), -1, -1)[..., None]
    lengths = torch.log(other_sides / sides)
    return torch.cat([torch.asinh(way / sides), way / sizes[:, None, None], lengths, shares, same], -1)


TRANSITIONS: dict[str, type[PaperTransition] | type[GeometricTransition]] = {
    "paper": PaperTransition,
    "geometric": GeometricTransition,
}
