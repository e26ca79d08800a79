"""The processes that train together: one alone, or many that ``torchrun`` or ``accelerate launch`` started.

Gradients are added up here in one explicit sum instead of by DistributedDataParallel. The loss is a sum over the
phrases of all processes divided by their number, so the sum of the processes' gradients is exact as it is; a process
whose share of a step is empty, or whose captions use no transition, adds zeros; and nothing needs to know which weights
were used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from phrasechain.core.errors import DataError, unknown_name

if TYPE_CHECKING:
    from accelerate import Accelerator

DEVICES = ("auto", "cpu", "cuda")


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; ``auto`` is a GPU where there is one."""
    if name not in DEVICES:
        raise DataError(unknown_name("device", name, DEVICES))
    if name == "cuda" and not torch.cuda.is_available():
        raise DataError("--device cuda: torch finds no GPU here; install a CUDA build of torch, or use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def start_processes(device: str = "auto") -> Accelerator:
    """Join the other processes, if there are any; ``auto`` takes a GPU where there is one.

    Without a GPU Accelerate must be told so: otherwise each process would believe that it is alone.
    """
    is_cpu = pick_device(device).type == "cpu"
    try:
        from accelerate import Accelerator
    except ImportError:
        raise DataError("training, and several processes, need accelerate: pip install 'phrasechain[train]'") from None
    return Accelerator(cpu=is_cpu)


def is_first_process() -> bool:
    """Whether this process is alone or the first of many: the one that prints and writes."""
    return int(os.environ.get("RANK", "0")) == 0


def process_count() -> int:
    """How many processes ``torchrun`` or ``accelerate launch`` started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def sum_gradients(weights: Sequence[nn.Parameter], figures: Tensor, processes: Accelerator) -> Tensor:
    """Add up the gradients of all processes, in place, and figures (F,) with them; one that is none becomes 0."""
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    if processes.num_processes == 1:
        return figures
    flat = torch.cat([figures.float(), *(weight.grad.flatten() for weight in weights if weight.grad is not None)])
    sizes = [len(figures), *(weight.numel() for weight in weights)]
    figures, *gradients = torch.split(processes.reduce(flat, "sum"), sizes)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.view_as(weight)
    return figures
