"""The region network in a file: its weights in float16, and the shape to build it from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from phrasechain.core.errors import DataError, located, unknown_name
from phrasechain.core.files import write_atomically
from phrasechain.core.json_lines import parse_settings
from phrasechain.core.tensors import EmptyParameters, assign_weights, file_errors, read_tensors
from phrasechain.regions.network import RegionNetwork, remove_norms, without_norms
from phrasechain.regions.trunk import LITE0, SHAPES
from phrasechain.store.shard import MAX_DIMENSION

REGIONS_FORMAT = "phrasechain regions 3"
EMBEDDED = Path(str(files("phrasechain.regions") / "regions.safetensors"))
_LARGEST = 1 << 28  # bytes; the embedded file has 13 million
_LARGEST_SIDE = 2048  # of the square that photos are squashed to
_MOST_ANCHORS = 100
_SIDES = "sides"
_WHAT = "region network"
#: Parts whose names in files are older than those in the code.
_IN_FILE = {"region_head": "describe", "proposal_heads": "propose"}
_IN_NETWORK = {old: new for new, old in _IN_FILE.items()}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A network ready to run, and the hash of the file that it came from."""

    network: RegionNetwork
    sha256: str


def save_network(path: Path, network: RegionNetwork) -> None:
    """Write the network, without its batch norms, all or nothing."""
    state = _renamed(without_norms(network).state_dict(), _IN_FILE)
    tensors = {name: tensor.half().contiguous() for name, tensor in state.items()}
    tensors[_SIDES] = network.sides.float()
    shape: dict[str, Any] = {"dimension": network.dimension, "size": network.size}
    if network.trunk.shape != LITE0:  # files of Lite0 never named it
        shape["trunk"] = network.trunk.shape.name
    write_atomically(path, _with_sorted_header(save(tensors, {"format": REGIONS_FORMAT, "shape": json.dumps(shape)})))


def _with_sorted_header(data: bytes) -> bytes:
    """The same safetensors file with a sorted header: the library's order, and so the file's hash, would vary."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[end:]


def _renamed(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors with the first part of their names replaced."""
    parts = {name: name.partition(".") for name in tensors}
    return {names.get(first, first) + dot + rest: tensors[name] for name, (first, dot, rest) in parts.items()}


def load_network(path: Path | None = None) -> Loaded:
    """Read a network, by default the embedded one, for inference: float32, channels last."""
    path = EMBEDDED if path is None else path
    file = read_tensors(path, _WHAT, format=REGIONS_FORMAT, largest=_LARGEST)
    with file_errors(path, _WHAT):
        with located(f"broken {_WHAT}"):
            shape = parse_settings(file.metadata.get("shape", "{}").encode("utf-8", "replace"))
        if _SIDES not in file.tensors:
            raise DataError(f"broken {_WHAT}: it has no tensor {_SIDES!r}")
        with EmptyParameters():
            network = _empty_network(shape, file.tensors.pop(_SIDES).clone())
        assign_weights(network, _renamed(file.tensors, _IN_NETWORK), "shape")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Loaded(network.eval().to(memory_format=torch.channels_last), digest)  # type: ignore[call-overload]


def _empty_network(shape: Mapping[str, Any], sides: Tensor) -> RegionNetwork:
    """A network of the shape that a file claims, once its sizes are known to be sensible."""
    dimension, size, trunk = shape.get("dimension"), shape.get("size"), shape.get("trunk", LITE0.name)
    if type(dimension) is not int or not 1 <= dimension <= MAX_DIMENSION:
        raise DataError(f"broken {_WHAT}: the dimension must be a number from 1 to {MAX_DIMENSION}")
    if type(size) is not int or not 32 <= size <= _LARGEST_SIDE or size % 32:
        raise DataError(f"broken {_WHAT}: the side must be a multiple of 32 up to {_LARGEST_SIDE}")
    is_pairs = sides.dtype == torch.float32 and sides.ndim == 3 and len(sides) == 2 and sides.shape[2] == 2
    if not is_pairs or not 1 <= sides.shape[1] <= _MOST_ANCHORS:
        raise DataError(f"broken {_WHAT}: the anchors must have the shape (2, up to {_MOST_ANCHORS}, 2)")
    if not isinstance(trunk, str) or trunk not in SHAPES:
        raise DataError(f"broken {_WHAT}: {unknown_name('trunk', str(trunk), SHAPES)}")
    network = RegionNetwork(dimension, sides, size, SHAPES[trunk])
    remove_norms(network)
    return network
