"""The tables of settings in the pages, written by the settings themselves.

    python tests/helpers/key_tables.py

writes them anew: in a page, each stands between ``<!-- keys: SECTION -->`` and ``<!-- end -->``.
"""

import re
from pathlib import Path

from paths import ROOT
from phrasechain.core.settings import key_table
from phrasechain.model.config import Config
from phrasechain.training.finder.settings import FinderSettings
from phrasechain.training.regions.settings import RegionSettings

PAGES: dict[str, object] = {"training": Config(), "regions": RegionSettings(), "phrases": FinderSettings()}


def page_file(page: str) -> Path:
    return ROOT / "docs" / f"{page}.md"


def with_tables(text: str, settings: object) -> str:
    """The text of a page with its tables as they should be."""
    pattern = re.compile(r"(<!-- keys: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}\n{key_table(settings, found[2])}\n{found[3]}", text)


def main() -> None:
    for page, settings in PAGES.items():
        file = page_file(page)
        file.write_text(with_tables(file.read_text(encoding="utf-8"), settings), encoding="utf-8")


if __name__ == "__main__":
    main()
