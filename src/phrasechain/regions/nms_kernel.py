"""The compiled loops of nms.c as functions of tensors: float32 on a CPU, of the shapes given; callers check both.

:func:`load` gives ``None`` where pip found no compiler, and :mod:`phrasechain.regions.nms` then does the same in torch.
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
    """The compiled library, or ``None`` where it was not built or compiled code is not wanted."""
    return None if kernel.is_disabled() else _find()


@cache
def _find() -> ctypes.CDLL | None:
    library = kernel.open_library(Path(__file__).with_name("_nms"))
    if library is not None:
        library.phrasechain_nms.argtypes = [_POINTER, _INT, _FLOAT, _INT, _POINTER]
        library.phrasechain_soft_nms.argtypes = [_POINTER, _POINTER, _INT, _INT, _FLOAT, _FLOAT, _POINTER, _POINTER]
        for function in (library.phrasechain_nms, library.phrasechain_soft_nms):
            function.restype = _INT
    return library


def nms(library: ctypes.CDLL, boxes: Tensor, threshold: float, count: int) -> Tensor:
    """The places of the first ``count`` boxes of (N, 4) that greedy suppression keeps."""
    boxes = boxes.contiguous()
    places = boxes.new_empty(min(count, len(boxes)), dtype=torch.long)
    found = library.phrasechain_nms(boxes.data_ptr(), len(boxes), threshold, len(places), places.data_ptr())
    return places[: _checked(found)]


def soft_nms(
    library: ctypes.CDLL, boxes: Tensor, score: Tensor, count: int, alike: float, steep: float
) -> tuple[Tensor, Tensor]:
    """The places of ``count`` boxes of (M, 4) by what each adds, and the log of how much that is."""
    boxes, score = boxes.contiguous(), score.contiguous()
    places = boxes.new_empty(min(count, len(boxes)), dtype=torch.long)
    worth = boxes.new_empty(len(places))
    found = library.phrasechain_soft_nms(
        boxes.data_ptr(), score.data_ptr(), len(boxes), len(places), alike, steep, places.data_ptr(), worth.data_ptr()
    )
    _checked(found)
    return places, worth


def _checked(found: int) -> int:
    if found < 0:
        raise MemoryError("choosing among the boxes of a photo could not get its working memory")
    return found
