"""log Z and KL(q ‖ p) and their gradient as custom operators, so that ``torch.compile(fullgraph=True)`` works.

The compiled kernel computes float32 on a CPU where it was built, pure torch everything else. Fake implementations give
the shapes for fake and meta tensors. Double backward and the rules for torch.func are in
:mod:`phrasechain.chain.autograd`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phrasechain.chain import kernel, scaled, second_order, second_order_kernel, second_order_scaled
from phrasechain.chain.recursion import ChainScores
from phrasechain.chain.tracing import has_values, is_eager


def uses_kernel(emissions: Tensor) -> bool:
    """Whether the compiled kernel can compute these scores."""
    return emissions.device.type == "cpu" and emissions.dtype == torch.float32 and _has_kernel()


def _has_kernel() -> bool:  # a constant of a compiled graph, and so a part of its cache key
    return kernel.load() is not None


# What torch.compiler.assume_constant_result does; calling it would import all of dynamo and double our import time.
_has_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


def eager_forward(
    emissions: Tensor,
    transitions: Tensor,
    lengths: Tensor | None,
    label_mask: Tensor | None,
    q: Tensor | None,
    skips: Tensor | None,
    by_kernel: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss (B,), and three tensors saved for the gradient.

    ``by_kernel`` is an argument because the arguments are the key under which compiled graphs are cached on disk, and
    the saved shapes depend on it. A graph exported elsewhere may ask for a kernel that is not built here.
    """
    scores = ChainScores(emissions, transitions, lengths, label_mask, skips)
    by_kernel = by_kernel and _has_kernel()
    if _has_skips(emissions, skips):
        return second_order_kernel.forward(scores, q) if by_kernel else second_order_scaled.forward(scores, q)
    return kernel.forward(scores, q) if by_kernel else scaled.forward(scores, q)


def eager_backward(
    grad_loss: Tensor,
    emissions: Tensor,
    transitions: Tensor,
    lengths: Tensor | None,
    label_mask: Tensor | None,
    q: Tensor | None,
    skips: Tensor | None,
    state: Tensor,
    careful: Tensor,
    exponentials: Tensor,
    links: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients of emissions, transitions and skips; the latter two only where ``links``."""
    scores, grad_loss = ChainScores(emissions, transitions, lengths, label_mask, skips), grad_loss.contiguous()
    if _has_skips(emissions, skips):
        saved = state, careful, exponentials
        second = second_order_scaled.backward if careful.dim() == 3 else second_order_kernel.backward
        return second(grad_loss, scores, q, saved, links)  # the one that ran forward
    run = scaled.backward if exponentials.dim() == 4 else kernel.backward  # the one that ran forward
    grad_emissions, grad_transitions = run(grad_loss, scores, q, state, careful, exponentials, links)
    return grad_emissions, grad_transitions, None if skips is None or not links else torch.zeros_like(skips)


def _has_skips(emissions: Tensor, skips: Tensor | None) -> bool:
    return skips is not None and emissions.shape[1] > 2


forward_op = torch.library.custom_op("phrasechain::chain_forward", eager_forward, mutates_args=())


def _backward(
    grad_loss: Tensor,
    emissions: Tensor,
    transitions: Tensor,
    lengths: Tensor | None,
    label_mask: Tensor | None,
    q: Tensor | None,
    skips: Tensor | None,
    state: Tensor,
    careful: Tensor,
    exponentials: Tensor,
    links: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as an operator has to have it: empty where there is none."""
    scores = emissions, transitions, lengths, label_mask, q, skips
    found = eager_backward(grad_loss, *scores, state, careful, exponentials, links)
    to_transitions, to_skips = (emissions.new_empty(0) if gradient is None else gradient for gradient in found[1:])
    return found[0], to_transitions, to_skips


backward_op = torch.library.custom_op("phrasechain::chain_backward", _backward, mutates_args=())


def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The operator, or in eager mode its implementation: the overhead would exceed the cost of a small chain."""
    found: tuple[Tensor, Tensor, Tensor, Tensor] = (eager_forward if is_eager(inputs[0]) else forward_op)(*inputs)
    return found


def backward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`forward`."""
    found: tuple[Tensor, Tensor, Tensor] = (_backward if is_eager(inputs[0]) else backward_op)(*inputs)
    return found


@forward_op.register_fake
def _(emissions: Tensor, transitions: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    B = emissions.shape[0]
    skips, by_kernel = rest[-2:]
    new = emissions.new_empty
    if _has_skips(emissions, skips):
        state = second_order_kernel.empty_state if by_kernel else second_order_scaled.empty_state
        return new(B), *state(ChainScores(emissions, transitions))
    filters, careful = torch.empty_like(emissions, dtype=torch.float64), new(B, dtype=torch.uint8)
    shape = kernel.saved_shape(ChainScores(emissions, transitions)) if by_kernel else transitions.shape
    return new(B), filters, careful, new(shape, dtype=torch.float32)


@backward_op.register_fake
def _(grad_loss: Tensor, emissions: Tensor, transitions: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    skips, links = rest[3], rest[-1]
    to_transitions = emissions.new_empty(transitions.shape if links else (0,))
    to_skips = emissions.new_empty((0,) if skips is None or not links else skips.shape)
    return torch.empty_like(emissions), to_transitions, to_skips


def _viterbi(
    emissions: Tensor, transitions: Tensor, lengths: Tensor | None, label_mask: Tensor | None, skips: Tensor
) -> Tensor:
    """The labels (B, T) of the best path of a second-order chain. An operator, since its loop is as long as K."""
    return second_order.viterbi(ChainScores(emissions, transitions, lengths, label_mask, skips).clean())


viterbi_op = torch.library.custom_op("phrasechain::second_order_viterbi", _viterbi, mutates_args=())


@viterbi_op.register_fake
def _(emissions: Tensor, *rest: Any) -> Tensor:
    return emissions.new_empty(emissions.shape[:2], dtype=torch.int64)


def second_order_viterbi(*inputs: Any) -> Tensor:
    """As :func:`forward`."""
    return (_viterbi if has_values(inputs[0]) else viterbi_op)(*inputs)
