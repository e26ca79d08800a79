"""log Z and KL(q ‖ p) as one operator with its gradient, opaque to compilers: ``torch.compile(fullgraph=True)`` holds.

The compiled kernel serves float32 on a CPU where it was built, pure torch everywhere else. Second derivatives go
through the plain recursion, which autograd can follow to any order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phrasechain.chain import kernel, scaled
from phrasechain.chain.recursion import Scores, filters


def loss(scores: Scores, q: Tensor | None) -> Tensor:
    """log Z (B,), or with ``q`` (B, T, K) the divergence KL(q ‖ p)."""
    value: Tensor = _forward(scores.emissions, scores.transitions, scores.lengths, scores.label_mask, q)[0]
    return value


def marginals(scores: Scores, pairs: bool) -> tuple[Tensor, Tensor]:
    """p(y_t) (B, T, K) and, where ``pairs``, p(y_{t-1}, y_t) in the transitions' shape, summed where it broadcasts.

    The derivatives of log Z, without a graph.
    """
    inputs = scores.emissions, scores.transitions, scores.lengths, scores.label_mask, None
    value, state, careful = _forward(*inputs)
    found: tuple[Tensor, Tensor] = _backward(torch.ones_like(value), *inputs, state, careful, pairs)
    return found


def uses_kernel(scores: Scores) -> bool:
    """Whether the compiled kernel takes these scores."""
    emissions = scores.emissions
    return emissions.device.type == "cpu" and emissions.dtype == torch.float32 and kernel.load() is not None


@torch.library.custom_op("phrasechain::chain_forward", mutates_args=())
def _forward(
    emissions: Tensor, transitions: Tensor, lengths: Tensor | None, label_mask: Tensor | None, q: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    scores = Scores(emissions, transitions, lengths, label_mask)
    return (kernel if uses_kernel(scores) else scaled).forward(scores, q)


@_forward.register_fake
def _(
    emissions: Tensor, transitions: Tensor, lengths: Tensor | None, label_mask: Tensor | None, q: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    B = emissions.shape[0]
    state = torch.empty_like(emissions, dtype=torch.float64)
    return emissions.new_empty(B), state, emissions.new_empty(B, dtype=torch.uint8)


@torch.library.custom_op("phrasechain::chain_backward", mutates_args=())
def _backward(
    grad_loss: Tensor,
    emissions: Tensor,
    transitions: Tensor,
    lengths: Tensor | None,
    label_mask: Tensor | None,
    q: Tensor | None,
    state: Tensor,
    careful: Tensor,
    pairs: bool,
) -> tuple[Tensor, Tensor]:
    scores = Scores(emissions, transitions, lengths, label_mask)
    run = (kernel if uses_kernel(scores) else scaled).backward
    grad_emissions, grad_transitions = run(grad_loss.contiguous(), scores, q, state, careful, pairs)
    return grad_emissions, emissions.new_empty(0) if grad_transitions is None else grad_transitions


@_backward.register_fake
def _(
    grad_loss: Tensor,
    emissions: Tensor,
    transitions: Tensor,
    lengths: Tensor | None,
    label_mask: Tensor | None,
    q: Tensor | None,
    state: Tensor,
    careful: Tensor,
    pairs: bool,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(emissions), torch.empty(
        transitions.shape if pairs else (0,), dtype=emissions.dtype, device=emissions.device
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    emissions, transitions, lengths, label_mask, q, state, careful = ctx.saved_tensors
    if torch.is_grad_enabled():  # a graph of the gradient is wanted
        value = plain_loss(Scores(emissions, transitions, lengths, label_mask), q)
        wanted = [tensor for tensor in (emissions, transitions) if tensor.requires_grad]
        grads = iter(torch.autograd.grad(value, wanted, grad_loss, create_graph=True, materialize_grads=True))
        grad_emissions = next(grads) if emissions.requires_grad else None
        return grad_emissions, next(grads) if transitions.requires_grad else None, None, None, None
    pairs = ctx.needs_input_grad[1]
    grad_emissions, grad_transitions = _backward(
        grad_loss, emissions, transitions, lengths, label_mask, q, state, careful, pairs
    )
    return grad_emissions, grad_transitions if pairs else None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_keep)


def plain_loss(scores: Scores, q: Tensor | None) -> Tensor:
    """The same value by the plain recursion: slower, but autograd follows it to any order, to q as well."""
    chain = scores.clean()
    value = filters(chain)[1]
    return value if q is None else value - linear_terms(scores, q)


def linear_terms(scores: Scores, q: Tensor) -> Tensor:
    """Σ q ε + Σ q_{t-1} τ q_t − Σ q log q, (B,): KL(q ‖ p) is log Z minus this."""
    chain, valid = scores.clean(), scores.valid()
    emissions = chain.emissions
    if valid is not None:
        q, emissions = torch.where(valid, q, 0.0), torch.where(valid, emissions, 0.0)
    value = (q * emissions - torch.special.xlogy(q, q)).sum((1, 2))
    for t, step in enumerate(chain.steps(), start=1):
        value = value + ((q[:, t - 1, :, None] * step).sum(1) * q[:, t]).sum(-1)
    return value
