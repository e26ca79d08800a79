"""The paper's tables on one's own data: every row trained and evaluated in every way, whatever is there already kept.

A row is a name and the settings that make it; a line of a table is a row and a way of asking it. Figures of several
seeds are those of all their predictions together, with whole images resampled, so that an interval covers the choice of
images and the spread says what the seed does. What tells most is trained first: every row once, then other seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError, require_name
from phrasechain.core.settings import with_texts
from phrasechain.data.dataset import open_dataset
from phrasechain.evaluation.evaluate import Protocol, Section, caption_scopes, score
from phrasechain.evaluation.gold import Gold, Matched, collect_gold, match_predictions
from phrasechain.evaluation.metrics import RIGHT, Mean, PairedTest, has_rival, neighbours, paired_test
from phrasechain.evaluation.predict import InferenceOptions, predict_run, predictions_file
from phrasechain.evaluation.predictions import read_predictions
from phrasechain.model.config import Config
from phrasechain.training.compare_rows import FULL, HERE, REFERENCE, ROWS, TABLES, TESTS, WORDS, TableLine
from phrasechain.training.grounder.task import train
from phrasechain.training.log import read_metrics
from phrasechain.training.run_folder import is_finished


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of one line: those of all seeds together, and the accuracy of each seed by section."""

    label: str
    row: str
    options: InferenceOptions
    seeds: int
    sections: tuple[Section, ...]
    accuracies: dict[str, tuple[float, ...]]  # section to the accuracy (merged box, IoU 0.5) of each seed
    minutes: float  # of training, in the mean of the seeds

    def spread(self, section: str) -> float | None:
        """The standard deviation over seeds."""
        return stdev(self.accuracies[section]) if self.seeds > 1 else None


@dataclass(frozen=True, slots=True)
class Test:
    """The paired test of two lines by the seeds that both have, for several choices of phrases."""

    first: str
    second: str
    seeds: int
    gains: dict[str, PairedTest]


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


class ComparisonRunner:
    """Trains and evaluates what a table needs, each run, match, line and test once."""

    def __init__(
        self,
        data: Path,
        features: Path,
        out: Path,
        base: Config,
        split: str,
        device: str,
        protocol: Protocol,
        missing: str = "refuse",
    ) -> None:
        self.data, self.features, self.out, self.base = data, features, out, base
        self.split, self.device, self.protocol, self.missing = split, device, protocol, missing
        examples = open_dataset(data).examples(split)
        self.gold = {regime: collect_gold(examples, regime) for regime in ("gold", "all")}
        if len(self.gold["gold"]) == 0:
            raise DataError(f"{data}: the split {split!r} has no phrase with a box: nothing to compare")
        self.run, self.matched = cache(self._run), cache(self._match)
        self.line, self.test = cache(self._line), cache(self._test)

    def is_trained(self, row: str, seed: int) -> bool:
        return is_finished(self._folder(row, seed))

    def _run(self, row: str, seed: int) -> Path:
        """The folder of a row's run, which is trained unless it is finished."""
        config = with_texts(self.base, [*ROWS[row], f"train.seed={seed}"])
        folder = self._folder(row, seed)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return train(self.data, self.features, folder, config, self.device, missing=self.missing)

    def _folder(self, row: str, seed: int) -> Path:
        return self.out / "runs" / f"{row.replace(', ', '_').replace(' ', '-')}_seed-{seed}"

    def _match(self, row: str, seed: int, options: InferenceOptions) -> Matched:
        """A run's predictions beside the gold phrases; they are made unless they are there."""
        run = self.run(row, seed)
        file = predictions_file(run, self.split, options)
        if not file.exists():
            asked = asdict(options) | {"device": self.device, "missing": self.missing}
            predict_run(run, self.data, self.features, self.split, **asked)
        return match_predictions(self.gold[options.regime], read_predictions(file), str(file))

    def _line(self, table_line: TableLine, seeds: int) -> Line:
        matched = [self.matched(table_line.row, seed, table_line.options) for seed in range(seeds)]
        gold = self.gold[table_line.options.regime]
        sections = tuple(score(repeat_gold(gold, seeds), join_matched(matched), protocol=self.protocol))
        minutes = [_minutes(self.run(table_line.row, seed)) for seed in range(seeds)]
        accuracies = {
            name: tuple(float(_right(gold, one)[scope].double().mean()) for one in matched)
            for name, scope in caption_scopes(gold).items()
        }
        return Line(table_line.label, table_line.row, table_line.options, seeds, sections, accuracies, mean(minutes))

    def _test(self, first: TableLine, second: TableLine, seeds: int) -> Test:
        """The test for all phrases and for those with a rival, by which a chain should matter most."""
        gold = self.gold["gold"]
        mine, theirs = (
            torch.stack([_right(gold, self.matched(table_line.row, seed, table_line.options)) for seed in range(seeds)])
            for table_line in (first, second)
        )  # (S, N)
        scopes, rival = (
            caption_scopes(gold),
            has_rival(neighbours(gold.caption, gold.entity, gold.categories), len(gold)),
        )
        scopes |= {f"{name}, with a rival": scope & rival for name, scope in scopes.items()}
        gains = {
            name: paired_test(
                mine[:, scope].flatten(),
                theirs[:, scope].flatten(),
                gold.image[scope].repeat(seeds),
                **self.protocol.bootstrap,
            )
            for name, scope in scopes.items()
            if bool(scope.any())
        }
        return Test(first.label, second.label, seeds, gains)


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
    note: Callable[[Tables], object] = lambda tables: None,
    missing: str = "refuse",
) -> Tables:
    """Train and evaluate the rows, and gather the tables. The models of the first table get all seeds.

    Another row gets one, and all where the accuracy of that one lies within the interval of the reference: then one
    does not tell them apart. ``settings`` are what was set for all rows, to be shown. ``note`` is handed the tables of
    what is there whenever another run is trained.
    """
    rows = _wanted_rows(base, rows)
    runner = ComparisonRunner(data, features, out, base, split, device, protocol or Protocol(), missing)
    tables = Tables(str(data), split, str(features), tuple(settings), seeds, {}, ())
    counts: dict[str, int] = {}
    for row, seed in _in_order(runner, rows, seeds):
        is_new = not runner.is_trained(row, seed)
        runner.run(row, seed)
        counts[row] = seed + 1
        if is_new:
            note(_filled(tables, runner, counts))
    return _filled(tables, runner, counts)


def _wanted_rows(base: Config, rows: Sequence[str] | None) -> list[str]:
    for row in rows or ():
        require_name("row", row, ROWS)
    if base.text.encoder == "words" and base.text.vectors:
        return list(dict.fromkeys(rows or ROWS))
    if rows and WORDS in rows:
        raise DataError(f"row {WORDS!r}: it would be the row {REFERENCE!r} again; set text.vectors for the other rows")
    return [row for row in dict.fromkeys(rows or ROWS) if row != WORDS]


def _in_order(runner: ComparisonRunner, rows: Sequence[str], seeds: int) -> Iterator[tuple[str, int]]:
    """What is trained, one after the other: a row and a seed."""
    yield from ((row, 0) for row in rows)
    yield from ((row, seed) for seed in range(1, seeds) for row in rows if row in FULL)
    for row in rows:
        if row not in FULL and REFERENCE in rows and _is_near_reference(runner, row, seeds):
            yield from ((row, seed) for seed in range(1, seeds))


def _is_near_reference(runner: ComparisonRunner, row: str, seeds: int) -> bool:
    interval = headline(runner.line(HERE, seeds).sections[0])
    own = headline(runner.line(TableLine(row, row), 1).sections[0]).value
    return interval.low <= own <= interval.high


def _filled(tables: Tables, runner: ComparisonRunner, counts: Mapping[str, int]) -> Tables:
    """The tables of what is trained: ``counts`` seeds of each row. One that says nothing new is left out."""
    shown: dict[str, tuple[Line, ...]] = {}
    seen: set[tuple[str, InferenceOptions]] = set()
    for title, lines in TABLES.items():
        there = [each for each in lines if each.row in counts]
        if not seen.issuperset((each.row, each.options) for each in there):
            shown[title] = tuple(runner.line(each, counts[each.row]) for each in there)
            seen.update((each.row, each.options) for each in there)
    tests = tuple(
        runner.test(first, second, min(counts[first.row], counts[second.row]))
        for first, second in TESTS
        if first.row in counts and second.row in counts
    )
    return replace(tables, tables=shown, tests=tests)


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


def _right(gold: Gold, matched: Matched) -> Tensor:
    return (iou_xyxy(matched.boxes, gold.merged) >= RIGHT) & matched.found  # (N,)


def _minutes(run: Path) -> float:
    return sum(line.get("seconds", 0.0) for line in read_metrics(run)) / 60
