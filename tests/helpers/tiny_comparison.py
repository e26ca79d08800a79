"""A comparison of tiny runs, and what was said and noted meanwhile."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from phrasechain.evaluation.evaluate import Protocol
from phrasechain.model.config import Config
from phrasechain.training.compare.figures import FigureMaker, Figures
from phrasechain.training.compare.runner import ComparisonRunner, compare
from phrasechain.training.compare.tables import Tables
from tiny_grounding import tiny_config, write_world

ROWS_HERE = ("HL", "SL", "SL-CCRF", "SL-CCRF no regression")
BASE = tiny_config("train.epochs=2")
QUICK = Protocol(resamples=50)


@dataclass
class Compared:
    """What was compared, how, and what was said and noted meanwhile."""

    data: Path
    store: Path
    out: Path
    base: Config = BASE
    options: dict[str, Any] = field(
        default_factory=lambda: {
            "rows": ROWS_HERE,
            "seeds": 2,
            "other_seeds": 1,
            "split": "train",
            "settings": ["preset small"],
            "protocol": QUICK,
        }
    )
    noted: list[Tables] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    runners: list[ComparisonRunner] = field(default_factory=list)

    def run(self, **options: Any) -> Tables | None:
        def note(tables: Tables, runner: ComparisonRunner) -> None:
            self.noted.append(tables)
            self.runners.append(runner)

        given = self.options | {"note": note, "say": self.said.append} | options
        return compare(self.data, self.store, options.pop("out", self.out), self.base, **given)

    @property
    def tables(self) -> Tables:
        return self.noted[-1]

    @property
    def figures(self) -> Figures:
        return self.figures_of(self.tables)

    def figures_of(self, tables: Tables) -> Figures:
        return FigureMaker().figures(tables, self.runners[-1])


def write_compared(root: Path) -> Compared:
    """Tiny images with photos, not compared yet."""
    data, store = write_world(root, images=12)
    for sentences in (data / "Sentences").iterdir():
        Image.new("RGB", (100, 80), "gray").save(data / "images" / f"{sentences.stem}.jpg")
    return Compared(data, store, root / "tables")
