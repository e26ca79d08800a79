"""Bindings of nms.c: NMS and soft-NMS on float32 CPU tensors; callers check dtype, device and shapes.

:func:`load` gives ``None`` where pip found no compiler; :mod:`phrasechain.regions.nms` then runs in torch.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from phrasechain.chain import kernel

_INT, _FLOAT, _POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


def load() -> ctypes.CDLL | None:
    """The compiled library, or ``None`` where it was not built or compiled code is disabled."""
    return None if kernel.is_disabled() else _open()


@cache
def _open() -> ctypes.CDLL | None:
    library = kernel.open_library(Path(__file__).with_name("_nms"))
    if library is not None:
        library.phrasechain_nms.argtypes = [_POINTER, _INT, _FLOAT, _INT, _POINTER]
        library.phrasechain_soft_nms.argtypes = [_POINTER, _POINTER, _INT, _INT, _FLOAT, _FLOAT, _POINTER, _POINTER]
        for function in (library.phrasechain_nms, library.phrasechain_soft_nms):
            function.restype = _INT
    return library


def nms(library: ctypes.CDLL, boxes: Tensor, threshold: float, count: int) -> Tensor:
    """The indices of the first ``count`` boxes of (N, 4) that greedy NMS keeps."""
    boxes = boxes.contiguous()
    indices = boxes.new_empty(min(count, len(boxes)), dtype=torch.long)
    kept = library.phrasechain_nms(boxes.data_ptr(), len(boxes), threshold, len(indices), indices.data_ptr())
    return indices[: _checked(kept)]


def soft_nms(
    library: ctypes.CDLL, boxes: Tensor, score: Tensor, count: int, midpoint: float, slope: float
) -> tuple[Tensor, Tensor]:
    """The indices of ``count`` boxes of (M, 4) in the order of soft-NMS, and their log scores."""
    boxes, score = boxes.contiguous(), score.contiguous()
    indices = boxes.new_empty(min(count, len(boxes)), dtype=torch.long)
    log_scores = boxes.new_empty(len(indices))
    inputs = boxes.data_ptr(), score.data_ptr(), len(boxes), len(indices), midpoint, slope
    _checked(library.phrasechain_soft_nms(*inputs, indices.data_ptr(), log_scores.data_ptr()))
    return indices, log_scores


def _checked(count: int) -> int:
    if count < 0:
        raise MemoryError("non-maximum suppression ran out of memory")
    return count
