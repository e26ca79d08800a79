"""Safetensors files: the one way in which weights and other tensors are read, and how a module gets its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import SEEK_END
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from phrasechain.core.errors import DataError, library_errors
from phrasechain.core.files import reason

_LARGEST = 1 << 34  # bytes of a file, where nothing smaller is known
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class TensorFile(NamedTuple):
    """The tensors of a file, mapped into memory until they are used, and the texts of its header."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def read_tensors(
    path: Path,
    what: str,
    *,
    format: str | None = None,
    largest: int = _LARGEST,
    finite: bool = True,
    remedy: str = "",
) -> TensorFile:
    """Read a safetensors file; one that cannot be used is refused in one line.

    Args:
        what: the kind of file, for messages: ``region network``.
        format: what ``format`` in the header must be.
        largest: bytes above which a file is refused unread.
        finite: refuse NaN and infinities. Otherwise nothing of the tensors is read yet.
        remedy: what to do about a broken file.
    """
    with file_errors(path, what, remedy):
        with path.open("rb") as raw:
            if raw.seek(0, SEEK_END) > largest:
                raise DataError(f"more than {largest:,} bytes, so it is no {what}")
        with library_errors(f"broken {what}"), safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            found = metadata.get("format", "no format at all")
            if format is not None and found != format:
                raise DataError(f"not a {what} of this version ({shorten(found, 60)}, not {format})")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        if odd := next((name for name, tensor in tensors.items() if tensor.is_complex()), None):
            raise DataError(f"broken {what}: {odd} holds complex numbers")
        for name, tensor in tensors.items() if finite else ():
            if tensor.is_floating_point() and not _is_finite(tensor):
                raise DataError(f"broken {what}: {name} is not finite")
    return TensorFile(tensors, metadata)


def _is_finite(tensor: Tensor) -> bool:
    """Of numbers of 16 to 64 bits: nothing computes with smaller ones."""
    return tensor.dtype in _FLOATS and bool((tensor * 0).sum() == 0)  # 0·∞ is NaN; isfinite is slow


@contextmanager
def file_errors(path: Path, what: str, remedy: str = "") -> Iterator[None]:
    """Name the file in what is found to be wrong with it, while it is read and something is made of it."""
    end = f"; {remedy}" if remedy else ""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}{end}") from None


class EmptyParameters(TorchFunctionMode):
    """Within it modules are built without weights: their parameters are on the meta device, and nothing is drawn.

    It is ``torch.empty`` that gives meta tensors, which layers make their parameters with. Buffers are computed as
    ever, also those that are in no file. (A draw on the meta device would import torch's compiler.)
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = kwargs or {}
        if func is torch.empty and values.get("device") is None:
            return func(*args, **(values | {"device": "meta"}))
        if getattr(func, "__module__", "") == "torch.nn.init" or func in (Tensor.normal_, Tensor.uniform_):
            return args[0] if args else values["tensor"]
        return func(*args, **values)


def assign_weights(
    module: nn.Module, tensors: Mapping[str, Tensor], source: str, *, parameters_only: bool = False
) -> None:
    """Make copies of the tensors, in the parameters' dtype, the weights of a module built with ``EmptyParameters``.

    No memory is taken before names and shapes are known to agree.

    Args:
        source: what says how the module was built, for messages: ``config.json``.
        parameters_only: the tensors are the parameters alone; buffers stay as the module made them.
    """
    wanted = dict(module.named_parameters()) if parameters_only else module.state_dict()
    _require_fit(wanted, tensors, source)
    copies = {name: tensor.to(wanted[name].dtype, copy=True) for name, tensor in tensors.items()}  # off the file
    module.load_state_dict(copies, strict=not parameters_only, assign=True)


def _require_fit(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse tensors with other names or shapes; the message names the first."""
    needed, found = ({name: tuple(each.shape) for name, each in group.items()} for group in (wanted, tensors))
    if needed == found:
        return
    name = min(name for name in needed.keys() | found.keys() if needed.get(name) != found.get(name))
    raise DataError(
        f"does not fit its {source}: {name} has shape {found.get(name, 'none')}, not {needed.get(name, 'none')}"
    )
