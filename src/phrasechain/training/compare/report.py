"""A comparison as Markdown, JSON, one HTML page and pictures."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from html import escape
from math import isnan
from pathlib import Path
from typing import NamedTuple

from phrasechain import __version__
from phrasechain.core.files import json_bytes, write_output
from phrasechain.core.terminal import printable
from phrasechain.evaluation.check_report import draw_figure
from phrasechain.evaluation.metrics import Mean, PairedTest
from phrasechain.evaluation.predict import InferenceOptions
from phrasechain.evaluation.report import report_dict
from phrasechain.training.compare.figures import Figures, draw_bars
from phrasechain.training.compare.rows import TABLES
from phrasechain.training.compare.side_by_side import SideBySide
from phrasechain.training.compare.tables import ANY, MERGED, Line, Tables, Test, accuracy

RIVALS = ("alone in its category", "with a rival")
BARS, FIGURE_2 = "compare.png", "figure-2.png"
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h2 { margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: .2rem .7rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th { border-bottom: 1px solid #999; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child { text-align: left; }
small { color: #666; }
tr:hover td { background: #f2f6fa; }
img { max-width: 100%; height: auto; }
figure { margin: 1.2rem 0; }
figcaption, .note { color: #555; max-width: 60rem; }
.wide { overflow-x: auto; }
nav a { margin-right: 1rem; }
"""


class Block(NamedTuple):
    """A table to read: a note below its title, the heads of its columns, and cells."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[str]]


def write_comparison(tables: Tables, figures: Figures, out: Path) -> list[Path]:
    """Write ``compare.md``, ``.json``, ``.html`` and ``.png``, ``figure-2.png`` and ``figure-5-1.png`` and so on."""
    pictures = {BARS: draw_bars(tables), FIGURE_2: draw_figure(figures.splits, figures.coverages)}
    side = figures.side_by_side
    pictures |= {f"figure-5-{number}.png": each.png for number, each in enumerate(side.pictures if side else (), 1)}
    files = {
        "compare.md": markdown(tables, figures).encode(),
        "compare.json": json_bytes(comparison_dict(tables, figures)),
        "compare.html": html(tables, figures, pictures).encode(),
        **pictures,
    }
    for name, content in files.items():
        write_output(out / name, content)
    return [out / name for name in files]


def comparison_dict(tables: Tables, figures: Figures) -> dict[str, object]:
    """The tables and what the figures show, as plain JSON values."""
    side = figures.side_by_side
    shown = side and {
        **{name: getattr(side, name) for name in ("chain", "alone", "captions", "better", "worse")},
        "pictures": [{"kind": each.kind, "image": each.image, "caption": each.caption} for each in side.pictures],
    }
    figure_2 = {
        "splits": {name: asdict(split) for name, split in figures.splits.items()},
        "coverages": {name: asdict(coverage) for name, coverage in figures.coverages.items()},
    }
    return {**report_dict(tables), "figure 2": figure_2, "figure 5": shown}


def markdown(tables: Tables, figures: Figures | None = None) -> str:
    """Tables to read and to paste; with figures, where these are."""
    lines = [f"# {_title(tables)}", "", *(f"- {line}" for line in _introduction(tables))]
    if figures is not None:
        lines += ["", f"![bars of all lines]({BARS})"]
    for block in blocks(tables):
        lines += ["", f"## {block.title}", "", *([block.note, ""] if block.note else ())]
        lines += [_row(["", *block.columns]), "|---|" + "---:|" * len(block.columns), *map(_row, block.rows)]
    if figures is not None:
        lines += ["", "## Figure 2: the data", "", _FIGURE_2, "", f"![histograms]({FIGURE_2})"]
    if figures is not None and (side := figures.side_by_side):
        lines += ["", f"## {_figure_5_title(side)}", "", _figure_5_note(side)]
        for number, each in enumerate(side.pictures, 1):
            lines += ["", f"{each.kind}: {each.title}", "", f"![image {each.image}](figure-5-{number}.png)"]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def html(tables: Tables, figures: Figures, pictures: dict[str, bytes]) -> str:
    """One page that needs no other file."""
    found = list(blocks(tables))
    anchors = {f"t{number}": block.title for number, block in enumerate(found)} | {"figure-2": "Figure 2"}
    anchors |= {"figure-5": "Figure 5"} if figures.side_by_side else {}
    links = [f'<a href="#{anchor}">{_text(title)}</a>' for anchor, title in anchors.items()]
    parts = [
        f"<h1>{_text(_title(tables))}</h1>",
        f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in _introduction(tables))}</ul>",
        f"<nav>{' '.join(links)}</nav>",
        _image(pictures[BARS], _BARS_CAPTION),
        *(_block_html(block, f"t{number}") for number, block in enumerate(found)),
        f'<h2 id="figure-2">Figure 2: the data</h2>{_image(pictures[FIGURE_2], _FIGURE_2)}',
    ]
    if side := figures.side_by_side:
        parts.append(f'<h2 id="figure-5">{_text(_figure_5_title(side))}</h2><p>{_text(_figure_5_note(side))}</p>')
        for number, each in enumerate(side.pictures, 1):
            parts.append(_image(pictures[f"figure-5-{number}.png"], f"{each.kind}: {each.title} (image {each.image})"))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(_title(tables))}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}<p>phrasechain {__version__}</p></body></html>\n"
    )


_BARS_CAPTION = (
    "Every line of the tables, its interval, and a tick for each seed: SL-CCRF orange, its variants and the other "
    "models of the paper blue, the compared systems grey."
)
_FIGURE_2 = (
    "Phrases with a box in each caption, and regions of each phrase that are right (IoU ≥ 0.5 with its merged box), "
    "in percent of the captions and phrases of each split."
)


def _block_html(block: Block, anchor: str) -> str:
    note = f'<p class="note">{_text(block.note)}</p>' if block.note else ""
    head = "".join(f"<th>{_text(name)}</th>" for name in ("", *block.columns))
    rows = "".join(
        "<tr>" + "".join(f"<td>{_interval_small(_text(cell))}</td>" for cell in row) + "</tr>" for row in block.rows
    )
    return (
        f'<h2 id="{anchor}">{_text(block.title)}</h2>{note}<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
    )


def _interval_small(cell: str) -> str:
    """A cell with what stands in brackets in smaller letters.

    >>> _interval_small("61.8 ± 0.1 (60.4 – 63.5)")
    '61.8 ± 0.1 <small>(60.4 – 63.5)</small>'
    """
    return re.sub(r"\([^)]*[–+-][^)]*\)", lambda found: f"<small>{found[0]}</small>", cell)


def _image(png: bytes, caption: str) -> str:
    data = b64encode(png).decode()
    return f'<figure><img alt="" src="data:image/png;base64,{data}"><figcaption>{_text(caption)}</figcaption></figure>'


def _text(text: str) -> str:
    return escape(printable(text))


# ---- what is said


def _title(tables: Tables) -> str:
    return f"Phrase grounding compared on {tables.split} of {tables.data}"


def _introduction(tables: Tables) -> list[str]:
    """What has to be known to read the tables, a line each."""
    seeds = f"{tables.seeds} seeds" if tables.seeds > 1 else "one seed"
    lines = [
        "Percent of phrases whose box has IoU ≥ 0.5 with the merged box (the smallest around all boxes of the phrase), "
        f"or with any of its boxes: mean ± standard deviation over seeds ({seeds} unless a line says otherwise), in "
        f"brackets the 95 % interval over images. {_denominators(tables)}",
        "Chains hold the phrases with a box (regime gold) and are decoded by Viterbi where a line does not say "
        "otherwise; the compared systems by the inference of their papers.",
        "All rows learn from the same captions and regions, with as many passes over the data. "
        f"Features: {tables.features}. Words: {tables.words}.",
        "Minutes: training on this computer, with what is fitted before the first step and the scores on dev. ms: "
        "scores and decoding of one caption of 3 phrases with 100 regions at hand, processor time in one thread.",
        "Paper: what it reports for the test split of Flickr30k Entities, where systems have other regions and words.",
    ]
    return lines + ([f"Set for all: {', '.join(tables.settings)}."] if tables.settings else [])


def _denominators(tables: Tables) -> str:
    line = next(line for lines in tables.tables.values() for line in lines)
    counts = (
        f"{each.phrases // line.seeds:,} phrases in {each.name} of {each.images:,} images" for each in line.sections
    )
    return f"There are {' and '.join(counts)}."


def _figure_5_title(side: SideBySide) -> str:
    return f"Figure 5: {side.alone} beside {side.chain}"


def _figure_5_note(side: SideBySide) -> str:
    return (
        f"Of {side.captions:,} captions with two phrases or more, {side.chain} (seed 0) has more phrases right than "
        f"{side.alone} in {side.better:,} and fewer in {side.worse:,}; shown are captions of both kinds "
        "whose boxes are far apart. Dashed boxes are wrong."
    )


# ---- tables


def blocks(tables: Tables) -> Iterator[Block]:
    """All tables, in the order in which they are read."""
    for title, lines in tables.tables.items():
        yield _lines_block(title, lines, tables)
    trained = _one_of_each_row(tables)
    for section in trained[0].sections:
        categories = [row.name for row in section.rows if row.table == "category"]
        yield _breakdown(f"By category, {section.name}", trained, section.name, "category", categories)
    for section in trained[0].sections:
        yield _breakdown(
            f"With and without a rival, {section.name}", trained, section.name, "rivals in the caption", RIVALS
        )
    if tables.tests:
        yield _tests_block(tables.tests, tables.seeds)


def _one_of_each_row(tables: Tables) -> list[Line]:
    """The line of each row with the default options, under the row's name."""
    lines = {line.row: line for each in tables.tables.values() for line in each if line.options == InferenceOptions()}
    return [replace(line, label=name) for name, line in lines.items()]


def _lines_block(title: str, lines: Sequence[Line], tables: Tables) -> Block:
    """Both protocols of both sections, and the times; rows that are absent have their place in it."""
    names = [section.name for section in lines[0].sections]
    has_paper = any(line.published is not None for line in lines)
    columns = [f"{name}, {protocol}" for protocol in (MERGED, ANY) for name in names]
    columns += ["minutes", "ms", *(["paper"] if has_paper else ())]
    by_label = {line.label: line for line in lines}
    notes, rows = [], []
    for asked in TABLES[title]:
        if line := by_label.get(asked.label):
            paper = [_number(line.published, 2)] if has_paper else []
            rows.append([_label(line.label, line.seeds, tables.seeds), *_cells(line), *_times(line), *paper])
        elif asked.row in tables.absent:
            rows.append([asked.label, *["–"] * (len(columns) - has_paper), *[_number(asked.published, 2)] * has_paper])
            notes.append(f"{asked.label} {tables.absent[asked.row]}.")
    return Block(title, " ".join(notes), columns, rows)


def _cells(line: Line) -> Iterator[str]:
    for protocol in (MERGED, ANY):
        for section in line.sections:
            spread = line.spread(section.name) if protocol == MERGED else None
            yield _cell(accuracy(section, protocol), spread)


def _times(line: Line) -> list[str]:
    return [f"{line.minutes:.1f}", _number(line.milliseconds, 1)]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _label(label: str, seeds: int, usual: int) -> str:
    return label if seeds == usual else f"{label} ({seeds} seed{'s' * (seeds > 1)})"


def _breakdown(title: str, lines: Sequence[Line], section: str, table: str, names: Sequence[str]) -> Block:
    chosen = [next(each for each in line.sections if each.name == section) for line in lines]
    totals = [chosen[0].figure(table, name).total // lines[0].seeds for name in names]
    return Block(
        title,
        "In brackets the number of phrases, and the 95 % interval." if table == "category" else _RIVAL,
        [f"{name} ({total:,})" for name, total in zip(names, totals, strict=True)],
        [
            [line.label, *(_cell(each.figure(table, name)) for name in names)]
            for line, each in zip(lines, chosen, strict=True)
        ],
    )


_RIVAL = "A rival: another phrase with a box in the same caption, of another entity, that shares a category."


def _tests_block(tests: Sequence[Test], seeds: int) -> Block:
    names = list(dict.fromkeys(name for test in tests for name in test.gains))
    return Block(
        "Paired tests",
        "The first minus the second in points, the 95 % interval, and the p-value of the exact two-sided sign-flip "
        "test over images, on the same phrases and seeds.",
        names,
        [
            [
                _label(f"{test.first} against {test.second}", test.seeds, seeds),
                *(_gain(test.gains[name]) if name in test.gains else "–" for name in names),
            ]
            for test in tests
        ],
    )


def _gain(test: PairedTest) -> str:
    gain = test.difference
    return f"{100 * gain.value:+.2f} ({100 * gain.low:+.2f} to {100 * gain.high:+.2f}), p = {test.p_value:.2g}"


def _cell(mean: Mean, spread: float | None = None) -> str:
    if mean.total == 0 or isnan(mean.value):
        return "–"
    plus_minus = "" if spread is None else f" ± {100 * spread:.1f}"
    return f"{100 * mean.value:.1f}{plus_minus} ({100 * mean.low:.1f} – {100 * mean.high:.1f})"
