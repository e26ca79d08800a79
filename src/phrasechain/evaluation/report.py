"""A report of figures as text on a terminal, as JSON and as one HTML file."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from html import escape as escape_html
from io import BytesIO
from itertools import groupby
from math import isnan
from typing import Any

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from phrasechain import __version__
from phrasechain.core.terminal import print_table, printable
from phrasechain.evaluation.evaluate import Comparison, Report, Section
from phrasechain.evaluation.examples import ExamplePicture
from phrasechain.evaluation.metrics import Mean

_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .15rem .8rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
tr.table th { border-top: 1px solid #999; padding-top: .5rem; }
td:nth-child(n+2) { font-variant-numeric: tabular-nums; }
.warning { background: #fff3cd; padding: .4rem .8rem; }
dt { font-weight: 600; margin-top: .5rem; }
dd { margin-left: 1rem; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
figure { margin: 0; max-width: 100%; }
img { max-width: 100%; }
figcaption { font-size: 13px; color: #555; }
"""
#: What the figures of a table mean, by the beginning of its name.
MEANINGS = {
    "accuracy at IoU": "Share of the phrases whose box is right: its IoU with the annotation (the area that both boxes "
    "have in common, divided by the area that they cover together) is at least that number.",
    "mean IoU": "The IoU of a phrase's box with its annotation, averaged over phrases.",
    "pointing game": "Share of the phrases whose box has its centre inside the annotation.",
    "ranked regions": "R@k: one of the first k regions that the file lists for the phrase has IoU ≥ 0.5. The upper "
    "bound is the same for all that it lists.",
    "regions of the store": "Share of the phrases for which one of the first K regions of the image has IoU ≥ 0.5: no "
    "choice among these regions could be better, unless boxes are moved.",
    "category": "Accuracy (merged box, IoU 0.5) by what is named; a phrase of several categories counts in each.",
    "rivals in the caption": "Accuracy of phrases that are alone in their category, and of those with a rival: another "
    "phrase of the caption that names another thing of the same category.",
    "errors": "What the wrong boxes took instead: the box of a rival, of another phrase of the caption, or neither. "
    "Shares of the wrong phrases.",
    "phrases in the caption": "Accuracy by the number of phrases that are grounded together.",
}
COMMON_MEANINGS = {
    "merged box, any box": "A phrase such as two dogs may have several annotated boxes. Merged: the one box around all "
    "of them. Any: the nearest of them.",
    "caption 0, all captions": "Each image has several captions. The first is annotated in full everywhere; all of "
    "them are the benchmark's protocol.",
    "interval": "Where the figure would lie for other images of this kind, by resampling whole images.",
    "of": "How many phrases the figure is of: right or counted, and in all. A phrase without a prediction is wrong.",
    "p": "How likely a difference of at least this size is if neither file is better (exact paired test by images).",
}
GROUPS = {
    "worst": "Worst captions: predicted and annotated",
    "best": "Best captions",
    "different": "Where the two files differ",
}


def print_report(report: Report, console: Console) -> None:
    """Print every figure with its interval and denominator."""
    _print(console, _shown(_headline(report)))
    for warning in report.warnings:
        _print(console, f"[yellow]warning:[/] {_shown(warning)}")
    for section in report.sections:
        table = Table(title=_title(section), title_justify="left")
        for number, heading in enumerate(_headings(report)):
            table.add_column(heading, justify="right" if number else "left", no_wrap=True)
        for name, rows in groupby(section.rows, key=lambda row: row.table):
            table.add_section()
            table.add_row(f"[bold]{_shown(name)}[/]")
            for row in rows:
                table.add_row(f"  {_shown(row.name)}", *_cells(row.mean))
        print_table(table, console)
        for comparison in section.comparisons:
            _print(console, _sentence(comparison))


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)


def _shown(text: str) -> str:
    return escape_markup(printable(text))


def report_dict(report: Any) -> dict[str, Any]:
    """A report, a dataclass, as plain JSON values; what is not defined (a mean of nothing) is null."""
    return {"phrasechain": __version__, **_without_nan(asdict(report))}


def figure_png(figure: Any, dpi: int) -> bytes:
    """A figure of matplotlib as PNG."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


def report_html(report: Report, pictures: Sequence[ExamplePicture] = ()) -> str:
    """The report as one self-contained page: the figures, what they mean, and examples."""
    warnings = "".join(f'<p class="warning">{_html(warning)}</p>' for warning in report.warnings)
    sections = "".join(_section_html(report, section) for section in report.sections)
    sections += _meanings_html(report) + _pictures_html(pictures)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_html(report.predictions)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>Phrase grounding</h1><p>{_html(_headline(report))}</p>"
        f"{warnings}{sections}<p>phrasechain {__version__}</p></body></html>\n"
    )


def _html(text: str) -> str:
    return escape_html(printable(text))


def _section_html(report: Report, section: Section) -> str:
    lines = ["<tr>" + "".join(f"<th>{_html(heading)}</th>" for heading in _headings(report)) + "</tr>"]
    for name, rows in groupby(section.rows, key=lambda row: row.table):
        lines.append(f'<tr class="table"><th colspan="4">{_html(name)}</th></tr>')
        for row in rows:
            cells = "".join(f"<td>{cell}</td>" for cell in (_html(row.name), *_cells(row.mean)))
            lines.append(f"<tr>{cells}</tr>")
    comparisons = "".join(f"<p>{_html(_sentence(comparison))}</p>" for comparison in section.comparisons)
    return f"<h2>{_html(_title(section))}</h2>{comparisons}<table>{''.join(lines)}</table>"


def _meanings_html(report: Report) -> str:
    tables = dict.fromkeys(row.table for section in report.sections for row in section.rows)
    names = dict.fromkeys(name for table in tables for name in MEANINGS if table.startswith(name))
    entries = {**{name: MEANINGS[name] for name in names}, **COMMON_MEANINGS}
    if report.against is None:
        del entries["p"]
    lines = "".join(f"<dt>{_html(name)}</dt><dd>{_html(text)}</dd>" for name, text in entries.items())
    return f"<h2>What the figures mean</h2><dl>{lines}</dl>"


def _pictures_html(pictures: Sequence[ExamplePicture]) -> str:
    if not pictures:
        return "<h2>Examples</h2><p>There are no pictures: the data has no photos that could be shown.</p>"
    parts = []
    for group, members in groupby(pictures, key=lambda picture: picture.group):
        figures = "".join(_figure_html(picture) for picture in members)
        parts.append(f"<h2>{_html(GROUPS[group])}</h2><div class='pictures'>{figures}</div>")
    return "".join(parts)


def _figure_html(picture: ExamplePicture) -> str:
    data = b64encode(picture.jpeg).decode()
    lines = "<br>".join(map(_html, (f"image {picture.image}, caption {picture.caption}", *picture.lines)))
    label = _html(f"image {picture.image}")
    return f'<figure><img src="data:image/jpeg;base64,{data}" alt="{label}"><figcaption>{lines}</figcaption></figure>'


def _headline(report: Report) -> str:
    protocol = report.protocol
    against = f" against {report.against}" if report.against else ""
    features = f", regions of {report.features}" if report.features else ""
    reading = "" if protocol.reading == "corrected" else f", read as {protocol.reading}"
    return (
        f"{report.predictions}{against} on {report.split} of {report.data}{features}{reading}; "
        f"regime {protocol.regime}, pixels {protocol.convention}, "
        f"intervals over images from {protocol.resamples:,} resamples, seed {protocol.seed}"
    )


def _title(section: Section) -> str:
    missing = f", {section.missing:,} without a prediction" if section.missing else ""
    counts = f"{section.phrases:,} phrases, {section.captions:,} captions, {section.images:,} images"
    return f"{section.name}: {counts}{missing}"


def _headings(report: Report) -> tuple[str, str, str, str]:
    return "", "%", f"{report.protocol.level:.0%} interval", "of"


def _cells(mean: Mean) -> tuple[str, str, str]:
    if mean.total == 0:
        return "–", "", "0 / 0"
    interval = "" if isnan(mean.low) else f"{100 * mean.low:.1f} – {100 * mean.high:.1f}"
    total = f"{mean.sum:,.0f}" if mean.sum.is_integer() else f"{mean.sum:,.1f}"  # of IoUs
    return f"{100 * mean.value:.2f}", interval, f"{total} / {mean.total:,}"


def _sentence(comparison: Comparison) -> str:
    test = comparison.test
    gain = test.difference
    return (
        f"{comparison.name}: {100 * gain.value:+.2f} points over the other file "
        f"({100 * gain.low:+.2f} to {100 * gain.high:+.2f}), right alone {test.first_only:,} against "
        f"{test.second_only:,} of {gain.total:,}, p = {test.p_value:.3g}"
    )


def _without_nan(value: Any) -> Any:
    """Plain values with None for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and isnan(value) else value
