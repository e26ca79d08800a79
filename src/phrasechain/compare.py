"""The paper's tables on one's own data: every row trained and asked in every way, whatever is there already kept.

A row is a name and the settings that make it; a line of a table is a row and a way of asking it. Figures of several
seeds are those of all their predictions together, with whole images resampled, so that an interval covers the choice of
images and the spread says what the seed does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import torch
from torch import Tensor

from phrasechain.boxes import iou_xyxy
from phrasechain.config import Config, with_settings
from phrasechain.data.dataset import open_dataset
from phrasechain.data.gold import Gold, Matched, collect_gold, match_predictions
from phrasechain.data.predictions import read_predictions
from phrasechain.errors import DataError, unknown_name
from phrasechain.evaluate import Comparison, Protocol, Section, score
from phrasechain.evaluate_run import Answering, predict_run, predictions_file
from phrasechain.metrics import RIGHT, Mean
from phrasechain.run_folder import read_metrics
from phrasechain.train import train

#: The models, by name: what is set for each besides what is set for all.
ROWS: dict[str, tuple[str, ...]] = {
    "HL": ("loss.targets=hard", "model.chain=false"),
    "SL": ("loss.targets=soft", "model.chain=false"),
    "HL-CCRF": ("loss.targets=hard", "model.chain=true"),
    "SL-CCRF": ("loss.targets=soft", "model.chain=true"),
    "SL-CCRF, no context": ("loss.targets=soft", "model.chain=true", "model.context=none"),
    "SL-CCRF, M+LR": ("loss.targets=soft", "model.chain=true", "model.context=M+LR"),
    "SL-CCRF, M+LR+G": ("loss.targets=soft", "model.chain=true", "model.context=M+LR+G"),
    "SL-CCRF, learned words": ("loss.targets=soft", "model.chain=true", "text.vectors="),
    "SL-CCRF, no regression": ("loss.targets=soft", "model.chain=true", "model.box_regression=false"),
    "SL-CCRF, geometric": ("loss.targets=soft", "model.chain=true", "model.transition=geometric"),
}
MODELS = ("HL", "SL", "HL-CCRF", "SL-CCRF")  # trained with all seeds
REFERENCE = "SL-CCRF"


class Asked(NamedTuple):
    """A line of a table: its label, the row, and how it is asked."""

    label: str
    row: str
    answering: Answering = Answering()


_UNMOVED = Answering(box_regression=False)
TABLES: dict[str, tuple[Asked, ...]] = {
    "models": tuple(Asked(name, name) for name in MODELS),
    "context of the transitions": (
        Asked("none", "SL-CCRF, no context"),
        Asked("M", REFERENCE),
        Asked("M+LR", "SL-CCRF, M+LR"),
        Asked("M+LR+G", "SL-CCRF, M+LR+G"),
    ),
    "transitions": (Asked("paper", REFERENCE), Asked("geometric", "SL-CCRF, geometric")),
    "words": (Asked("given vectors", REFERENCE), Asked("learned", "SL-CCRF, learned words")),
    "decoding": tuple(
        Asked(f"{name}, {how}", name, Answering(decode=how))
        for name in ("HL-CCRF", "SL-CCRF")
        for how in ("viterbi", "smoothing", "independent", "consensus")
    ),
    "box regression": (
        *(
            Asked(f"{name}, {label}", name, answering)
            for name in MODELS
            for label, answering in (("moved", Answering()), ("not moved", _UNMOVED))
        ),
        Asked("SL-CCRF, trained without", "SL-CCRF, no regression"),
    ),
    "phrases in the chain": tuple(
        Asked(f"{name}, {regime}", name, Answering(regime=regime)) for name in MODELS for regime in ("gold", "all")
    ),
}
#: Which model is tested against which.
TESTS = (("SL", "HL"), ("HL-CCRF", "HL"), ("SL-CCRF", "HL-CCRF"), ("SL-CCRF", "SL"))


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of one line: those of all seeds together, and the accuracy of each seed by section."""

    label: str
    row: str
    answering: Answering
    seeds: int
    sections: tuple[Section, ...]
    accuracies: dict[str, tuple[float, ...]]  # section to the accuracy (merged box, IoU 0.5) of each seed
    minutes: float  # of training, in the mean of the seeds

    def spread(self, section: str) -> float | None:
        """The standard deviation over seeds."""
        return stdev(self.accuracies[section]) if self.seeds > 1 else None


@dataclass(frozen=True, slots=True)
class Test:
    """The paired test of two models by the seeds that both have, by section."""

    first: str
    second: str
    comparisons: dict[str, Comparison]


@dataclass(frozen=True, slots=True)
class Tables:
    """Everything that was compared."""

    data: str
    split: str
    features: str
    settings: tuple[str, ...]
    seeds: int
    tables: dict[str, tuple[Line, ...]]
    tests: tuple[Test, ...]


class Workshop:
    """Trains and asks what a table needs, once."""

    def __init__(
        self, data: Path, features: Path, out: Path, base: Config, split: str, device: str, protocol: Protocol
    ) -> None:
        self.data, self.features, self.out, self.base = data, features, out, base
        self.split, self.device, self.protocol = split, device, protocol
        examples = open_dataset(data).examples(split)
        self.gold = {regime: collect_gold(examples, regime) for regime in ("gold", "all")}
        if len(self.gold["gold"]) == 0:
            raise DataError(f"{data}: the split {split!r} has no phrase with a box: nothing to compare")
        self._runs: dict[tuple[str, int], Path] = {}
        self._matched: dict[tuple[str, int, Answering], Matched] = {}

    def run(self, row: str, seed: int) -> Path:
        """The folder of a row's run, which is trained unless it is finished."""
        if (row, seed) in self._runs:
            return self._runs[row, seed]
        config = with_settings(self.base, [*ROWS[row], f"train.seed={seed}"])
        folder = self.out / "runs" / f"{row.replace(', ', '_').replace(' ', '-')}_seed-{seed}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._runs[row, seed] = train(self.data, self.features, folder, config, self.device)
        return folder

    def matched(self, row: str, seed: int, answering: Answering) -> Matched:
        """A run's predictions beside the gold phrases; they are made unless they are there."""
        key = row, seed, answering
        if key not in self._matched:
            run = self.run(row, seed)
            file = predictions_file(run, self.split, answering)
            if not file.exists():
                predict_run(run, self.data, self.features, self.split, device=self.device, **asdict(answering))
            self._matched[key] = match_predictions(self.gold[answering.regime], read_predictions(file), str(file))
        return self._matched[key]

    def line(self, asked: Asked, seeds: int) -> Line:
        matched = [self.matched(asked.row, seed, asked.answering) for seed in range(seeds)]
        gold = self.gold[asked.answering.regime]
        sections = tuple(score(repeat_gold(gold, seeds), join_matched(matched), protocol=self.protocol))
        minutes = [_minutes(self.run(asked.row, seed)) for seed in range(seeds)]
        accuracies = {name: tuple(_accuracy(gold, one, scope) for one in matched) for name, scope in _scopes(gold)}
        return Line(asked.label, asked.row, asked.answering, seeds, sections, accuracies, mean(minutes))

    def test(self, first: str, second: str, seeds: int) -> Test:
        both = [
            join_matched([self.matched(row, seed, Answering()) for seed in range(seeds)]) for row in (first, second)
        ]
        sections = score(repeat_gold(self.gold["gold"], seeds), *both, protocol=self.protocol)
        return Test(first, second, {section.name: section.comparisons[0] for section in sections})


def compare(
    data: Path,
    features: Path,
    out: Path,
    base: Config,
    *,
    rows: Sequence[str] | None = None,
    seeds: int = 3,
    split: str = "test",
    settings: Sequence[str] = (),
    device: str = "auto",
    protocol: Protocol | None = None,
) -> Tables:
    """Train and ask the rows, and gather the tables. The four models get all seeds.

    Another row gets one, and all where the accuracy of that one lies within the interval of the reference: then one
    does not tell them apart. ``settings`` are what was set for all rows, to be shown.
    """
    rows = _wanted_rows(base, rows)
    workshop = Workshop(data, features, out, base, split, device, protocol or Protocol())
    counts = dict(_seed_counts(workshop, rows, seeds))
    tables = {
        title: tuple(workshop.line(asked, counts[asked.row]) for asked in lines if asked.row in rows)
        for title, lines in TABLES.items()
    }
    tests = tuple(workshop.test(*pair, seeds) for pair in TESTS if set(pair) <= set(rows))
    shown = {title: lines for title, lines in tables.items() if len(lines) > 1 or title == "models"}
    return Tables(str(data), split, str(features), tuple(settings), seeds, shown, tests)


def _wanted_rows(base: Config, rows: Sequence[str] | None) -> list[str]:
    for row in rows or ():
        if row not in ROWS:
            raise DataError(unknown_name("row", row, ROWS))
    wanted = list(rows or ROWS)
    if base.text.encoder != "words" or not base.text.vectors:
        wanted = [row for row in wanted if row != "SL-CCRF, learned words"]  # it would be the reference again
    return wanted


def _seed_counts(workshop: Workshop, rows: Sequence[str], seeds: int) -> Iterator[tuple[str, int]]:
    """How many seeds each row is trained with."""
    yield from ((row, seeds) for row in rows if row in MODELS)
    rest = [row for row in rows if row not in MODELS]
    interval = None
    if rest and REFERENCE in rows:
        interval = headline(workshop.line(Asked(REFERENCE, REFERENCE), seeds).sections[0])
    for row in rest:
        own = headline(workshop.line(Asked(row, row), 1).sections[0]).value
        yield row, seeds if interval is not None and interval.low <= own <= interval.high else 1


def headline(section: Section) -> Mean:
    """The accuracy at IoU 0.5 with the merged box."""
    return section.figure("accuracy at IoU 0.5", "merged box")


def repeat_gold(gold: Gold, times: int) -> Gold:
    """The same phrases several times, for as many predictions: captions stay apart, images are the same."""
    captions = int(gold.caption.max()) + 1
    return replace(
        gold,
        rows={},
        image=gold.image.repeat(times),
        caption=_shifted(gold.caption, captions, times),
        caption_index=gold.caption_index.repeat(times),
        chain_length=gold.chain_length.repeat(times),
        entity=gold.entity.repeat(times),
        categories=gold.categories.repeat(times, 1),
        boxes=gold.boxes.repeat(times, 1),
        owner=_shifted(gold.owner, len(gold), times),
        merged=gold.merged.repeat(times, 1),
    )


def _shifted(values: Tensor, by: int, times: int) -> Tensor:
    return torch.cat([values + by * number for number in range(times)])


def join_matched(parts: Sequence[Matched]) -> Matched:
    """Several predictions of the same phrases as those of ``repeat_gold``."""
    return Matched(
        found=torch.cat([part.found for part in parts]),
        boxes=torch.cat([part.boxes for part in parts]),
        regions=torch.cat([part.regions for part in parts]),
        region_counts=torch.cat([part.region_counts for part in parts]),
        unscored=sum(part.unscored for part in parts),
        unknown=sum(part.unknown for part in parts),
        first_unknown=None,
    )


def _scopes(gold: Gold) -> list[tuple[str, Tensor]]:
    return [("caption 0", gold.caption_index == 0), ("all captions", torch.ones(len(gold), dtype=torch.bool))]


def _accuracy(gold: Gold, matched: Matched, scope: Tensor) -> float:
    right = (iou_xyxy(matched.boxes, gold.merged) >= RIGHT) & matched.found
    return float(right[scope].double().mean())


def _minutes(run: Path) -> float:
    return sum(line.get("seconds", 0.0) for line in read_metrics(run)) / 60
