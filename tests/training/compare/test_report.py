"""The comparison as Markdown, JSON, a page and pictures."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from phrasechain.training.compare.report import blocks, html, markdown, write_comparison
from phrasechain.training.compare.tables import ANY, accuracy
from tiny_comparison import Compared

PICTURES = ("compare.png", "figure-2.png", *(f"figure-5-{number}.png" for number in range(1, 9)))


def test_markdown_has_every_table(compared: Compared) -> None:
    text = markdown(compared.tables)
    (line,) = (line for line in compared.tables.tables["Table 1: models"] if line.label == "SL-CCRF")
    first, spread, other = accuracy(line.sections[0]), line.spread("caption 0"), accuracy(line.sections[1], ANY)
    assert spread is not None
    cell = f"{100 * first.value:.1f} ± {100 * spread:.1f} ({100 * first.low:.1f} – {100 * first.high:.1f})"
    assert f"| SL-CCRF | {cell} |" in text
    assert f"| {100 * other.value:.1f} ({100 * other.low:.1f} – {100 * other.high:.1f}) | {line.minutes:.1f} |" in text
    for heading in (
        "Table 1: models",
        "Table 3: decoders",
        "Without box regression",
        "Both regimes: phrases in the chain",
        "By category, caption 0",
        "With and without a rival, all captions",
        "Paired tests",
    ):
        assert f"\n## {heading}\n" in text
    assert "preset small" in text
    gold = [(section.phrases // 2, section.images) for section in line.sections]
    assert f"There are {gold[0][0]} phrases in caption 0 of {gold[0][1]} images and {gold[1][0]} phrases in all" in text
    for block in text.split("\n\n"):
        assert len({row.count("|") for row in block.splitlines() if row.startswith("|")}) <= 1


def test_fewer_seeds_are_told(compared: Compared) -> None:
    text = markdown(compared.noted[4])  # HL alone has both
    assert "| SL-CCRF (1 seed) |" in text
    assert "| HL |" in text
    assert "| SL against HL (1 seed) |" in text


def test_a_row_that_cannot_be_trained_has_its_place_and_says_why(compared: Compared) -> None:
    tables = replace(compared.tables, absent={"HL (GloVe)": "needs ELMo weights"})
    first = next(blocks(tables))
    assert first.note == "HL (GloVe) needs ELMo weights."
    assert first.rows[0] == ["HL (GloVe)", *["–"] * 6, "71.88"]
    assert [row[0] for row in first.rows] == ["HL (GloVe)", "HL", "SL", "SL-CCRF"]


class Page(HTMLParser):
    """The links, anchors, pictures and cells of a page; every tag that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.pictures: list[str] = []
        self.feed(text)
        assert self.opened == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag not in ("meta", "img"):
            self.opened.append(tag)
        if tag == "img":
            self.pictures.append(str(values["src"]))
        self.links |= {str(values[name]) for name in ("href", "src") if name in values}
        self.anchors |= {f"#{values['id']}"} if "id" in values else set()

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag


def test_the_files(compared: Compared, tmp_path: Path) -> None:
    tables, figures = compared.tables, compared.figures
    files = write_comparison(tables, figures, tmp_path)
    assert figures.side_by_side is not None
    count = len(figures.side_by_side.pictures)
    assert [file.name for file in files] == [
        *("compare.md", "compare.json", "compare.html", "compare.png", "figure-2.png"),
        *(f"figure-5-{number}.png" for number in range(1, count + 1)),
    ]
    for file in files[3:]:
        with Image.open(BytesIO(file.read_bytes())) as image:
            assert image.format == "PNG"
    found = json.loads(files[1].read_text())
    assert found["tables"]["Table 1: models"][0]["label"] == "HL"
    assert found["figure 2"]["splits"]["train"]["images"] == 12
    assert found["figure 5"]["chain"] == "SL-CCRF"
    for name in re.findall(r"\]\(([^)]+)\)", files[0].read_text()):
        assert (tmp_path / name).exists()


def test_the_page_needs_no_other_file(compared: Compared) -> None:
    tables, figures = replace(compared.tables, data="<b>&"), compared.figures
    assert figures.side_by_side is not None
    text = html(tables, figures, dict.fromkeys(PICTURES, b"png"))
    page = Page(text)
    assert {link for link in page.links if not link.startswith("data:")} <= page.anchors
    assert len(page.pictures) == 2 + len(figures.side_by_side.pictures)
    assert "<b>" not in text
    for block in blocks(tables):
        assert f">{block.title}</h2>" in text


@pytest.mark.parametrize("rows", [1, 3])
def test_without_a_pair_of_models_there_is_no_figure_5(compared: Compared, rows: int) -> None:
    tables = compared.noted[rows - 1]
    figures = compared.figures_of(tables)
    assert (figures.side_by_side is None) == (rows < 3)
    assert ("Figure 5" in markdown(tables, figures)) == (rows == 3)
    page = Page(html(tables, figures, dict.fromkeys(PICTURES, b"png")))
    assert {link for link in page.links if not link.startswith("data:")} <= page.anchors
