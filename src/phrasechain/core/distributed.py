"""Data parallelism: one process, or several started by ``torchrun`` or ``accelerate launch``.

Gradients are summed with one explicit all-reduce instead of DistributedDataParallel. A loss is a sum over the items
of all processes divided by their total number, so the sum of the processes' gradients is exact. A process whose part of
a step is empty, or whose captions use no transition, contributes zeros: no need to track unused parameters.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from phrasechain.core.errors import DataError, require_name

DEVICES = ("auto", "cpu", "cuda")


class Processes(Protocol):
    """The part of Accelerate's ``Accelerator`` that is used."""

    device: torch.device
    num_processes: int
    process_index: int
    is_main_process: bool

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor: ...
    def wait_for_everyone(self) -> None: ...


class OneProcess:
    """A single process, which does not need Accelerate."""

    num_processes, process_index, is_main_process = 1, 0, True

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        return tensor

    def wait_for_everyone(self) -> None:
        pass


def start_processes(device: str = "auto") -> Processes:
    """Join the process group, if there is one; ``auto`` uses a GPU where there is one.

    Without a GPU, Accelerate needs ``cpu=True``: otherwise each process would believe that it is the only one.
    """
    require_name("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise DataError("--device cuda: torch finds no GPU here; install a CUDA build of torch, or use --device cpu")
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return OneProcess(torch.device("cpu" if on_cpu else "cuda"))
    try:
        from accelerate import Accelerator
    except ImportError:
        raise DataError("many processes need accelerate: pip install 'phrasechain[train]'") from None
    joined: Processes = Accelerator(cpu=on_cpu)
    return joined


def is_first_process() -> bool:
    """Whether this is the main process (rank 0): the one that prints and writes."""
    return int(os.environ.get("RANK", "0")) == 0


def sum_gradients(weights: Sequence[nn.Parameter], figures: Tensor, processes: Processes) -> Tensor:
    """All-reduce (sum) the gradients in place, and ``figures`` (F,) with them; a missing gradient becomes 0."""
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
