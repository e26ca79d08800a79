"""What a check found, as tables, as JSON and as the paper's Figure 2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phrasechain.core.schema import ALL, CATEGORIES, NOT_VISUAL
from phrasechain.core.terminal import print_table, printable
from phrasechain.evaluation.check import CheckReport, Coverage, Split
from phrasechain.evaluation.report import figure_png, report_dict

LISTED = 20  # messages that are printed; JSON has them all
LAST_BAR = 25  # of a histogram: this many or more
SplitRow = tuple[str, list[str]]  # a label, and a cell for each split
DERIVED = ("fit", "dev", ALL)  # parts or sums of the other splits: not drawn


def print_check(report: CheckReport, console: Console) -> None:
    """Print the table, what is wrong, and whether the data can be used."""
    print_table(_table(report), console)
    photos = f"{report.missing_photos:,} photos missing, {report.broken_photos:,} broken or of another size"
    console.print(f"{photos}, {report.boxes_outside:,} boxes outside their image", highlight=False)
    _print_messages(console, "[yellow]warning:[/]", report.warnings)
    _print_messages(console, "[red]problem:[/]", report.problems)
    verdict = "usable" if report.is_usable else f"not usable (problems: {len(report.problems):,})"
    console.print(printable(f"{report.data}: {verdict}"), highlight=False, markup=False, soft_wrap=True)


def check_dict(report: CheckReport) -> dict[str, Any]:
    """The report as plain JSON values."""
    return {"usable": report.is_usable, **report_dict(report)}


def draw_figure(splits: Mapping[str, Split], coverages: Mapping[str, Coverage]) -> bytes:
    """The paper's Figure 2 as PNG: phrases with a box per caption and, with a store, gold regions per phrase.

    The splits stand side by side, each in per cent of its own captions or phrases.
    """
    from matplotlib.figure import Figure

    drawn = {name: split for name, split in splits.items() if name not in DERIVED and split.captions}
    drawn = drawn or {ALL: splits[ALL]}
    captions = {name: (split.phrases_per_caption, split.boxed_per_caption) for name, split in drawn.items()}
    regions = {
        name: (coverage.gold_regions, coverage.gold_regions_per_phrase)
        for name, coverage in coverages.items()
        if name in drawn
    }
    panels = [("phrases with a box per caption", "% of captions", captions)]
    if regions:
        panels.append(("gold regions (IoU ≥ 0.5) per phrase", "% of phrases", regions))
    figure = Figure(figsize=(6 * len(panels), 4), layout="constrained")
    for axes, (xlabel, ylabel, series) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_histograms(axes, series)
        axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure_png(figure, dpi=150)


def _draw_histograms(axes: Any, series: Mapping[str, tuple[Sequence[int], float]]) -> None:
    bars = 1
    for place, (name, (counts, mean)) in enumerate(series.items()):
        shown = [*counts[:LAST_BAR], sum(counts[LAST_BAR:])] if len(counts) > LAST_BAR else list(counts)
        heights = [100 * count / max(1, sum(counts)) for count in shown]
        width = 0.8 / len(series)
        left = [value + (place - (len(series) - 1) / 2) * width for value in range(len(shown))]
        axes.bar(left, heights, width, label=f"{name}: mean {mean:.2f}")
        bars = max(bars, len(shown))
    ticks = list(range(0, bars, 1 if bars <= 12 else 5))
    axes.set_xticks(ticks, [f"{tick}+" if tick == LAST_BAR else str(tick) for tick in ticks])
    axes.legend()


def _table(report: CheckReport) -> Table:
    """One column for each split; those of the benchmark fit a terminal of 80 columns."""
    table = Table(title=escape(printable(report.data)), title_justify="left", box=SIMPLE)
    table.add_column("", no_wrap=True)
    for name in report.splits:
        table.add_column(escape(printable(name)), justify="right", no_wrap=True)
    splits = list(report.splits.values())
    for section in (_count_rows(splits), _category_rows(splits), _coverage_rows(list(report.coverages.values()))):
        for label, cells in section:
            table.add_row(escape(printable(label)), *cells)
        table.add_section()
    return table


def _count_rows(splits: Sequence[Split]) -> Iterator[SplitRow]:
    counts = {
        "images": "images",
        "captions": "captions",
        "phrases": "phrases",
        "  with a box": "boxed",
        "    in caption 0": "boxed_in_caption_0",
        "  without a box": "boxless",
        "  box unknown": "unknown",
        "  not visual": "not_visual",
    }
    for label, field in counts.items():
        yield label, [f"{getattr(split, field):,}" for split in splits]
    yield "with a box per caption", [f"{split.boxed_per_caption:.2f}" for split in splits]


def _category_rows(splits: Sequence[Split]) -> Iterator[SplitRow]:
    found = {name for split in splits for name in split.categories}
    known = [*CATEGORIES, NOT_VISUAL]
    names = [name for name in known if name in found] + sorted(found.difference(known))
    for title, field in (("with a box", "boxed"), ("all phrases", "phrases")):
        yield f"{title}, by category", []
        for name in names:
            yield f"  {name}", [f"{getattr(split.categories.get(name), field, 0):,}" for split in splits]


def _coverage_rows(coverages: Sequence[Coverage]) -> Iterator[SplitRow]:
    if not coverages:
        return
    yield "images with regions", [f"{coverage.images:,}" for coverage in coverages]
    yield "regions per image", [f"{coverage.regions_per_image:.1f}" for coverage in coverages]
    yield "gold regions per phrase", [f"{coverage.gold_regions_per_phrase:.2f}" for coverage in coverages]
    for kind, bounds in coverages[0].upper_bounds.items():
        yield f"upper bound %, {kind}", []
        for k in bounds:
            yield f"  K={k}", [f"{100 * coverage.upper_bounds[kind][k]:.2f}" for coverage in coverages]


def _print_messages(console: Console, label: str, messages: Sequence[str]) -> None:
    for message in messages[:LISTED]:
        console.print(f"{label} {escape(printable(message))}", highlight=False, soft_wrap=True)
    if len(messages) > LISTED:
        console.print(f"{label} and {len(messages) - LISTED:,} more: --json has them all", highlight=False)
