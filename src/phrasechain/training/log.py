"""Losses and scores of a run (``metrics.jsonl``, TensorBoard, ``curves.png``), each start (``environment.jsonl``)."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phrasechain import __version__
from phrasechain.core.distributed import Processes
from phrasechain.core.errors import DataError
from phrasechain.core.files import write_atomically
from phrasechain.evaluation.report import figure_png

Log = Callable[[Mapping[str, float]], None]
_WINDOW = 50  # steps that the shown losses are averaged over
METRICS, ENVIRONMENT, CURVES, TENSORBOARD = "metrics.jsonl", "environment.jsonl", "curves.png", "tensorboard"


@contextmanager
def open_log(folder: Path, step: int, processes: Processes, tensorboard: bool = False) -> Iterator[Log]:
    """What logs figures of a run that begins after ``step`` steps; lines of later ones are dropped.

    Of many processes the first writes.
    """
    if not processes.is_main_process:
        yield lambda figures: None
        return
    writer = _tensorboard(folder, step) if tensorboard else None
    _truncate(folder, step)
    _append(folder / ENVIRONMENT, _environment(step, processes))

    def log(figures: Mapping[str, float]) -> None:
        _append(folder / METRICS, figures)
        if writer is not None:
            for name, value in figures.items():
                writer.add_scalar(name, value, int(figures["step"]))

    try:
        yield log
    finally:
        if writer is not None:
            writer.close()


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of ``metrics.jsonl``; one that a kill cut short is left out."""
    path = folder / METRICS
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def draw_curves(folder: Path, losses: Sequence[str], scores: Mapping[str, float]) -> None:
    """Draw ``curves.png``: the named losses as moving averages, and scores times their factors."""
    from matplotlib.figure import Figure

    lines = read_metrics(folder)
    figure = Figure(figsize=(10, 4))
    figure.subplots_adjust(left=0.07, right=0.98, bottom=0.13, top=0.97)
    left, right = figure.subplots(1, 2)
    for name in losses:
        steps, values = _column(lines, name, 1.0)
        window = min(_WINDOW, len(values))
        if window:
            left.plot(steps[window - 1 :], np.convolve(values, np.ones(window) / window, "valid"), label=name)
    for name, factor in scores.items():
        right.plot(*_column(lines, name, factor), marker=".", label=name)
    is_positive = any((line.get_ydata() > 0).any() for line in left.lines)  # a perceptron's loss may be 0 all along
    left.set(xlabel="step", ylabel="loss", yscale="log" if is_positive else "linear")
    right.set(xlabel="step", ylabel="percent, held out")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    write_atomically(folder / CURVES, figure_png(figure, dpi=120))


def _column(lines: Sequence[dict[str, float]], name: str, factor: float) -> tuple[list[float], list[float]]:
    found = [(line["step"], factor * line[name]) for line in lines if name in line]
    return [step for step, _ in found], [value for _, value in found]


def _truncate(folder: Path, step: int) -> None:
    kept = [json.dumps(line) + "\n" for line in read_metrics(folder) if line["step"] <= step]
    write_atomically(folder / METRICS, "".join(kept).encode())


def _append(path: Path, line: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dict(line)) + "\n")


def require_tensorboard() -> None:
    """Refuse to begin a run whose scalars cannot be written."""
    _summary_writer()


def _tensorboard(folder: Path, step: int) -> Any:
    return _summary_writer()(str(folder / TENSORBOARD), purge_step=step + 1)


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise DataError("--tensorboard: it is not installed: pip install 'phrasechain[train]'") from None
    return SummaryWriter


def _environment(step: int, processes: Processes) -> dict[str, Any]:
    return {
        "step": step,
        "command": sys.argv,
        "phrasechain": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "safetensors")},
        "platform": platform.platform(),
        "device": str(processes.device),
        "processes": processes.num_processes,
        "threads": torch.get_num_threads(),
    }
