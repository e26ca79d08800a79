"""Bindings of the compiled recursions (kernel.c): float32 on a CPU, one call for a whole batch.

The library is plain C built by pip where a compiler is present. Where it was not built :func:`load` gives ``None``, and
:mod:`phrasechain.chain.scaled`, which has the same ``forward`` and ``backward``, is used instead.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

from phrasechain.chain.memory import empty_in_large_pages
from phrasechain.chain.recursion import ChainScores

_INT = ctypes.c_int64
_POINTER = ctypes.c_void_p
_NO_MEMORY, _OUT_OF_RANGE, _BAD_SIZES, _BAD_LENGTHS = 1, 2, 3, 4  # status of a call
_SHARED = 2  # in place of `careful`: the state was computed for one shared (K, K)


class Chain(ctypes.Structure):
    """``Chain`` of kernel.c, field by field."""

    _fields_ = (
        *((name, _INT) for name in ("B", "T", "K", "threads")),
        *((name, _POINTER) for name in ("emissions", "transitions")),
        *((name, _INT) for name in ("stride_b", "stride_t")),
        *((name, _POINTER) for name in ("lengths", "label_mask", "q", "state", "careful", "loss", "grad_loss")),
        *((name, _POINTER) for name in ("grad_emissions", "grad_transitions")),
        *((name, _INT) for name in ("grad_stride_b", "grad_stride_t", "grad_adds")),
        *((name, _POINTER) for name in ("column_top", "exponentials", "panels", "scaled", "labels", "score")),
        ("skips", _POINTER),
        *((name, _INT) for name in ("skip_stride_b", "skip_stride_t")),
        *((name, ctypes.c_double) for name in ("shift", "skip_shift")),
        *((name, _POINTER) for name in ("factors", "filters", "exponentiated", "scales")),
        ("scales_stride", _INT),
        ("grad_skips", _POINTER),
        *((name, _INT) for name in ("grad_skip_stride_b", "grad_skip_stride_t", "skip_adds")),
    )


_disabled: ContextVar[bool] = ContextVar("_disabled", default=False)


def load() -> ctypes.CDLL | None:
    """The compiled library, or ``None`` where it was not built or is disabled."""
    return None if is_disabled() else _open()


def is_disabled() -> bool:
    """Whether compiled code is disabled, by :func:`disabled` or by ``PHRASECHAIN_BACKEND=torch``."""
    return _disabled.get() or os.environ.get("PHRASECHAIN_BACKEND") == "torch"


@contextmanager
def disabled() -> Iterator[None]:
    """A context in which the pure-torch path is used; ``PHRASECHAIN_BACKEND=torch`` does the same globally."""
    token = _disabled.set(True)
    try:
        yield
    finally:
        _disabled.reset(token)


@cache
def _open() -> ctypes.CDLL | None:
    library = open_library(Path(__file__).with_name("_kernel"))
    if library is not None:
        library.phrasechain_panels.argtypes = [_INT]
        library.phrasechain_panels.restype = _INT
        library.phrasechain_max_plus.argtypes = [_POINTER, _POINTER, _POINTER, _INT, _INT, _INT]
    return library


def open_library(stem: Path) -> ctypes.CDLL | None:
    """Open the extension at this path and any suffix; ``None``, with a warning, if it does not load here."""
    for suffix in EXTENSION_SUFFIXES:
        path = stem.with_name(stem.name + suffix)
        if path.exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                warnings.warn(f"the compiled {stem.name} cannot be loaded, using pure torch: {error}", stacklevel=3)
                return None
    return None


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def describe(scores: ChainScores, q: Tensor | None = None) -> Chain:
    """The fields that every call needs, in the order of the structure."""
    chain = Chain(
        *scores.emissions.shape,
        torch.get_num_threads(),
        scores.emissions.data_ptr(),
        scores.transitions.data_ptr(),
        *strides(scores.transitions),
        _pointer(scores.lengths),
        _pointer(scores.label_mask),
        _pointer(q),
    )
    if scores.skips is not None:
        chain.skips = scores.skips.data_ptr()
        chain.skip_stride_b, chain.skip_stride_t = strides(scores.skips)
    return chain


def strides(links: Tensor) -> tuple[int, int]:
    """Of sequences and of steps; 0 where broadcast."""
    over_b, over_t, _, _ = links.shape
    stride_b, stride_t, _, _ = links.stride()
    return stride_b if over_b > 1 else 0, stride_t if over_t > 1 else 0


def call(name: str, chain: Chain) -> int:
    library = _open()
    assert library is not None
    return _checked(getattr(library, name)(ctypes.byref(chain)), chain.B, chain.T, chain.K)


def _checked(status: int, B: int, T: int, K: int) -> int:
    """Raise what the kernel refuses, whether or not values were validated: it would write beyond its arrays."""
    if status == _NO_MEMORY:
        raise MemoryError("the chain kernel ran out of memory")
    if status == _BAD_LENGTHS:
        raise ValueError(f"lengths: expected values from 1 to T = {T}, got others")
    if status == _BAD_SIZES:
        raise ValueError(f"emissions: expected a shape (B, T, K) that memory can hold, got {(B, T, K)}")
    return status


def is_finite(scores: ChainScores) -> bool:
    """Whether all scores are finite, including those that no sequence uses."""
    return call("phrasechain_scan", describe(scores)) == 0


def forward(scores: ChainScores, q: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``log Z``, or with ``q`` the loss KL(q ‖ p): (B,). Then the three tensors that :func:`backward` needs."""
    B, T, K = scores.emissions.shape
    new = scores.emissions.new_empty  # independent of torch's default dtype and device
    loss, state, careful = new(B), new(B, T, K, dtype=torch.float64), new(B, dtype=torch.uint8)
    chain = describe(scores, q)
    chain.state, chain.careful, chain.loss = state.data_ptr(), careful.data_ptr(), loss.data_ptr()
    exponentials = new(saved_shape(scores))
    if exponentials.numel():
        column_top = _exponentiate(scores, exponentials)
        panels = _panels(chain, exponentials)
        chain.column_top = column_top.data_ptr()
        if call("phrasechain_shared_forward", chain) != _OUT_OF_RANGE:
            return loss, state, careful.fill_(_SHARED), exponentials
        del panels
    call("phrasechain_forward", chain)
    return loss, state, careful, exponentials


def saved_shape(scores: ChainScores) -> tuple[int, ...]:
    """The shape of the exponentials that :func:`forward` saves: (K, K) if one is shared, else none."""
    shared = scores.transitions.shape[:2] == (1, 1) and scores.emissions.shape[1] > 1
    return tuple(scores.transitions.shape[2:]) if shared else (0,)


def backward(
    grad_loss: Tensor,
    scores: ChainScores,
    q: Tensor | None,
    state: Tensor,
    careful: Tensor,
    exponentials: Tensor,
    pairs: bool,
) -> tuple[Tensor, Tensor | None]:
    """``grad_loss`` times the derivative of the loss: (B, T, K), and where ``pairs`` the shape of the transitions.

    With ``grad_loss`` 1 and no ``q`` these are the marginals and the pair marginals. Unless one (K, K) is shared,
    ``exponentials`` is empty: the kernel recomputes them instead of storing them.
    """
    chain = describe(scores, q)
    grad_emissions = torch.empty_like(scores.emissions)
    chain.state, chain.careful, chain.grad_loss = state.data_ptr(), careful.data_ptr(), grad_loss.data_ptr()
    chain.grad_emissions = grad_emissions.data_ptr()
    if exponentials.numel() and int(careful[0]) == _SHARED:
        return grad_emissions, _shared_backward(scores, chain, state, exponentials, pairs)
    grad_transitions = None
    if pairs:
        B, T, _ = scores.emissions.shape
        shape = scores.transitions.shape
        chain.grad_adds = shape[:2] != (B, T - 1)
        grad_transitions = grad_loss.new_zeros(shape) if chain.grad_adds else empty_in_large_pages(shape)
        chain.grad_transitions = grad_transitions.data_ptr()
        chain.grad_stride_b = grad_transitions.stride(0) if shape[0] > 1 else 0
        chain.grad_stride_t = grad_transitions.stride(1) if shape[1] > 1 else 0
    call("phrasechain_backward", chain)
    return grad_emissions, grad_transitions


def _exponentiate(scores: ChainScores, out: Tensor) -> Tensor:
    """exp(τ − column maximum) of one shared (K, K) into ``out``; returns the maxima (K,)."""
    transitions, pairs = scores.transitions[0, 0], scores.pairs()  # (K, K)
    if pairs is not None:  # unused transitions may hold any value
        transitions = torch.where(pairs[0, 0], transitions, -torch.inf)
    column_top = transitions.amax(0).clamp_(min=torch.finfo(torch.float32).min)
    torch.sub(transitions, column_top, out=out).exp_()
    return column_top


def _panels(chain: Chain, exponentials: Tensor) -> Tensor:
    """Allocate the buffer for the packed exponentials and set both pointers; the caller must keep the result alive."""
    library = _open()
    assert library is not None
    panels = exponentials.new_empty(library.phrasechain_panels(chain.K))
    chain.exponentials, chain.panels = exponentials.data_ptr(), panels.data_ptr()
    return panels


def _shared_backward(
    scores: ChainScores, chain: Chain, state: Tensor, exponentials: Tensor, pairs: bool
) -> Tensor | None:
    K = scores.emissions.shape[2]
    panels = _panels(chain, exponentials)
    scaled = torch.empty_like(scores.emissions)  # (B, T, K)
    chain.scaled = scaled.data_ptr()
    call("phrasechain_shared_backward", chain)
    del panels
    if not pairs:
        return None
    a = state.view(torch.float32)[:, :-1, :K].reshape(-1, K)  # (B·(T-1), K): a_{t-1}
    grad = (a.T @ scaled[:, 1:].reshape(-1, K)).mul_(exponentials)  # (K, K)
    chain.grad_transitions = grad.data_ptr()
    if chain.q is not None:
        call("phrasechain_subtract_targets", chain)
    return grad[None, None]


def viterbi(scores: ChainScores) -> tuple[Tensor, Tensor]:
    """The labels (B, T) of the best path and its score (B,) in float64."""
    B, T, K = scores.emissions.shape
    new = scores.emissions.new_empty
    labels, score = new(B, T, dtype=torch.int64), new(B, dtype=torch.float64)
    deltas = new(B, T, K, dtype=torch.float64)
    chain = describe(scores)
    chain.state, chain.labels, chain.score = deltas.data_ptr(), labels.data_ptr(), score.data_ptr()
    call("phrasechain_viterbi", chain)
    return labels, score


def max_plus(left: Tensor, right: Tensor) -> Tensor:
    """max_i left(i, j) + right(i, k) of (B, K, K) and (B or 1, K, K), float64."""
    library = _open()
    assert library is not None
    left, right = left.contiguous(), right.contiguous()
    (B, K, _), out = left.shape, torch.empty_like(left)
    stride = K * K if len(right) > 1 else 0
    _checked(library.phrasechain_max_plus(left.data_ptr(), right.data_ptr(), out.data_ptr(), B, K, stride), B, 1, K)
    return out
