"""The tables of a comparison as Markdown, JSON and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path

from phrasechain.core.files import json_bytes, write_output
from phrasechain.evaluation.evaluate import Section
from phrasechain.evaluation.metrics import Mean, PairedTest
from phrasechain.evaluation.predict import InferenceOptions
from phrasechain.evaluation.report import figure_png, report_dict
from phrasechain.training.compare import Line, Tables, Test, headline

RIVALS = ("alone in its category", "with a rival")


def write_comparison(tables: Tables, out: Path) -> list[Path]:
    """Write ``compare.md``, ``compare.json`` and ``compare.png``."""
    files = {
        "compare.md": markdown(tables).encode(),
        "compare.json": json_bytes(report_dict(tables)),
        "compare.png": picture(tables),
    }
    for name, content in files.items():
        write_output(out / name, content)
    return [out / name for name in files]


def markdown(tables: Tables) -> str:
    """Tables to read and to paste."""
    return "\n".join(_lines(tables)) + "\n"


def _lines(tables: Tables) -> Iterator[str]:
    seeds = f"{tables.seeds} seeds" if tables.seeds > 1 else "one seed"
    yield f"# {tables.split} of {tables.data}"
    yield ""
    yield (
        "Percent of phrases with IoU ≥ 0.5 with the merged box: mean ± standard deviation over seeds "
        f"({seeds} unless a line says otherwise), in brackets the 95 % interval over images. Chains hold the phrases "
        "with a box (regime gold) and are decoded by Viterbi where a line does not say otherwise. "
        f"Features: {tables.features}."
        + (f" Set for all: {', '.join(f'`{setting}`' for setting in tables.settings)}." if tables.settings else "")
    )
    for title, lines in tables.tables.items():
        yield from _table(title, lines, tables.seeds)
    trained = _one_of_each_row(tables)
    yield from _breakdown("categories, all captions", trained, _categories(trained[0].sections[1]), "category")
    yield from _breakdown("rivals, caption 0", trained, RIVALS, "rivals in the caption", section=0)
    yield from _breakdown("rivals, all captions", trained, RIVALS, "rivals in the caption")
    if tables.tests:
        yield from _tests(tables.tests, tables.seeds)


def _one_of_each_row(tables: Tables) -> list[Line]:
    """The line of each row with the default options, under the row's name."""
    lines = {line.row: line for each in tables.tables.values() for line in each if line.options == InferenceOptions()}
    return [replace(line, label=name) for name, line in lines.items()]


def _table(title: str, lines: Sequence[Line], seeds: int) -> Iterator[str]:
    yield from _head(title, ["caption 0", "all captions", "minutes"])
    for line in lines:
        cells = [_cell(headline(section), line.spread(section.name)) for section in line.sections]
        yield _row([_label(line.label, line.seeds, seeds), *cells, f"{line.minutes:.1f}"])


def _label(label: str, seeds: int, usual: int) -> str:
    return label if seeds == usual else f"{label} ({seeds} seed{'s' * (seeds > 1)})"


def _breakdown(title: str, lines: Sequence[Line], names: Sequence[str], table: str, section: int = 1) -> Iterator[str]:
    totals = [lines[0].sections[section].figure(table, name).total // lines[0].seeds for name in names]
    yield from _head(title, [f"{name} ({total:,})" for name, total in zip(names, totals, strict=True)])
    for line in lines:
        yield _row([line.label, *(_cell(line.sections[section].figure(table, name)) for name in names)])


def _tests(tests: Sequence[Test], seeds: int) -> Iterator[str]:
    names = list(tests[0].gains)
    yield from _head("paired tests", names)
    for test in tests:
        label = _label(f"{test.first} against {test.second}", test.seeds, seeds)
        yield _row([label, *(_gain(test.gains[name]) for name in names)])


def _gain(test: PairedTest) -> str:
    gain = test.difference
    return f"{100 * gain.value:+.2f} ({100 * gain.low:+.2f} to {100 * gain.high:+.2f}), p = {test.p_value:.2g}"


def _categories(section: Section) -> list[str]:
    return [row.name for row in section.rows if row.table == "category"]


def _head(title: str, columns: Sequence[str]) -> list[str]:
    return ["", f"## {title[0].upper()}{title[1:]}", "", _row(["", *columns]), "|---|" + "---:|" * len(columns)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(mean: Mean, spread: float | None = None) -> str:
    if mean.total == 0 or isnan(mean.value):
        return "–"
    plus_minus = "" if spread is None else f" ± {100 * spread:.1f}"
    return f"{100 * mean.value:.1f}{plus_minus} ({100 * mean.low:.1f} – {100 * mean.high:.1f})"


def picture(tables: Tables) -> bytes:
    """Every line as a dot with its interval, caption 0 beside all captions, as PNG."""
    from matplotlib.figure import Figure

    lines = [(f"{title}: {line.label}", line) for title, each in tables.tables.items() for line in each][::-1]
    figure = Figure(figsize=(10, 1 + 0.28 * len(lines)), layout="constrained")
    for number, axes in enumerate(figure.subplots(1, 2, sharey=True)):
        for place, (_, line) in enumerate(lines):
            section = line.sections[number]
            mean = headline(section)
            axes.plot([100 * mean.low, 100 * mean.high], [place, place], color="0.6")
            axes.plot([100 * value for value in line.accuracies[section.name]], [place] * line.seeds, "|", color="0.3")
            axes.plot(100 * mean.value, place, "o", color=f"C{number}")
        axes.set_title(f"{section.name}, percent right")
        axes.set_yticks(range(len(lines)), [name for name, _ in lines])
        axes.grid(alpha=0.3, axis="x")
    return figure_png(figure, dpi=120)
