"""The benchmark of a step: its batch, its floor, which is what a step multiplies, and the figures of its tables."""

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode

from phrasechain.bench import step as bench_step
from phrasechain.bench.batch import SIZES, Sizes, make_batch
from phrasechain.bench.evaluate import time_evaluation
from phrasechain.bench.step import Floor, Step, print_step

pytest.importorskip("accelerate", reason="training needs accelerate, of the extra 'train'")

BATCH = {"images": 3, "captions": 2, "regions": 9, "phrases": (1, 3), "tokens": (4, 7), "features": 11}
TINY = Sizes(**BATCH, words=6, lstm=8, rank=10, joint=7, hidden=4)


class CountProducts(TorchDispatchMode):
    """Adds up the multiplications of all matrix products within it."""

    total = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_", "bmm", "baddbmm"):
            first, second = arguments[-2:]
            self.total += first.numel() * second.shape[-1]
        return function(*arguments, **(options or {}))


def test_the_batch_is_of_the_papers_sizes() -> None:
    batch, targets = make_batch(SIZES["paper"])
    assert batch.features.shape == (16, 100, 2048)
    assert (len(batch.lengths), len(batch.spans), batch.steps) == (16, 44, 4)  # 2.75 phrases a caption
    tokens = [len(caption) for caption in batch.tokens]
    assert 13.5 < sum(tokens) / 16 < 14.5
    assert (batch.token_spans[:, 1] <= torch.tensor(tokens)[batch.phrase_caption]).all()
    assert targets.labelled.all()
    small, _ = make_batch(SIZES["small"])
    assert (small.features.shape, len(small.lengths)) == ((16, 100, 256), 80)


@pytest.mark.parametrize("sizes", [TINY, replace(TINY, phrases=(1,)), replace(TINY, regions=40)], ids=str)
def test_the_floor_is_the_matrix_products_of_a_step(sizes: Sizes) -> None:
    step, floor = Step(sizes), Floor(sizes)
    with CountProducts() as counted:
        step()
    needed = sum(first.numel() * second.shape[1] for first, second, _ in floor.products)
    # an LSTM's first step, whose states are 0, needs none; contexts are padded; both are little
    assert needed == pytest.approx(counted.total, rel=0.06)
    floor()


def test_a_step_trains() -> None:
    step = Step(TINY)
    named = dict(step.trainer.trained.named_parameters())
    before = {name: weight.detach().clone() for name, weight in named.items()}
    step()
    unchanged = [name for name, weight in named.items() if torch.equal(weight, before[name])]
    assert unchanged == []


def test_an_evaluation_answers_every_phrase() -> None:
    """Scaled to 1,000 images of five captions with 1, 3, 1, 3 and 1 phrases; ten images make two batches."""
    threads = torch.get_num_threads()
    found = time_evaluation(TINY, threads=1, images=10)
    assert (found["phrases"], found["images"]) == (9000, 16)
    assert 0 < found["seconds"] < 1000
    assert torch.get_num_threads() == threads


def test_the_tables_hold_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_step, "SIZES", {"tiny": TINY})
    monkeypatch.setattr(bench_step, "GROWTH", {"K regions": {5: replace(TINY, regions=5)}})
    threads = torch.get_num_threads()
    found = bench_step.bench_step(threads=1, seconds=0.01, growth=False)
    assert found["growth"] == {}
    row = found["sizes"]["tiny"]
    assert 0 < row["floor"] < row["step"]
    assert 50 < row["before"] <= row["peak"] < 5000  # megabytes
    found["growth"] = bench_step.bench_step(threads=1, seconds=0.01, memory=False)["growth"]
    assert torch.get_num_threads() == threads
    assert found["growth"]["K regions"]["5"].keys() == {"step", "floor"}
    console = Console(file=io.StringIO(), width=200)
    print_step(found, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"evaluation, sizes tiny: {found['evaluation']['tiny']['seconds']:.1f} s for 1,000 images" in printed
    for figure in (f"{row['step']:.1f}", f"{row['step'] / row['floor']:.2f}", f"{row['peak']:.0f}"):
        assert figure in printed
