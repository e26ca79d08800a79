"""``phrasechain bench step``: one step of training against the matrix products that no step can do without.

The floor is the forward and backward products of the BiLSTM, U, V once per image, P, the heads, A, B and C at the same
shapes, into memory that is there already: no optimiser, nothing element by element, no chain. The step is the whole of
``Trainer.take_step``. Token vectors are given, as those of a frozen encoder are that were stored. What inference takes,
without training, stands below the tables.

Axes: B captions, P phrases, K regions, D features.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import Dataset

from phrasechain.bench.batch import SIZES, Sizes, around, make_batch, make_model
from phrasechain.bench.evaluate import CAPTIONS, IMAGES, time_evaluation
from phrasechain.core.distributed import start_processes
from phrasechain.core.memory import keep_freed_memory, peak_bytes
from phrasechain.core.progress import track
from phrasechain.core.terminal import print_table
from phrasechain.model.checkpoint import FeatureSource, ModelInfo
from phrasechain.model.config import Model
from phrasechain.model.scores import SPATIAL
from phrasechain.training.grounder.task import GroundingTask
from phrasechain.training.loop import Trainer
from phrasechain.training.task import Plan

#: How a step grows: the sizes of ``paper`` with one changed.
GROWTH: dict[str, dict[int, Sizes]] = {
    "K regions": {K: replace(Sizes(), regions=K) for K in (25, 50, 100, 200, 400)},
    "T phrases of each caption": {T: replace(Sizes(), phrases=(T,)) for T in (1, 2, 4, 8)},
    "B captions, each of its own image": {B: replace(Sizes(), images=B) for B in (4, 8, 16, 32, 64)},
}


class Step:
    """A step of training, ready to be taken again and again."""

    def __init__(self, sizes: Sizes) -> None:
        torch.manual_seed(0)
        model, self.part = make_model(sizes), make_batch(sizes)
        info = ModelInfo(Model(), FeatureSource(sizes.features, "bench", None))
        task = GroundingTask(model.train(), Dataset(), score=dict, info=info, rate=lambda step: 1e-3)
        self.trainer = Trainer(task, Plan(steps=1, clip=10.0), start_processes("cpu"))

    def __call__(self) -> None:
        self.trainer.take_step([self.part])


class Floor:
    """The step's matrix products, forward and backward, by the factors of each: (rows, inner) and (inner, columns)."""

    def __init__(self, sizes: Sizes) -> None:
        counts = sizes.token_counts
        H, D, R, J = sizes.lstm, sizes.features + SPATIAL, sizes.rank, sizes.joint
        B, N = len(counts), sizes.images * sizes.regions
        P = sum(around(sizes.phrases, B))
        products = [*self._linear(sum(counts), sizes.words, 8 * H, is_input=True)]
        for n in range(max(counts)):
            running = sum(count > n for count in counts)
            products += 2 * [(running, H, 4 * H), (running, 4 * H, H)]
        products += 2 * [(4 * H, sum(counts), H)]
        products += self._linear(P, 2 * H, R)
        products += self._linear(N, D, R, is_input=True)
        products += self._linear(P * sizes.regions, R, J)
        products += self._linear(P * sizes.regions, J, 5)
        products += 2 * self._linear(N, D, sizes.hidden, is_input=True)
        products += self._linear(P - B, 2 * H, sizes.hidden)
        self.products = [_product(*shape) for shape in products if 0 not in shape]

    @staticmethod
    def _linear(rows: int, inner: int, columns: int, is_input: bool = False) -> list[tuple[int, int, int]]:
        """A layer, the gradient of its weight and, unless nothing lies before it, that of its input."""
        return [(rows, inner, columns), (columns, rows, inner)] + ([] if is_input else [(rows, columns, inner)])

    def __call__(self) -> None:
        for first, second, result in self.products:
            torch.mm(first, second, out=result)


def _product(rows: int, inner: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)


def time_step(sizes: Sizes, seconds: float) -> dict[str, float]:
    """Milliseconds of a step and of its floor: medians of calls that take turns, so that a slow moment hits both."""
    methods: dict[str, Callable[[], None]] = {"step": Step(sizes), "floor": Floor(sizes)}
    times: dict[str, list[float]] = {name: [] for name in methods}
    for method in methods.values():
        method()
    start = time.perf_counter()
    gc.disable()
    while len(times["step"]) < 3 or time.perf_counter() - start < seconds:
        for name, method in methods.items():
            begin = time.perf_counter()
            method()
            times[name].append((time.perf_counter() - begin) * 1e3)
    gc.enable()
    return {name: statistics.median(found) for name, found in times.items()}


def peak_memory(sizes: Sizes, threads: int) -> dict[str, float]:
    """Megabytes of a fresh process at most, all in all and before the first step was taken."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_of_steps, (sizes, threads))


def _peak_of_steps(sizes: Sizes, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    keep_freed_memory()
    step = Step(sizes)
    before = peak_bytes()
    for _ in range(3):  # the optimiser's moments are there from the first on
        step()
    return {"peak": peak_bytes() / 1e6, "before": before / 1e6}


def bench_step(threads: int = 2, seconds: float = 10.0, memory: bool = True, growth: bool = True) -> dict[str, Any]:
    """Everything that ``phrasechain bench step`` prints, as plain data."""
    keep_freed_memory()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    found: dict[str, Any] = {"load_average": load, "torch": torch.__version__, "threads": threads}
    kinds = GROWTH if growth else {}
    jobs = [("", name, sizes) for name, sizes in SIZES.items()]
    jobs += [(kind, str(value), sizes) for kind, by_value in kinds.items() for value, sizes in by_value.items()]
    results: dict[str, dict[str, dict[str, float]]] = {}
    for kind, name, sizes in track(jobs, len(jobs), "timing"):
        results.setdefault(kind, {})[name] = _measure(sizes, threads, seconds if not kind else seconds / 4, memory)
    found["sizes"], found["growth"] = results.pop(""), results
    images = max(1, round(4 * seconds))
    found["evaluation"] = {name: time_evaluation(sizes, threads, images) for name, sizes in SIZES.items()}
    return found


def _measure(sizes: Sizes, threads: int, seconds: float, memory: bool) -> dict[str, float]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    found = time_step(sizes, seconds)
    torch.set_num_threads(before)
    return found | (peak_memory(sizes, threads) if memory else {})


def print_step(found: dict[str, Any], console: Console) -> None:
    """Tables of milliseconds, their ratio to the floor, and megabytes."""
    console.print(f"torch {found['torch']}, {found['threads']} threads, load average {found['load_average']:.2f}")
    print_table(_table("one step of training", "sizes", found["sizes"].items()), console)
    for kind, by_value in found["growth"].items():
        print_table(_table(f"as it grows with {kind}", kind.split()[0], by_value.items()), console)
    for name, row in found["evaluation"].items():
        images = f"{IMAGES:,} images with {CAPTIONS} captions each ({row['phrases']:,.0f} phrases)"
        console.print(f"evaluation, sizes {name}: {row['seconds']:.1f} s for {images}, by {row['images']:.0f} of them")


def _table(title: str, first: str, rows: Iterable[tuple[str, dict[str, float]]]) -> Table:
    table = Table(title=title)
    for column in (first, "step, ms", "floor, ms", "step / floor", "peak memory, MB"):
        table.add_column(column, justify="right")
    for name, row in rows:
        peak = f"{row['peak']:.0f}" if "peak" in row else "–"
        table.add_row(name, f"{row['step']:.1f}", f"{row['floor']:.1f}", f"{row['step'] / row['floor']:.2f}", peak)
    return table
