"""The figures of a comparison: bars of all tables, what Figure 2 counts, and the pictures of Figure 5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

from phrasechain.data.dataset import open_dataset
from phrasechain.evaluation.check import Coverage, Split, count_splits
from phrasechain.evaluation.predict import InferenceOptions
from phrasechain.evaluation.report import figure_png
from phrasechain.store.reader import FeatureStore
from phrasechain.training.compare.plan import Job
from phrasechain.training.compare.rows import REFERENCE, SIDE_BY_SIDE, SYSTEMS
from phrasechain.training.compare.runner import ComparisonRunner
from phrasechain.training.compare.side_by_side import Answers, SideBySide, side_by_side
from phrasechain.training.compare.tables import Line, Tables, accuracy

_ROOM = 5  # percent that the axis begins below the least figure
_COLOURS = {"system": "#9db4c0", "model": "#0072b2", "reference": "#d55e00"}


@dataclass(frozen=True, slots=True)
class Figures:
    """What is drawn besides the tables."""

    splits: dict[str, Split]  # Figure 2: phrases of each caption
    coverages: dict[str, Coverage]  # Figure 2: regions of each phrase
    side_by_side: SideBySide | None  # Figure 5, where both models are there


class FigureMaker:
    """Counts and draws, each once: a comparison is written anew after every run."""

    def __init__(self) -> None:
        self._counts: tuple[dict[str, Split], dict[str, Coverage]] | None = None
        self._pairs: dict[tuple[str, str], SideBySide] = {}

    def figures(self, tables: Tables, runner: ComparisonRunner) -> Figures:
        """The figures of what is there."""
        if self._counts is None:
            dataset = open_dataset(runner.data)
            examples = {example.image: example for example in dataset.examples(on_error="skip")}
            self._counts = count_splits(dataset, examples, FeatureStore.open(runner.features))
        there = {line.row for lines in tables.tables.values() for line in lines}
        pair = next((pair for pair in SIDE_BY_SIDE if there.issuperset(pair)), None)
        if pair is not None and pair not in self._pairs:
            chain, alone = (_answers(runner, row) for row in pair)
            self._pairs[pair] = side_by_side(runner.examples, runner.gold["gold"], chain, alone)
        return Figures(*self._counts, self._pairs.get(pair) if pair else None)


def _answers(runner: ComparisonRunner, row: str) -> Answers:
    """Of the first seed."""
    job, options = Job(row, 0), InferenceOptions()
    return Answers(row, runner.matched(job, options).boxes, runner.right(job, options))


def draw_bars(tables: Tables) -> bytes:
    """Every line as a bar with its interval and a tick for each seed, caption 0 beside all captions, as PNG."""
    from matplotlib.figure import Figure

    heights = [len(lines) + 1.5 for lines in tables.tables.values()]
    figure = Figure(figsize=(11, 0.7 + 0.27 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(heights), 2, sharey="row", sharex="col", squeeze=False, height_ratios=heights)
    for row, (title, lines) in zip(panels, tables.tables.items(), strict=True):
        for number, axes in enumerate(row):
            _draw_table(axes, lines, number)
        row[0].set_title(title, loc="left", fontsize="medium", fontweight="bold")
    every = [line for lines in tables.tables.values() for line in lines]
    for axes, section in zip(panels[0], every[0].sections, strict=True):
        axes.set_title(section.name, loc="right", fontsize="medium")
    for number, axes in enumerate(panels[-1]):
        least = min(_bounds(line, number)[1] for line in every)
        most = max(_bounds(line, number)[2] for line in every)
        begin = max(0, _ROOM * floor((least - _ROOM) / _ROOM))
        axes.set_xlim(begin, min(100, most + 0.14 * (most - begin)))
        axes.set_xlabel(f"% right, {every[0].sections[number].name}" + f" (the axis begins at {begin})" * (begin > 0))
    return figure_png(figure, dpi=120)


def _draw_table(axes: Any, lines: Sequence[Line], number: int) -> None:
    for place, line in enumerate(lines):
        value, low, high = _bounds(line, number)
        kind = "system" if line.row in SYSTEMS else "reference" if line.row == REFERENCE else "model"
        axes.barh(place, value, 0.7, color=_COLOURS[kind], alpha=0.75)
        axes.plot([low, high], [place, place], color="black", linewidth=1.2)
        seeds = [100 * each for each in line.accuracies[line.sections[number].name]]
        axes.plot(seeds, [place] * len(seeds), "|", color="black", markersize=6)
        axes.annotate(f"{value:.1f}", (high, place), (4, 0), textcoords="offset points", va="center", fontsize="small")
    axes.set_yticks(range(len(lines)), [line.label for line in lines], fontsize="small")
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _bounds(line: Line, number: int) -> tuple[float, float, float]:
    mean = accuracy(line.sections[number])
    return 100 * mean.value, 100 * mean.low, 100 * mean.high
