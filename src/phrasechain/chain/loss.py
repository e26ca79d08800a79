"""log Z and KL(q ‖ p) as one custom operator with its gradient, so that ``torch.compile(fullgraph=True)`` works.

The compiled kernel computes float32 on a CPU where it was built, pure torch everything else. Second derivatives use
the plain recursion, which autograd can differentiate to any order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phrasechain.chain import kernel, scaled
from phrasechain.chain.recursion import ChainScores, contract, filters


def loss(scores: ChainScores, q: Tensor | None) -> Tensor:
    """log Z (B,), or with ``q`` (B, T, K) the divergence KL(q ‖ p)."""
    inputs = scores.emissions, scores.transitions, scores.lengths, scores.label_mask, q
    by_kernel = uses_kernel(scores.emissions)
    if is_eager(scores.emissions):
        return _Loss.apply(*inputs, by_kernel)  # type: ignore[no-untyped-call, no-any-return]
    value: Tensor = _forward_op(*inputs, by_kernel)[0]
    return value


def labelled_loss(scores: ChainScores, q: Tensor, labelled: Tensor) -> Tensor:
    """KL(q_S ‖ p_S) over the labelled steps S, (B,); 0 where there are none.

    p_S is the marginal over S, itself a chain: the other steps are summed out.
    """
    chain, positions = contract(scores.clean().double(), labelled)  # in float64: sums of scores become scores; (B, S)
    alive = scores.alive()
    labelled = labelled if alive is None else labelled & alive
    target = q.double().gather(1, positions[:, :, None].expand(-1, -1, q.shape[2]))  # (B, S, K)
    target = torch.where(labelled.gather(1, positions)[:, :, None], target, 0.0)  # q elsewhere may be NaN
    if torch.is_grad_enabled() and q.requires_grad:
        value = loss(chain, None) - linear_terms(chain, target)
    else:
        value = loss(chain, target)
    return torch.where(labelled.any(1), value, 0.0).to(q.dtype)


def marginals(scores: ChainScores, pairs: bool) -> tuple[Tensor, Tensor]:
    """p(y_t) (B, T, K) and, where ``pairs``, p(y_{t-1}, y_t) in the transitions' shape, summed where it broadcasts.

    The derivatives of log Z, without an autograd graph.
    """
    inputs = scores.emissions, scores.transitions, scores.lengths, scores.label_mask, None
    value, state, careful, exponentials = _forward(*inputs, uses_kernel(scores.emissions))
    return _backward(torch.ones_like(value), *inputs, state, careful, exponentials, pairs)


def is_eager(tensor: Tensor) -> bool:
    """Whether the tensor holds values now, rather than being traced."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling()


def uses_kernel(emissions: Tensor) -> bool:
    """Whether the compiled kernel can compute these scores."""
    return emissions.device.type == "cpu" and emissions.dtype == torch.float32 and _has_kernel()


def _has_kernel() -> bool:  # a constant of a compiled graph, and so a part of its cache key
    return kernel.load() is not None


# What torch.compiler.assume_constant_result does; calling it would import all of dynamo and double our import time.
_has_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _forward(
    emissions: Tensor,
    transitions: Tensor,
    lengths: Tensor | None,
    label_mask: Tensor | None,
    q: Tensor | None,
    by_kernel: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss (B,), and three tensors saved for the gradient.

    ``by_kernel`` is an argument because the arguments are the key under which compiled graphs are cached on disk, and
    the saved shapes depend on it. A graph exported elsewhere may ask for a kernel that is not built here.
    """
    scores = ChainScores(emissions, transitions, lengths, label_mask)
    return kernel.forward(scores, q) if by_kernel and _has_kernel() else scaled.forward(scores, q)


def _backward(
    grad_loss: Tensor,
    emissions: Tensor,
    transitions: Tensor,
    lengths: Tensor | None,
    label_mask: Tensor | None,
    q: Tensor | None,
    state: Tensor,
    careful: Tensor,
    exponentials: Tensor,
    pairs: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of emissions and transitions; the second is empty unless ``pairs``."""
    scores = ChainScores(emissions, transitions, lengths, label_mask)
    run = scaled.backward if exponentials.dim() == 4 else kernel.backward  # the one that ran forward
    grad_emissions, grad_transitions = run(grad_loss.contiguous(), scores, q, state, careful, exponentials, pairs)
    return grad_emissions, emissions.new_empty(0) if grad_transitions is None else grad_transitions


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:-1], *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # no zeros for what has no gradient


def _gradients(ctx: Any, grad_loss: Tensor | None, run: Any) -> tuple[Tensor | None, ...]:
    if grad_loss is None:
        return (None,) * 6
    emissions, transitions, lengths, label_mask, q, *saved = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: double backward
        value = plain_loss(ChainScores(emissions, transitions, lengths, label_mask), q)
        wanted = [tensor for tensor in (emissions, transitions) if tensor.requires_grad]
        grads = iter(torch.autograd.grad(value, wanted, grad_loss, create_graph=True, materialize_grads=True))
        grad_emissions = next(grads) if emissions.requires_grad else None
        return grad_emissions, next(grads) if transitions.requires_grad else None, None, None, None, None
    pairs = ctx.needs_input_grad[1]
    grad_emissions, grad_transitions = run(grad_loss, emissions, transitions, lengths, label_mask, q, *saved, pairs)
    return grad_emissions, grad_transitions if pairs else None, None, None, None, None


class _Loss(torch.autograd.Function):
    """Used in eager mode, where the overhead of a custom operator would exceed the cost of a small chain."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        value, *saved = _forward(*inputs)
        ctx.save_for_backward(*inputs[:-1], *saved)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _gradients(ctx, grads[0], _backward)


_forward_op = torch.library.custom_op("phrasechain::chain_forward", _forward, mutates_args=())
_backward_op = torch.library.custom_op("phrasechain::chain_backward", _backward, mutates_args=())
_forward_op.register_autograd(lambda ctx, *grads: _gradients(ctx, grads[0], _backward_op), setup_context=_keep)


@_forward_op.register_fake
def _(emissions: Tensor, transitions: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    B = emissions.shape[0]
    state, careful = torch.empty_like(emissions, dtype=torch.float64), emissions.new_empty(B, dtype=torch.uint8)
    shape = kernel.saved_shape(ChainScores(emissions, transitions)) if rest[-1] else transitions.shape
    return emissions.new_empty(B), state, careful, emissions.new_empty(shape, dtype=torch.float32)


@_backward_op.register_fake
def _(grad_loss: Tensor, emissions: Tensor, transitions: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    shape = transitions.shape if rest[-1] else (0,)
    return torch.empty_like(emissions), emissions.new_empty(shape)


def plain_loss(scores: ChainScores, q: Tensor | None) -> Tensor:
    """The same value by the plain recursion: slower, but differentiable to any order."""
    chain = scores.clean()
    value = filters(chain)[1]
    return value if q is None else value - linear_terms(scores, q)


def linear_terms(scores: ChainScores, q: Tensor) -> Tensor:
    """Σ q ε + Σ q_{t-1} τ q_t − Σ q log q, (B,): KL(q ‖ p) is log Z minus this."""
    chain, valid = scores.clean(), scores.valid()
    emissions = chain.emissions
    if valid is not None:
        q, emissions = torch.where(valid, q, 0.0), torch.where(valid, emissions, 0.0)
    log_q = torch.where(q > 0, q, 1.0).log()  # the derivative of q log q has no limit at 0: it is taken as 0
    value = (q * (emissions - log_q)).sum((1, 2))
    for t, step in enumerate(chain.steps(), start=1):
        value = value + ((q[:, t - 1, :, None] * step).sum(1) * q[:, t]).sum(-1)
    return value
