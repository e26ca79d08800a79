"""The region network in a file: float16 safetensors with everything that is needed to build it again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from phrasechain.errors import DataError
from phrasechain.files import reason, write_atomically
from phrasechain.vision.network import RegionNetwork

FORMAT = "phrasechain regions 1"
_LARGEST = 1 << 28  # bytes; the embedded file has 13 million
_SIDES = "sides"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A network ready to run, and the hash of the file that it came from."""

    network: RegionNetwork
    sha256: str


def save_network(path: Path, network: RegionNetwork) -> None:
    """Write the network, all or nothing."""
    tensors = {name: tensor.half().contiguous() for name, tensor in network.state_dict().items()}
    tensors[_SIDES] = network.sides.float()
    shape = {"dimension": network.dimension, "size": network.size}
    write_atomically(path, save(tensors, {"format": FORMAT, "shape": json.dumps(shape)}))


def load_network(path: Path | None = None) -> Loaded:
    """Read a network, by default the embedded one, for inference: float32, channels last."""
    path = Path(str(files("phrasechain.vision") / "regions.safetensors")) if path is None else path
    try:
        if path.stat().st_size > _LARGEST:
            raise DataError(f"{path}: more than {_LARGEST:,} bytes, so it is no region network")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            if about.get("format") != FORMAT:
                found = about.get("format", "no format at all")
                raise DataError(f"{path}: not a region network of this version ({found}); it must be {FORMAT!r}")
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - no mapping
        shape = json.loads(about["shape"])
        network = RegionNetwork(int(shape["dimension"]), tensors.pop(_SIDES), int(shape["size"]))
        network.load_state_dict(tensors)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{path}: broken weights: {str(error).splitlines()[0]}") from None
    return Loaded(network.eval().to(memory_format=torch.channels_last), digest)  # type: ignore[call-overload]
