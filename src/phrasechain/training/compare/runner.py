"""Rows trained and evaluated in every way, whatever is there already kept, and the tables of them.

Figures of several seeds are those of all their predictions together, with whole images resampled, so that an interval
covers the choice of images and the spread says what the seed does. What tells most is trained first: every row once,
then other seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import mean
from time import perf_counter

import torch
from torch import Tensor

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.distributed import is_first_process
from phrasechain.core.errors import DataError
from phrasechain.core.settings import with_texts
from phrasechain.data.dataset import open_dataset
from phrasechain.data.photos import ShardNumber
from phrasechain.evaluation.evaluate import Protocol, caption_scopes, score
from phrasechain.evaluation.gold import Gold, Matched, collect_gold, match_predictions
from phrasechain.evaluation.metrics import RIGHT, has_rival, neighbours, paired_test
from phrasechain.evaluation.predict import InferenceOptions, predict_run, predictions_file
from phrasechain.evaluation.predictions import read_predictions
from phrasechain.model.config import Config, Text
from phrasechain.store.reader import FeatureStore
from phrasechain.training.compare.plan import Job, choose_rows, duration, plan_jobs, seconds_left
from phrasechain.training.compare.rows import ROWS, TABLES, TESTS, TableLine, options_of
from phrasechain.training.compare.tables import Line, Tables, Test
from phrasechain.training.compare.timing import note_training, noted_times, time_inference, training_seconds
from phrasechain.training.grounder.task import train
from phrasechain.training.run_folder import is_finished


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
        self.examples = open_dataset(data).examples(split)
        self.gold = {regime: collect_gold(self.examples, regime) for regime in ("gold", "all")}
        if len(self.gold["gold"]) == 0:
            raise DataError(f"{data}: the split {split!r} has no phrase with a box: nothing to compare")
        self.matched, self.line, self.test = cache(self._match), cache(self._line), cache(self._test)

    def folder(self, job: Job) -> Path:
        """Of a run: ``runs/HL-GloVe_seed-0`` for the row HL (GloVe) and seed 0."""
        kept = "".join(letter for letter in job.row if letter not in "()")
        return self.out / "runs" / f"{kept.replace(' ', '-')}_seed-{job.seed}"

    def is_ready(self, job: Job) -> bool:
        """Whether a run is trained, and predicts what the tables need."""
        run = self.folder(job)
        return is_finished(run) and all(
            predictions_file(run, self.split, each).exists() for each in options_of(job.row)
        )

    def prepare(self, job: Job) -> None:
        """Train a run unless it is trained, and predict in every way."""
        config = with_texts(self.base, [*ROWS[job.row], f"train.seed={job.seed}"])
        run = self.folder(job)
        run.parent.mkdir(parents=True, exist_ok=True)
        was_finished, start = is_finished(run), perf_counter()
        train(self.data, self.features, run, config, self.device, missing=self.missing)
        if not was_finished and is_first_process():
            note_training(run, perf_counter() - start)
        for options in options_of(job.row):
            if not predictions_file(run, self.split, options).exists():
                asked = asdict(options) | {"device": self.device, "missing": self.missing}
                predict_run(run, self.data, self.features, self.split, **asked)

    def time_inference(self, rows: Iterable[str]) -> None:
        """Measure the milliseconds for a caption, where they are not noted; by the first process alone."""
        if not is_first_process():
            return
        runs = {row: self.folder(Job(row, 0)) for row in rows}
        methods = {row: list(dict.fromkeys(options.decode for options in options_of(row))) for row in runs}
        time_inference(self.out, runs, methods, self.examples, FeatureStore.open(self.features))

    def _match(self, job: Job, options: InferenceOptions) -> Matched:
        """A run's predictions beside the gold phrases."""
        file = predictions_file(self.folder(job), self.split, options)
        return match_predictions(self.gold[options.regime], read_predictions(file), str(file))

    def right(self, job: Job, options: InferenceOptions) -> Tensor:
        """Which gold phrases a run has right, by the merged box: (N,) bool."""
        return _right(self.gold[options.regime], self.matched(job, options))

    def _line(self, asked: TableLine, seeds: int) -> Line:
        jobs = [Job(asked.row, seed) for seed in range(seeds)]
        gold = self.gold[asked.options.regime]
        matched = [self.matched(job, asked.options) for job in jobs]
        return Line(
            asked.label,
            asked.row,
            asked.options,
            seeds,
            sections=tuple(score(repeat_gold(gold, seeds), join_matched(matched), protocol=self.protocol)),
            accuracies={
                name: tuple(float(_right(gold, one)[scope].double().mean()) for one in matched)
                for name, scope in caption_scopes(gold).items()
            },
            minutes=mean(training_seconds(self.folder(job)) for job in jobs) / 60,
            published=asked.published,
        )

    def _test(self, first: TableLine, second: TableLine, seeds: int) -> Test:
        """The test for all phrases and for those with a rival, by which a chain should matter most."""
        gold = self.gold["gold"]
        mine, theirs = (
            torch.stack([self.right(Job(asked.row, seed), asked.options) for seed in range(seeds)])
            for asked in (first, second)
        )  # (S, N)
        rival = has_rival(neighbours(gold.caption, gold.entity, gold.categories), len(gold))
        scopes = caption_scopes(gold)
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


Note = Callable[[Tables, ComparisonRunner], object]


def compare(
    data: Path,
    features: Path,
    out: Path,
    base: Config,
    *,
    rows: Sequence[str] | None = None,
    seeds: int = 3,
    other_seeds: int = 2,
    split: str = "test",
    settings: Sequence[str] = (),
    device: str = "auto",
    protocol: Protocol | None = None,
    part: ShardNumber | None = None,
    note: Note = lambda tables, runner: None,
    say: Callable[[str], object] = lambda line: None,
    missing: str = "refuse",
) -> Tables | None:
    """Train and evaluate the rows, and gather the tables.

    Args:
        rows: names of ``ROWS``; by default all that can be trained here.
        seeds, other_seeds: of each row of the first table, and of each other row.
        settings: what was set for all rows, to be shown.
        part: train and evaluate only every n-th run, and gather nothing: the same call without it does, in the end.
        note: is given the tables of what is there whenever another run is ready, and in the end.
        say: is given a line about each run, with the time that is left.
        missing: images that the store lacks are refused, or left out with ``skip``.
    """
    wanted, absent = choose_rows(base, rows)
    runner = ComparisonRunner(data, features, out, base, split, device, protocol or Protocol(), missing)
    tables = Tables(str(data), split, str(features), tuple(settings), _words(base.text), seeds, {}, ())
    tables = replace(tables, absent=absent)
    jobs, took = plan_jobs(wanted, seeds, other_seeds, part), dict[Job, float]()
    ready = {job for job in jobs if runner.is_ready(job)}
    took |= {job: training_seconds(runner.folder(job)) for job in ready}
    say(f"{len(jobs)} runs, {len(ready)} of them ready")
    for row, reason in absent.items():
        say(f"left out: {row} {reason}")
    counts: dict[str, int] = {}
    for number, job in enumerate(jobs, 1):
        if job not in ready:
            left = seconds_left([each for each in jobs[number - 1 :] if each not in ready], took)
            say(f"{number} of {len(jobs)}: {job}" + (f"; about {duration(left)} left" if left is not None else ""))
        start = perf_counter()
        runner.prepare(job)
        counts[job.row] = job.seed + 1
        if job not in ready:
            if part is None:
                note(_filled(tables, runner, counts), runner)
            took[job] = perf_counter() - start
            say(f"{number} of {len(jobs)}: {job} took {duration(took[job])}")
    if part is not None:
        return None
    runner.time_inference(counts)
    found = _filled(tables, runner, counts)
    note(found, runner)
    return found


def _filled(tables: Tables, runner: ComparisonRunner, counts: Mapping[str, int]) -> Tables:
    """The tables of what is trained: ``counts`` seeds of each row. One that says nothing new is left out."""
    shown: dict[str, tuple[Line, ...]] = {}
    seen: set[tuple[str, InferenceOptions]] = set()
    times = noted_times(runner.out)
    for title, lines in TABLES.items():
        there = [each for each in lines if each.row in counts]
        if not seen.issuperset((each.row, each.options) for each in there):
            shown[title] = tuple(
                replace(
                    runner.line(each, counts[each.row]), milliseconds=times.get(each.row, {}).get(each.options.decode)
                )
                for each in there
            )
            seen.update((each.row, each.options) for each in there)
    tests = tuple(
        runner.test(first, second, min(counts[first.row], counts[second.row]))
        for first, second in TESTS
        if first.row in counts and second.row in counts
    )
    return replace(tables, tables=shown, tests=tests)


def _words(text: Text) -> str:
    """What captions are read by, in a few words.

    >>> _words(Text(vectors="glove/glove.100d.txt.gz"))
    'word vectors that begin as those of glove.100d.txt.gz'
    """
    if text.encoder == "words":
        return f"word vectors that begin as those of {Path(text.vectors).name}" if text.vectors else "learned words"
    return f"ELMo ({text.layers})" if text.encoder == "elmo" else f"{text.encoder} {text.model}".strip()


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
