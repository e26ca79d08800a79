"""Operators that are tuned for the CPU, each beside the plain torch that it equals and that runs on other devices.

On a CPU memory is what costs: the fused ones work on pieces that stay in the processor's cache, overwrite what nobody
needs, and compute again in the backward pass what would be large to keep. Their Python loops would leave a GPU idle.

Axes: P phrases, N regions of all images, M pairs of a phrase and a region of its image, R rank, E edges, K regions,
h hidden units, I images, F geometric features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK = 1 << 18  # pairs of regions that are computed together: they stay in the processor's cache


def runs_on_cpu(tensor: Tensor) -> bool:
    """Whether the fused operator serves, and not the plain one."""
    return tensor.device.type == "cpu"


def _run(fused: type[torch.autograd.Function], plain: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """The operator in the inputs' own precision, also under autocast."""
    with torch.autocast(inputs[0].device.type, enabled=False):
        result: Tensor = fused.apply(*inputs) if runs_on_cpu(inputs[0]) else plain(*inputs)  # type: ignore[no-untyped-call]
    return result


# ---- relu and dropout ----


def relu_dropout(values: Tensor, kept: Tensor | None) -> Tensor:
    """relu(x), zero where ``kept`` is false. On a CPU ``values`` are overwritten."""
    return _run(_ReluDropout, plain_relu_dropout, values, kept)


def plain_relu_dropout(values: Tensor, kept: Tensor | None) -> Tensor:
    return values.relu() if kept is None else values.relu() * kept


class _ReluDropout(torch.autograd.Function):
    """Where the result is above 0 the gradient passes, so that nothing else need be kept."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, kept: Tensor | None) -> Tensor:
        values.relu_()
        if kept is not None:
            values.mul_(kept)
        ctx.mark_dirty(values)
        ctx.save_for_backward(values)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (values,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grad, values, 0), None


# ---- products of phrases and regions ----


def pair_product(phrases: Tensor, regions: Tensor, starts: Tensor, counts: Tensor) -> Tensor:
    """u ∘ v of every phrase's u (P, R) with the v (N, R) of each region of its image: (M, R), phrase by phrase.

    The regions of a phrase's image are ``counts`` (P,) rows from ``starts`` (P,) on.
    """
    return _run(_PairProduct, plain_pair_product, phrases, regions, starts, counts)


def plain_pair_product(phrases: Tensor, regions: Tensor, starts: Tensor, counts: Tensor) -> Tensor:
    phrase = torch.repeat_interleave(counts)  # (M,)
    region = torch.arange(len(phrase), device=phrase.device) + (starts - counts.cumsum(0) + counts)[phrase]
    return phrases[phrase] * regions[region]


class _PairProduct(torch.autograd.Function):
    """One phrase at a time, so that the regions of an image stay in the cache and are never copied."""

    @staticmethod
    def forward(ctx: Any, phrases: Tensor, regions: Tensor, starts: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(phrases, regions)
        ctx.ranges = list(zip(starts.tolist(), counts.tolist(), strict=True))
        product = regions.new_empty(int(counts.sum()), regions.shape[1])
        end = 0
        for phrase, (start, count) in zip(phrases, ctx.ranges, strict=True):
            torch.mul(regions[start : start + count], phrase, out=product[end : end + count])
            end += count
        return product

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        phrases, regions = ctx.saved_tensors
        grad_phrases, grad_regions = torch.empty_like(phrases), torch.zeros_like(regions)
        end = 0
        for index, (start, count) in enumerate(ctx.ranges):
            part, rows = grad[end : end + count], slice(start, start + count)
            torch.sum(part * regions[rows], 0, out=grad_phrases[index])
            grad_regions[rows].addcmul_(part, phrases[index])
            end += count
        return grad_phrases, grad_regions, None, None


# ---- the paper's transition ----


def relu_pairs(before: Tensor, after: Tensor, weight: Tensor) -> Tensor:
    """Σ_j w_j relu(before[e,k,j] + after[e,k',j]): (E, K, h), (E, K, h) and (h,) to (E, K, K)."""
    return _run(_ReluPairs, plain_relu_pairs, before, after, weight)


def plain_relu_pairs(before: Tensor, after: Tensor, weight: Tensor) -> Tensor:
    return (before[:, :, None] + after[:, None]).relu() @ weight  # (E, K, K, h) to (E, K, K)


class _ReluPairs(torch.autograd.Function):
    """Hidden units are added up one by one, a few edges at a time: the (E, K, K, h) of all units is never built.

    relu(a + b) = max(a, −b) + b, whose last term does not depend on k; the gradient passes where a + b > 0.
    """

    @staticmethod
    def forward(ctx: Any, before: Tensor, after: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(before, after, weight)
        E, K, _ = before.shape
        scores = (after @ weight)[:, None, :].repeat(1, K, 1)  # (E, K, K)
        units, factors = _by_unit(before, -after), weight.tolist()
        for rows in _chunks(E, K):
            larger = torch.empty_like(scores[rows])
            for (first, second), factor in zip(units, factors, strict=True):
                torch.maximum(first[rows, :, None], second[rows, None, :], out=larger)
                scores[rows].add_(larger, alpha=factor)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before, after, weight = ctx.saved_tensors
        E, K, h = before.shape
        over_after, over_before = grad.new_empty(h, E, K), grad.new_empty(h, E, K)  # what passes, summed over k' and k
        units = _by_unit(before, after)
        for rows in _chunks(E, K):
            unit, passed = torch.empty_like(grad[rows]), torch.empty_like(grad[rows])  # (e, K, K)
            for place, (first, second) in enumerate(units):
                torch.add(first[rows, :, None], second[rows, None, :], out=unit)
                torch.ops.aten.threshold_backward.grad_input(grad[rows], unit, 0, grad_input=passed)
                torch.sum(passed, 2, out=over_after[place, rows])
                torch.sum(passed, 1, out=over_before[place, rows])
        sums = over_after.permute(1, 2, 0), over_before.permute(1, 2, 0)  # (E, K, h)
        grad_weight = (sums[0] * before).sum((0, 1)) + (sums[1] * after).sum((0, 1))
        return sums[0] * weight, sums[1] * weight, grad_weight


def _by_unit(before: Tensor, after: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(E, K) of each hidden unit, contiguous."""
    return list(zip(before.permute(2, 0, 1).contiguous(), after.permute(2, 0, 1).contiguous(), strict=True))


def _chunks(edges: int, regions: int) -> list[slice]:
    size = max(1, _CHUNK // (regions * regions))
    return [slice(start, start + size) for start in range(0, edges, size)]


# ---- the geometric transition ----


def gated_geometry(gates: Tensor, weight: Tensor, bias: Tensor, features: Tensor, image: Tensor) -> Tensor:
    """Σ_j g[e,j] relu(W φ[image of e] + b)_j: gates (E, h), W (h, F), b (h,), φ (I, K, K, F) to (E, K, K)."""
    return _run(_GatedGeometry, plain_gated_geometry, gates, weight, bias, features, image)


def plain_gated_geometry(gates: Tensor, weight: Tensor, bias: Tensor, features: Tensor, image: Tensor) -> Tensor:
    units = (features @ weight.T + bias).relu()[image]  # (E, K, K, h)
    return (units @ gates[:, None, :, None])[..., 0]


class _GatedGeometry(torch.autograd.Function):
    """The hidden units exist for one image at a time, and are computed again for the gradient."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor, features: Tensor, image: Tensor) -> Tensor:
        ctx.save_for_backward(gates, weight, bias, features, image)
        scores = gates.new_empty(len(gates), features.shape[1] ** 2)  # (E, K·K)
        for edges, pairs in _by_image(image, features):
            scores[edges] = gates[edges] @ torch.addmm(bias, pairs, weight.T).relu_().T
        return scores.view(len(gates), *features.shape[1:3])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gates, weight, bias, features, image = ctx.saved_tensors
        grad_gates, grad_weight, grad_bias = (torch.zeros_like(each) for each in (gates, weight, bias))
        for edges, pairs in _by_image(image, features):
            units, given = torch.addmm(bias, pairs, weight.T).relu_(), grad[edges].flatten(1)  # (K·K, h), (e, K·K)
            grad_gates[edges] = given @ units
            grad_units = (given.T @ gates[edges]).masked_fill_(units == 0, 0.0)  # (K·K, h)
            grad_weight.addmm_(grad_units.T, pairs)
            grad_bias += grad_units.sum(0)
        return grad_gates, grad_weight, grad_bias, None, None


def _by_image(image: Tensor, features: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The edges (e,) of each image that has some, and its geometric features (K·K, F)."""
    for number, pairs in enumerate(features.flatten(1, 2)):
        if len(edges := (image == number).nonzero()[:, 0]):
            yield edges, pairs


# ---- one more label ----


def border(inner: Tensor, out_of: Tensor, into: Tensor, both: Tensor) -> Tensor:
    """Transitions with one more label, the last: (…, K, K) and (…) each to (…, K + 1, K + 1).

    ``out_of`` scores the last label followed by any other, ``into`` any other followed by it, ``both`` it twice.
    """
    return _run(_Border, plain_border, inner, out_of, into, both)


def plain_border(inner: Tensor, out_of: Tensor, into: Tensor, both: Tensor) -> Tensor:
    K = inner.shape[-1]
    right = into[..., None, None].expand(*into.shape, K, 1)
    below = torch.cat([out_of[..., None, None].expand(*out_of.shape, 1, K), both[..., None, None]], -1)
    return torch.cat([torch.cat([inner, right], -1), below], -2)


class _Border(torch.autograd.Function):
    """One copy forward, none backward."""

    @staticmethod
    def forward(ctx: Any, inner: Tensor, out_of: Tensor, into: Tensor, both: Tensor) -> Tensor:
        *shape, K, _ = inner.shape
        whole = inner.new_empty(*shape, K + 1, K + 1)
        whole[..., :K, :K] = inner
        whole[..., K, :K] = out_of[..., None]
        whole[..., :K, K] = into[..., None]
        whole[..., K, K] = both
        return whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        K = grad.shape[-1] - 1
        return grad[..., :K, :K], grad[..., K, :K].sum(-1), grad[..., :K, K].sum(-1), grad[..., K, K]
