"""Non-maximum suppression: exact and greedy without a loop over boxes, and a soft one that only ranks.

Where pip found a compiler the choice among the boxes of one photo is made by nms.c, several times as fast.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from phrasechain.core.boxes import iou_xyxy, pairwise_iou_xyxy
from phrasechain.regions import nms_kernel

_BLOCK = 128  # boxes that are decided together
_ALIKE, _STEEP = 0.55, 20.0  # the overlap at which two boxes are as likely the same as not, and the slope there


def suppress(boxes: Tensor, threshold: float) -> Tensor:
    """Which boxes greedy suppression keeps, when they come in order of falling score: (..., N, 4) to (..., N) bool.

    A box goes when an earlier one that stays overlaps it by more than ``threshold``. The earliest boxes are decided
    at once and each round decides at least one more, so that the rounds end at the greedy answer; few are needed.
    """
    overlaps = iou_xyxy(boxes[..., :, None, :], boxes[..., None, :, :]) > threshold  # (..., N, N)
    earlier = overlaps.tril(-1).to(boxes.dtype)  # row i: the boxes before i that overlap it
    everything = torch.ones_like(boxes[..., 0])

    def next_round(before: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        return kept.clone(), ((earlier @ kept[..., None])[..., 0] == 0).to(boxes.dtype)

    def is_open(before: Tensor, kept: Tensor) -> Tensor:
        return (before != kept).any()

    state = next_round(everything, everything)
    if torch.compiler.is_exporting():  # a loop that the graph can hold
        from torch._higher_order_ops import while_loop

        state = while_loop(is_open, next_round, state)  # type: ignore[no-untyped-call]
    else:
        while is_open(*state):
            state = next_round(*state)
    return state[1] > 0


def nms(boxes: Tensor, threshold: float, count: int) -> Tensor:
    """The places of the first ``count`` boxes that :func:`suppress` keeps of (N, 4), without a look at those behind."""
    library = nms_kernel.load()
    if library is not None and _is_plain(boxes, (len(boxes), 4)):
        return nms_kernel.nms(library, boxes, threshold, count)
    kept = torch.empty(0, dtype=torch.long, device=boxes.device)
    for start in range(0, len(boxes), _BLOCK):
        block = torch.arange(start, min(start + _BLOCK, len(boxes)), device=boxes.device)
        overlaps = pairwise_iou_xyxy(boxes[block], boxes[kept]) > threshold
        fresh = block[~overlaps.any(1)]
        kept = torch.cat((kept, fresh[suppress(boxes[fresh], threshold)]))
        if len(kept) >= count:
            break
    return kept[:count]


def soft_nms(boxes: Tensor, score: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The places of ``count`` boxes of (M, 4), in the order of what each still adds, and the log of how much that is.

    A box adds σ(score) · Π (1 - σ(20 (IoU - 0.55))) over the boxes before it: the rng that it shows something, and
    that none of those shows the same. This is Soft-NMS (Bodla et al., 2017) with a logistic decay. Falling, as each
    turn only lowers what is left. Boxes and scores are finite.
    """
    library = nms_kernel.load()
    if library is not None and _is_plain(boxes, (len(boxes), 4)) and _is_plain(score, (len(boxes),)):
        return nms_kernel.soft_nms(library, boxes, score, count, _ALIKE, _STEEP)
    left = F.logsigmoid(score).cpu().numpy().copy()  # (M,)
    fading = F.logsigmoid(_STEEP * (_ALIKE - pairwise_iou_xyxy(boxes, boxes))).cpu().numpy()  # (M, M)
    places, worth = [], []
    for _ in range(min(count, len(boxes))):
        best = int(left.argmax())
        places.append(best)
        worth.append(float(left[best]))
        left += fading[best]
        left[best] = -float("inf")
    return torch.tensor(places, dtype=torch.long), torch.tensor(worth)


def _is_plain(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether compiled code can read a tensor; torch says what is wrong with others, or takes them."""
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.shape == shape
