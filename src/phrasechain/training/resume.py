"""What a training goes on from after a kill: weights, the optimiser's moments and the step, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from phrasechain.core.errors import DataError
from phrasechain.core.files import write_atomically
from phrasechain.core.tensors import file_errors, read_tensors

CHECKPOINT = "checkpoint.safetensors"
_WHAT, _REMEDY = "checkpoint", "remove it to begin anew"


def save_state(
    folder: Path, step: int, module: nn.Module, optimizer: torch.optim.Optimizer, more: Mapping[str, Tensor]
) -> None:
    """Write the state after ``step`` steps, with ``more`` tensors, all or nothing."""
    tensors = {f"weights.{name}": weight for name, weight in module.state_dict().items()}
    tensors |= {f"more.{name}": value for name, value in more.items()}
    for number, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"step": str(step)})
    write_atomically(folder / CHECKPOINT, data)


def load_state(
    folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> tuple[int, dict[str, Tensor]]:
    """Take up the state in a folder, or without an optimiser the weights alone; the step, and what else was saved."""
    path = folder / CHECKPOINT
    if not path.exists():
        raise DataError(f"{path}: there is no such file; give the folder of a run")
    file = read_tensors(path, _WHAT, finite=False, remedy=_REMEDY)
    with file_errors(path, _WHAT, _REMEDY):
        step = int(file.metadata["step"])
        module.load_state_dict(part_of(file.tensors, "weights."))
        if optimizer is not None:
            _load_moments(optimizer, part_of(file.tensors, "optimizer."))
    return step, part_of(file.tensors, "more.")


def _load_moments(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The optimizer's state, in the weights' own layout in memory: its fused step trusts that they agree."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, kind = name.split(".")
        if value.dim():
            value = torch.empty_like(weights[int(number)].detach()).copy_(value)
        moments.setdefault(int(number), {})[kind] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
