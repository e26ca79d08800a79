"""The learning curves of a run: losses per step, and scores on held-out data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from phrasechain.core.files import write_atomically
from phrasechain.training.log import read_metrics

_WINDOW = 50  # steps that the shown losses are averaged over


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
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_atomically(folder / "curves.png", picture.getvalue())


def _column(lines: Sequence[dict[str, float]], name: str, factor: float) -> tuple[list[float], list[float]]:
    found = [(line["step"], factor * line[name]) for line in lines if name in line]
    return [step for step, _ in found], [value for _, value in found]
