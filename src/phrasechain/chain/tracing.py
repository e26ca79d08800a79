"""Whether a tensor has values now, or is traced, fake, meta or transformed by torch.func.

The compiled kernel, which reads memory behind torch's back, and branches that depend on values need values.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)


def is_eager(tensor: Tensor) -> bool:
    """Not under torch.compile, make_fx, torch.jit.trace or another dispatch mode, and not for fake or meta tensors."""
    return (
        type(tensor) in _PLAIN
        and not torch.compiler.is_compiling()
        and not tensor.is_meta
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
    )


def is_transformed() -> bool:
    """Whether a transform of torch.func is active, so that tensors may be batched or carry gradients and tangents."""
    return torch._C._are_functorch_transforms_active()


def has_values(tensor: Tensor) -> bool:
    """Whether the values of this tensor can be read here and now."""
    return is_eager(tensor) and not is_transformed()
