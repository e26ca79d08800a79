"""Where a grounder's model runs, and the defaults of torch that it needs."""

from __future__ import annotations

import torch

from phrasechain.core.errors import DataError


def find_device(name: str) -> torch.device:
    """The device of this name, ``auto`` for a GPU where there is one; what is not there is refused."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise DataError(f"device {name}: torch finds no GPU here; install a CUDA build of torch, or use cpu")
    try:
        torch.ones(1, device=name).cpu()  # torch knows names of devices that are not there
    except (RuntimeError, AssertionError):
        raise DataError(f"no device named {name!r} here; there are: auto, cpu, cuda") from None
    return torch.device(name)


def require_usual_torch() -> None:
    """Refuse other defaults of torch than those that models are written for."""
    if torch.get_default_dtype() != torch.float32:
        raise DataError(
            f"torch's default dtype is {torch.get_default_dtype()}; a grounder needs torch.set_default_dtype("
            "torch.float32)"
        )
    if torch.get_default_device().type != "cpu":
        raise DataError(
            f"torch's default device is {torch.get_default_device()}; a grounder needs torch.set_default_device("
            '"cpu"), and takes its own as Grounder.from_pretrained(device=...)'
        )
