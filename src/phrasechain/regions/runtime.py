"""What runs the region network: torch, or ONNX Runtime on graphs exported from the same weights.

The backbone pass and the region head are two callables; choosing boxes between them is torch either way. An export
takes seconds, so the graphs are cached in the user's cache folder, under a name that changes with the weights, the code
and the versions of the exporter and the runtime.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from phrasechain.core.errors import DataError, require_name
from phrasechain.core.files import cache_folder, private_folder, read_cached, write_cached
from phrasechain.regions.network import DenseProposals, FeatureMaps, RegionNetwork, RegionOutputs

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_GRAPHS = ("backbone", "region-head")
_TRACED = ("regions/network.py", "regions/trunk.py", "regions/roi_align.py", "regions/anchors.py", "core/boxes.py")
_EXPORTERS = ("torch", "onnx", "onnxscript", "onnxruntime")


class Runtime(NamedTuple):
    """The region network as two functions; both may be called by several threads at once."""

    backbone: Callable[[Tensor], tuple[FeatureMaps, DenseProposals]]  # pixels (1, 3, S, S) in [-1, 1]
    region_head: Callable[[FeatureMaps, Tensor], RegionOutputs]  # boxes (1, K, 4)


def load_runtime(name: str, network: RegionNetwork, weights_sha256: str) -> Runtime:
    """The runtime of this name for a network whose weights have this hash."""
    require_name("runtime", name, RUNTIMES)
    return RUNTIMES[name](network, weights_sha256)


def torch_runtime(network: RegionNetwork, _: str) -> Runtime:
    """The network itself."""
    return Runtime(network, network.region_head)


def onnx_runtime(network: RegionNetwork, weights_sha256: str) -> Runtime:
    """ONNX Runtime, one thread for each call: call it from several threads to use several cores."""
    backbone, region_head = _sessions(network, weights_sha256)

    def run_backbone(pixels: Tensor) -> tuple[FeatureMaps, DenseProposals]:
        found = _run(backbone, pixels)
        return FeatureMaps(*found[:2]), DenseProposals(*found[2:])

    def run_region_head(maps: FeatureMaps, boxes: Tensor) -> RegionOutputs:
        return RegionOutputs(*_run(region_head, *maps, boxes))

    return Runtime(run_backbone, run_region_head)


RUNTIMES: dict[str, Callable[[RegionNetwork, str], Runtime]] = {"torch": torch_runtime, "onnx": onnx_runtime}


def _run(session: InferenceSession, *inputs: Tensor) -> list[Tensor]:
    names = [entry.name for entry in session.get_inputs()]
    values = {name: value.contiguous().numpy() for name, value in zip(names, inputs, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, values)]


def _sessions(network: RegionNetwork, weights_sha256: str) -> tuple[InferenceSession, InferenceSession]:
    """Sessions of the two graphs: from the cache if it has them whole, else exported."""
    try:
        import onnx  # noqa: F401 - the exporter needs these two
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError:
        raise DataError("the onnx runtime is not installed: pip install 'phrasechain[fast]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors

    def session(graph: bytes) -> InferenceSession:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    folder = private_folder(cache_folder() / "regions")
    paths = [folder / f"{part}-{_cache_key(weights_sha256)}.onnx" for part in _GRAPHS] if folder else []
    cached = [graph for path in paths if (graph := read_cached(path)) is not None]
    graphs = cached if len(cached) == len(_GRAPHS) else export_graphs(network)
    for path, graph in zip(paths, graphs, strict=False) if graphs is not cached else ():
        write_cached(path, graph)
    return session(graphs[0]), session(graphs[1])


def export_graphs(network: RegionNetwork) -> tuple[bytes, bytes]:
    """The backbone pass and the region head as ONNX; the number of boxes is dynamic."""
    pixels = torch.zeros(1, 3, network.size, network.size)
    with torch.no_grad():
        maps, _ = network(pixels)
    boxes = torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]).repeat(1, 3, 1)
    dynamic: tuple[dict[int, Any], ...] = ({}, {}, {1: torch.export.Dim("K", min=1)})
    return _export(network, (pixels,)), _export(_RegionHead(network), (*maps, boxes), dynamic)


class _RegionHead(nn.Module):
    """The region head with its maps as separate inputs, for the exporter."""

    def __init__(self, network: RegionNetwork) -> None:
        super().__init__()
        self.head = network.region_head

    def forward(self, fine: Tensor, semantic: Tensor, boxes: Tensor) -> RegionOutputs:
        found: RegionOutputs = self.head(FeatureMaps(fine, semantic), boxes)
        return found


def _export(module: nn.Module, inputs: tuple[Any, ...], dynamic_shapes: Any = None) -> bytes:
    with _silence():
        program = torch.onnx.export(module, inputs, dynamo=True, dynamic_shapes=dynamic_shapes, verbose=False)
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the exporter's warnings on optional packages and on its own future."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _cache_key(weights_sha256: str) -> str:
    digest = hashlib.sha256(weights_sha256.encode())
    for package in _EXPORTERS:
        digest.update(f"{package} {version(package)}\n".encode())
    for name in _TRACED:
        digest.update(Path(str(files("phrasechain") / name)).read_bytes())
    return digest.hexdigest()[:32]
