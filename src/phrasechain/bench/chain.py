"""``phrasechain bench chain``: time and memory as ratios to named peers and a lower bound, measured in one run."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from phrasechain.chain import ChainCRF, backend, kernel
from phrasechain.core.memory import peak_bytes
from phrasechain.core.progress import track
from phrasechain.core.terminal import print_table

ChainShape = tuple[int, int, int]  # B sequences, T steps, K labels
SHAPES: tuple[ChainShape, ...] = ((16, 3, 100), (16, 8, 100), (64, 32, 20), (32, 128, 10), (4, 16, 500))
PEER = "pytorch-crf nll"
DECODE_PEER = "pytorch-crf decode"
FIRST_ORDER, SECOND_ORDER = "kl, full transitions, compiled", "kl, transitions and skips, compiled"
PRODUCTS = "three matrix products per step, alone"


@dataclass
class Inputs:
    """Random scores, and soft targets as in phrase grounding: about five labels per step have mass."""

    emissions: Tensor  # (B, T, K)
    transitions: Tensor  # (B, T-1, K, K)
    skips: Tensor  # (B, T-2, K, K)
    shared: Tensor  # (K, K)
    q: Tensor  # (B, T, K)
    labels: Tensor  # (B, T)
    peers: dict[str, torch.nn.Module] = field(default_factory=dict)

    @staticmethod
    def random(shape: ChainShape) -> Inputs:
        B, T, K = shape
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).requires_grad_()

        q = torch.rand(B, T, K, generator=generator)
        q = torch.where(q >= q.topk(min(5, K), -1).values[..., -1:], q, 0.0)
        labels = torch.randint(K, (B, T), generator=generator)
        links = normal(B, T - 1, K, K), normal(B, T - 2, K, K)
        return Inputs(normal(B, T, K), *links, normal(K, K), q / q.sum(-1, keepdim=True), labels)

    def pytorch_crf(self) -> torch.nn.Module:
        if "pytorch-crf" not in self.peers:
            from torchcrf import CRF

            self.peers["pytorch-crf"] = CRF(self.emissions.shape[2], batch_first=True)
        return self.peers["pytorch-crf"]

    def clear(self) -> None:
        for tensor in (self.emissions, self.transitions, self.skips, self.shared):
            tensor.grad = None
        for module in self.peers.values():
            module.zero_grad(set_to_none=True)


def kl_full(x: Inputs) -> None:
    ChainCRF(x.emissions, x.transitions).kl(x.q).sum().backward()  # type: ignore[no-untyped-call]


def kl_full_pure_torch(x: Inputs) -> None:
    with kernel.disabled():
        kl_full(x)


def kl_skips(x: Inputs) -> None:
    ChainCRF(x.emissions, x.transitions, skips=x.skips).kl(x.q).sum().backward()  # type: ignore[no-untyped-call]


def kl_skips_pure_torch(x: Inputs) -> None:
    with kernel.disabled():
        kl_skips(x)


def products(x: Inputs) -> None:
    """The three batched matrix products that skips cost per step, alone."""
    with torch.no_grad():
        for skip in x.skips.unbind(1):
            before = x.transitions[:, 0]
            torch.bmm(before.transpose(1, 2), skip), torch.bmm(before, skip), torch.bmm(before, skip.transpose(1, 2))


def viterbi_skips(x: Inputs) -> None:
    with torch.no_grad():
        ChainCRF(x.emissions, x.transitions, skips=x.skips).viterbi()


def nll_shared(x: Inputs) -> None:
    ChainCRF(x.emissions, x.shared).nll(x.labels).sum().backward()  # type: ignore[no-untyped-call]


def viterbi_full(x: Inputs) -> None:
    with torch.no_grad():
        ChainCRF(x.emissions, x.transitions).viterbi()


def pytorch_crf_nll(x: Inputs) -> None:
    (-x.pytorch_crf()(x.emissions, x.labels, reduction="sum")).backward()


def pytorch_crf_decode(x: Inputs) -> None:
    with torch.no_grad():
        x.pytorch_crf().decode(x.emissions)  # type: ignore[operator]


def plain_loop(x: Inputs) -> None:
    """The textbook implementation: a logsumexp loop, and autograd for the gradient."""
    alpha = x.emissions[:, 0]
    for t, step in enumerate(x.transitions.unbind(1), start=1):
        alpha = torch.logsumexp(alpha[:, :, None] + step, 1) + x.emissions[:, t]
    expected = (x.q * x.emissions).sum() + torch.einsum("bti,btij,btj->", x.q[:, :-1], x.transitions, x.q[:, 1:])
    (alpha.logsumexp(-1).sum() - expected).backward()  # type: ignore[no-untyped-call]


def torch_struct(x: Inputs) -> None:
    from torch_struct import LinearChainCRF

    potentials = x.transitions.transpose(2, 3)  # it indexes [new, old]
    first = potentials[:, :1] + x.emissions[:, :1, None, :] + x.emissions[:, 1:2, :, None]
    rest = potentials[:, 1:] + x.emissions[:, 2:, :, None]
    LinearChainCRF(torch.cat([first, rest], 1)).partition.sum().backward()


def floor(x: Inputs) -> None:
    """The lower bound: exp of the transitions, and one write of the gradient."""
    with torch.no_grad():
        x.transitions.exp()
        torch.empty_like(x.transitions).fill_(1.0)


Method = Callable[[Inputs], None]
METHODS: dict[str, tuple[Method, str]] = {
    FIRST_ORDER: (kl_full, PEER),
    "kl, full transitions, pure torch": (kl_full_pure_torch, PEER),
    "nll, one shared (K, K)": (nll_shared, PEER),
    SECOND_ORDER: (kl_skips, PEER),
    "kl, transitions and skips, pure torch": (kl_skips_pure_torch, PEER),
    PRODUCTS: (products, PEER),
    "logsumexp loop, autograd": (plain_loop, PEER),
    "torch-struct, log Z": (torch_struct, PEER),
    "floor": (floor, PEER),
    PEER: (pytorch_crf_nll, PEER),
    "viterbi, full transitions": (viterbi_full, DECODE_PEER),
    "viterbi, transitions and skips": (viterbi_skips, DECODE_PEER),
    DECODE_PEER: (pytorch_crf_decode, DECODE_PEER),
}
MEMORY_OF = (FIRST_ORDER, "kl, full transitions, pure torch", SECOND_ORDER, "logsumexp loop, autograd")


def methods_for(shape: ChainShape) -> list[str]:
    """The methods that can run here at this shape."""
    B, T, K = shape
    names = list(METHODS)
    if backend() != "compiled":
        names = [name for name in names if name not in (FIRST_ORDER, SECOND_ORDER)]
    if find_spec("torchcrf") is None:
        names = [name for name in names if name not in (PEER, DECODE_PEER)]
    if find_spec("torch_struct") is None or B * T * K**3 * 4 > 2e9:  # its scan stores (B, T/2, K, K, K)
        names.remove("torch-struct, log Z")
    return names


def time_methods(shape: ChainShape, threads: int, seconds: float) -> dict[str, float]:
    """Median milliseconds of each method; the methods run in interleaved bursts, so a slow moment affects all of them.

    The first call of a burst is not counted, since the caches are filled with the other methods' data.
    """
    torch.set_num_threads(threads)
    x, names = Inputs.random(shape), methods_for(shape)
    times: dict[str, list[float]] = {name: [] for name in names}
    slow = {name for name in names if _time(METHODS[name][0], x) > seconds / 10}
    start, rounds = time.perf_counter(), 0
    gc.disable()
    while rounds < 3 or (time.perf_counter() - start < seconds and rounds < 100):
        for name in names:
            if name not in slow or rounds == 0:
                burst = [_time(METHODS[name][0], x) for _ in range(2 if name in slow else 6)]
                times[name] += burst[1:]
        rounds += 1
    gc.enable()
    return {name: statistics.median(seconds_each) * 1e3 for name, seconds_each in times.items()}


def _keep_freed_memory() -> None:
    """Stop glibc from returning freed memory to the system, as allocators made for training do.

    Otherwise page faults take much of the time at small sizes, at random more in one method than in the next.
    """
    if sys.platform == "linux":
        trim_threshold, mmap_threshold = -1, -3
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 1 << 25)


def _time(method: Method, x: Inputs) -> float:
    start = time.perf_counter()
    method(x)
    elapsed = time.perf_counter() - start
    x.clear()
    return elapsed


def relative_peak_memory(name: str, shape: ChainShape) -> float:
    """Peak memory of a forward and backward pass as a multiple of transitions (and skips), their gradients included.

    Measured in a separate process, on a batch enlarged until the transitions take 64 MB.
    """
    B, T, K = shape
    enlarged = (max(B, (1 << 24) // ((T - 1) * K * K)), T, K)
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_of_one_pass, (name, enlarged))


def _peak_of_one_pass(name: str, shape: ChainShape) -> float:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    METHODS[name][0](Inputs.random((2, 2, 2)))  # the first call loads libraries, which is not counted
    x = Inputs.random(shape)
    before = peak_bytes()
    METHODS[name][0](x)
    return (peak_bytes() - before) / (x.transitions.nbytes + (x.skips.nbytes if name == SECOND_ORDER else 0))


def bench_chain(threads: tuple[int, ...] = (1, 2), seconds: float = 4.0, memory: bool = True) -> dict[str, object]:
    """The results of ``phrasechain bench chain`` as plain data."""
    warnings.filterwarnings("ignore", message=".*(arg_constraints|uint8 condition).*")  # of the peers
    _keep_freed_memory()
    before = torch.get_num_threads()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    jobs = [(count, shape) for count in threads for shape in SHAPES]
    times: dict[str, dict[str, dict[str, float]]] = {}
    for count, shape in track(jobs, len(jobs), "timing"):
        times.setdefault(str(count), {})[_label(shape)] = time_methods(shape, count, seconds)
    torch.set_num_threads(before)
    results: dict[str, object] = {"load_average": load, "torch": torch.__version__, "backend": backend(), "ms": times}
    if memory:
        names = [name for name in MEMORY_OF if name in methods_for(SHAPES[0])]
        pairs = [(name, shape) for name in names for shape in SHAPES]
        peaks: dict[str, dict[str, float]] = {}
        for name, shape in track(pairs, len(pairs), "peak memory"):
            peaks.setdefault(name, {})[_label(shape)] = relative_peak_memory(name, shape)
        results["peak_memory"] = peaks
    return results


def print_chain(results: dict[str, object], console: Console) -> None:
    """Tables of milliseconds, with the ratio to the peer in brackets, and of memory."""
    console.print(f"torch {results['torch']}, backend {results['backend']}, load average {results['load_average']:.2f}")
    times = results["ms"]
    assert isinstance(times, dict)
    for threads, by_shape in times.items():
        table = Table(title=f"ms, and as a multiple of pytorch-crf ({threads} thread{'s' * (threads != '1')})")
        table.add_column("forward + backward; B,T,K =")
        for label in by_shape:
            table.add_column(label, justify="right")
        for name, (_, peer) in METHODS.items():
            table.add_row(name, *(_cell(by_shape[label], name, peer) for label in by_shape))
        _add_second_order(table, by_shape)
        print_table(table, console)
    peaks = results.get("peak_memory")
    if isinstance(peaks, dict):
        table = Table(title="peak memory over the transitions (and skips), gradients included")
        table.add_column("B,T,K =")
        for shape in SHAPES:
            table.add_column(_label(shape), justify="right")
        for name, by_label in peaks.items():
            table.add_row(name, *(f"{by_label[_label(shape)]:.2f}" for shape in SHAPES))
        print_table(table, console)
    if find_spec("torchcrf") is None:
        console.print("pytorch-crf is not installed, so there are no ratios: pip install 'phrasechain[dev]'")


def _add_second_order(table: Table, by_shape: dict[str, dict[str, float]]) -> None:
    """What skips cost, as a multiple of the chain without them and of the products that they cannot do without."""
    if all(SECOND_ORDER in times for times in by_shape.values()):
        ratios = (times[SECOND_ORDER] / (times[FIRST_ORDER] + times[PRODUCTS]) for times in by_shape.values())
        table.add_row("skips over (no skips + products)", *(f"{ratio:.2f}" for ratio in ratios))


def _cell(times: dict[str, float], name: str, peer: str) -> str:
    if name not in times:
        return "–"
    ratio = f" ({times[name] / times[peer]:.2f})" if peer in times and name != peer else ""
    return f"{times[name]:.2f}{ratio}"


def _label(shape: ChainShape) -> str:
    return ",".join(map(str, shape))
