"""The loss for autograd and torch.func: backward, double backward, jvp and vmap.

First derivatives are those of :mod:`phrasechain.chain.operators`. Second derivatives use the plain recursion, which is
differentiable to any order. vmap folds its dimension into the batch of sequences.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phrasechain.chain import operators
from phrasechain.chain.plain_loss import plain_loss
from phrasechain.chain.recursion import ChainScores
from phrasechain.chain.tracing import is_eager, is_transformed

_TENSORS = 6  # emissions, transitions, lengths, label_mask, q, skips: what every function here begins with


def loss(scores: ChainScores, q: Tensor | None) -> Tensor:
    """log Z (B,), or with ``q`` (B, T, K) the divergence KL(q ‖ p); q itself gets no gradient here."""
    inputs = scores.emissions, scores.transitions, scores.lengths, scores.label_mask, q, scores.skips
    by_kernel = operators.uses_kernel(scores.emissions)
    if is_transformed():
        value: Tensor = _TransformedLoss.apply(*inputs, by_kernel)[0]  # type: ignore[no-untyped-call]
    elif is_eager(scores.emissions):
        value = _Loss.apply(*inputs, by_kernel)  # type: ignore[no-untyped-call]
    else:
        value = operators.forward_op(*inputs, by_kernel)[0]
    return value


class _Loss(torch.autograd.Function):
    """Used in eager mode, where the overhead of a custom operator would exceed the cost of a small chain."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        value, *saved = operators.eager_forward(*inputs)
        ctx.save_for_backward(*inputs[:_TENSORS], *saved)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _gradients(ctx, grads[0], operators.eager_backward)


class _TransformedLoss(torch.autograd.Function):
    """For torch.func: the loss, and what its gradient needs of the forward pass."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return operators.forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_forward(*inputs[:_TENSORS])
        _keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _gradients(ctx, grads[0], operators.backward)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Σ gradient · tangent, by the gradient of each sequence for itself."""
        emissions, transitions, lengths, label_mask, q, skips = ctx.saved_tensors[:_TENSORS]
        B, T, K = emissions.shape
        transitions = transitions.expand(B, T - 1, K, K) if T > 1 else transitions
        skips = skips.expand(B, T - 2, K, K) if skips is not None and T > 2 else skips
        inputs = emissions, transitions, lengths, label_mask, q, skips
        gradients = _Gradient.apply(torch.ones_like(emissions[:, 0, 0]), *inputs, True)  # type: ignore[no-untyped-call]
        total = torch.zeros_like(emissions[:, 0, 0])
        for distance, tangent in enumerate((tangents[0], tangents[1], tangents[5])):
            if tangent is not None and distance < T:
                total = total + (gradients[distance] * tangent).flatten(1).sum(1)
        return total, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        folded = _fold(info.batch_size, in_dims, inputs[:_TENSORS], keep_shared=True)
        value, *saved = _TransformedLoss.apply(*folded, inputs[-1])  # type: ignore[no-untyped-call]
        return (value.unflatten(0, (info.batch_size, -1)), *saved), (0, None, None, None)


class _Gradient(torch.autograd.Function):
    """The gradients of emissions, transitions and skips; without what the forward pass saved, it runs again."""

    @staticmethod
    def forward(grad_loss: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, links = inputs[: _TENSORS + 1]
        saved = inputs[_TENSORS + 1 :] or operators.forward(*tensors, operators.uses_kernel(tensors[0]))[1:]
        return operators.backward(grad_loss, *tensors, *saved, links)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[: _TENSORS + 1])
        ctx.save_for_forward(*inputs[: _TENSORS + 1])
        ctx.links, ctx.count = inputs[_TENSORS + 1], len(inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return _second_gradients(ctx.saved_tensors, ctx.links, cotangents, ctx.count)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        function, primals = _plain_gradient(ctx.saved_tensors, ctx.links)
        given = [tangents[place] for place in _differentiable(ctx.saved_tensors)]
        known = [torch.zeros_like(x) if dx is None else dx for x, dx in zip(primals, given, strict=True)]
        primals = tuple(x.contiguous() for x in primals)  # one that was expanded cannot carry a tangent
        found = torch.func.jvp(function, primals, tuple(dx.contiguous() for dx in known))[1]
        return (*found, *(primals[0].new_zeros(0) for _ in range(3 - len(found))))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        N, (grad_loss, *tensors), links = info.batch_size, inputs[: _TENSORS + 1], inputs[_TENSORS + 1]
        grad_loss = _front(grad_loss, in_dims[0], N).flatten(0, 1)
        folded = _fold(N, in_dims[1:], tensors, keep_shared=False)
        gradients = _Gradient.apply(grad_loss, *folded, links)  # type: ignore[no-untyped-call]
        unfolded = []
        for gradient, given, dim in zip(gradients, (0, 1, 5), (in_dims[1], in_dims[2], in_dims[6]), strict=True):
            if gradient.dim() > 1:
                gradient = gradient.unflatten(0, (N, -1))
                shape = _front(tensors[given], dim, N).shape
                gradient = gradient if gradient.shape == shape else gradient.sum_to_size(shape)
            unfolded.append(gradient)
        return tuple(unfolded), tuple(0 if gradient.dim() > 1 else None for gradient in unfolded)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:_TENSORS], *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # no zeros for what has no gradient


def _gradients(ctx: Any, grad_loss: Tensor | None, run: Any) -> tuple[Tensor | None, ...]:
    """For the inputs of the loss; ``run`` is used unless a graph of the gradient is wanted."""
    if grad_loss is None:
        return (None,) * (_TENSORS + 1)
    given, wanted = ctx.saved_tensors, ctx.needs_input_grad
    tensors, saved, links = given[:_TENSORS], given[_TENSORS:], wanted[1] or wanted[5]
    if run is not operators.backward_op and (torch.is_grad_enabled() or is_transformed()):
        found = _Gradient.apply(grad_loss, *tensors, links, *saved)  # type: ignore[no-untyped-call]
    else:
        found = run(grad_loss, *tensors, *saved, links)
    return found[0], found[1] if wanted[1] else None, None, None, None, found[2] if wanted[5] else None, None


def _differentiable(tensors: tuple[Any, ...]) -> list[int]:
    """Places of grad_loss, emissions, transitions and skips among the saved."""
    return [0, 1, 2] if tensors[6] is None else [0, 1, 2, 6]


def _plain_gradient(tensors: tuple[Any, ...], links: bool) -> tuple[Any, tuple[Tensor, ...]]:
    """The gradient as a function that torch.func can follow, and its arguments."""
    lengths, label_mask, q = tensors[3:6]

    def value(emissions: Tensor, transitions: Tensor, skips: Tensor | None = None) -> Tensor:
        return plain_loss(ChainScores(emissions, transitions, lengths, label_mask, skips), q)

    def gradient(grad_loss: Tensor, *scores: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.func.vjp(value, *scores)[1](grad_loss)
        return found if links else found[:1]

    return gradient, tuple(tensors[place] for place in _differentiable(tensors))


def _second_gradients(tensors: tuple[Any, ...], links: bool, cotangents: tuple[Any, ...], count: int) -> Any:
    function, primals = _plain_gradient(tensors, links)
    result = torch.func.vjp(function, *primals)
    value, pull = result[0], result[1]
    given = [torch.zeros_like(x) if dx is None else dx for x, dx in zip(value, cotangents, strict=False)]
    found: list[Tensor | None] = [None] * count
    for place, gradient in zip(_differentiable(tensors), pull(tuple(given)), strict=True):
        found[place] = gradient
    return tuple(found)


def _front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """With the axis of vmap in front."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _fold(size: int, in_dims: tuple[Any, ...], tensors: Any, keep_shared: bool) -> list[Tensor | None]:
    """The arguments with the axis of vmap taken into that of the sequences."""
    B = _front(tensors[0], in_dims[0], size).shape[1]
    folded: list[Tensor | None] = []
    for tensor, dim in zip(tensors, in_dims, strict=False):
        if tensor is not None and not (keep_shared and dim is None and tensor.dim() == 4 and len(tensor) == 1):
            tensor = _front(tensor, dim, size)
            tensor = tensor.expand(size, B, *tensor.shape[2:]).flatten(0, 1).contiguous()
        folded.append(tensor)
    return folded


def _keep_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[: _TENSORS + 1])
    ctx.links, ctx.count = inputs[-1], len(inputs)


operators.forward_op.register_autograd(
    lambda ctx, *grads: _gradients(ctx, grads[0], operators.backward_op), setup_context=_keep
)
operators.backward_op.register_autograd(
    lambda ctx, *grads: _second_gradients(ctx.saved_tensors, ctx.links, grads, ctx.count), setup_context=_keep_gradient
)
