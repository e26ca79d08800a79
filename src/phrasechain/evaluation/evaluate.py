"""Scoring predictions against gold phrases: every protocol, with denominators, intervals and a paired test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phrasechain.core.boxes import gold_in_convention_xyxy, iou_xyxy, predicted_in_convention_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Example
from phrasechain.data.dataset import open_to_score, unexpected_count
from phrasechain.evaluation.coverage import UPPER_BOUNDS_AT, RegionHits, region_hits, unfit_regions
from phrasechain.evaluation.gold import UNSCORED, Gold, Matched, collect_gold, describe, match_predictions
from phrasechain.evaluation.metrics import (
    NEVER,
    RIGHT,
    Mean,
    PairedTest,
    any_box_iou_xyxy,
    any_box_pointing_xyxy,
    bootstrap_means,
    first_hits_xyxy,
    has_rival,
    merged_box_pointing_xyxy,
    neighbours,
    paired_test,
    split_errors_xyxy,
)
from phrasechain.evaluation.predictions import read_predictions
from phrasechain.store.reader import FeatureStore

RANKS = (1, 5, 10)
_NOWHERE = -1e9  # all four numbers of the box of a phrase without a prediction: empty and far from every gold box


@dataclass(frozen=True, slots=True)
class Protocol:
    """How predictions are scored."""

    regime: str = "gold"
    convention: str = "half_open"
    thresholds: tuple[float, ...] = (RIGHT,)
    resamples: int = 1000
    seed: int = 0
    level: float = 0.95
    reading: str = "corrected"  # of the mark-up, see ``open_to_score``

    def __post_init__(self) -> None:
        if not all(0 < threshold <= 1 for threshold in self.thresholds):
            raise DataError(f"thresholds are above 0 and at most 1, not {', '.join(map(str, self.thresholds))}")
        if not 1 <= self.resamples <= 1_000_000:
            raise DataError(f"resamples are 1 to 1,000,000, not {self.resamples:,}")
        if self.seed < 0:
            raise DataError(f"a seed is 0 or more, not {self.seed}")

    @property
    def bootstrap(self) -> dict[str, Any]:
        """The arguments of ``bootstrap_means`` and ``paired_test``."""
        return {"resamples": self.resamples, "seed": self.seed, "level": self.level}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a report: the table it belongs to, its name in it, and the mean."""

    table: str
    name: str
    mean: Mean


@dataclass(frozen=True, slots=True)
class Comparison:
    """The paired test of one figure."""

    name: str
    test: PairedTest


@dataclass(frozen=True, slots=True)
class Section:
    """The figures of some captions: the first one of each image, or all."""

    name: str
    images: int  # with a scored phrase
    captions: int
    phrases: int
    missing: int  # phrases without a prediction: wrong
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]

    def figure(self, table: str, name: str) -> Mean:
        """The mean of one row."""
        return next(row.mean for row in self.rows if (row.table, row.name) == (table, name))


@dataclass(frozen=True, slots=True)
class Report:
    """The figures, and what they were computed from."""

    predictions: str
    against: str | None
    features: str | None
    data: str
    split: str
    protocol: Protocol
    sections: tuple[Section, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure before it is averaged: a value per phrase, and which phrases count."""

    table: str
    name: str
    values: Tensor  # (N,)
    counted: Tensor | None = None  # (N,) bool; None: all of them


@dataclass(frozen=True, slots=True)
class MatchedFiles:
    """One or two files of predictions beside the gold phrases of a split."""

    predictions: str
    against: str | None
    data: str
    split: str
    protocol: Protocol
    examples: Sequence[Example]
    gold: Gold
    matched: tuple[Matched, ...]
    warnings: tuple[str, ...]


def match_files(
    predictions: Path, data: Path, split: str, protocol: Protocol, against: Path | None = None
) -> MatchedFiles:
    """Read a predictions file, and another, for the phrases of a split."""
    dataset = open_to_score(data, protocol.reading)
    examples = dataset.examples(split)
    gold = collect_gold(examples, protocol.regime)
    if len(gold) == 0:
        raise DataError(f"{data}: the split {split!r} has no phrase with a box: nothing to score")
    unexpected = unexpected_count(dataset, split, len(gold)) if protocol.reading == "corrected" else None
    warnings = [f"{data}: {unexpected}"] if unexpected else []
    matched = []
    for file in [predictions] if against is None else [predictions, against]:
        matched.append(match_predictions(gold, read_predictions(file), str(file)))
        warnings += [f"{file}: {warning}" for warning in _match_warnings(gold, matched[-1], protocol.regime)]
    return MatchedFiles(
        predictions=str(predictions),
        against=None if against is None else str(against),
        data=str(data),
        split=split,
        protocol=protocol,
        examples=examples,
        gold=gold,
        matched=tuple(matched),
        warnings=tuple(warnings),
    )


def evaluate_file(
    predictions: Path,
    data: Path,
    split: str,
    protocol: Protocol,
    against: Path | None = None,
    features: Path | None = None,
) -> Report:
    """Score a predictions file on a split of a dataset, test it against another file, and bound it by a store."""
    store = None if features is None else FeatureStore.open(features)
    return report_of(match_files(predictions, data, split, protocol, against), store)


def report_of(files: MatchedFiles, store: FeatureStore | None = None) -> Report:
    """The figures of predictions, with the upper bound of a store."""
    warnings = list(files.warnings)
    if store is not None and (unfit := list(unfit_regions(files.examples, store))):
        warnings.append(f"{unfit[0]}{f' (and {len(unfit) - 1:,} more images)' if len(unfit) > 1 else ''}")
    hits = None if store is None else region_hits(files.gold, store)
    return Report(
        predictions=files.predictions,
        against=files.against,
        features=None if store is None else str(store.path),
        data=files.data,
        split=files.split,
        protocol=files.protocol,
        sections=tuple(score(files.gold, *files.matched, protocol=files.protocol, hits=hits)),
        warnings=tuple(warnings),
    )


def score(
    gold: Gold,
    matched: Matched,
    against: Matched | None = None,
    *,
    protocol: Protocol,
    hits: RegionHits | None = None,
) -> Iterator[Section]:
    """The sections of a report: caption 0 alone (complete in every annotation), then all captions."""
    gold = replace(
        gold,
        boxes=gold_in_convention_xyxy(gold.boxes, protocol.convention),
        merged=gold_in_convention_xyxy(gold.merged, protocol.convention),
    )
    predicted = _predicted(matched, protocol.convention)
    accuracies = list(_accuracy_columns(gold, predicted, protocol.thresholds))
    columns = [
        *accuracies,
        *_localisation_columns(gold, predicted),
        *_recall_columns(gold, matched, protocol.convention),
        *(_store_columns(hits) if hits is not None else ()),
        *_breakdown_columns(gold, predicted),
    ]
    pairs: list[tuple[_Column, _Column]] = []
    if against is not None:
        theirs = _accuracy_columns(gold, _predicted(against, protocol.convention), protocol.thresholds)
        pairs = list(zip(accuracies, theirs, strict=True))
    for name, scope in caption_scopes(gold).items():
        yield _section(name, scope, gold, matched, columns, pairs, protocol)


def caption_scopes(gold: Gold) -> dict[str, Tensor]:
    """The phrases of each section: (N,) bool."""
    return {"caption 0": gold.caption_index == 0, "all captions": torch.ones(len(gold)).bool()}


def _section(
    name: str,
    scope: Tensor,
    gold: Gold,
    matched: Matched,
    columns: Sequence[_Column],
    pairs: Sequence[tuple[_Column, _Column]],
    protocol: Protocol,
) -> Section:
    image, everyone = gold.image[scope], torch.ones_like(scope)
    means = bootstrap_means(
        torch.stack([column.values[scope] for column in columns], -1),
        torch.stack([(everyone if column.counted is None else column.counted)[scope] for column in columns], -1),
        image,
        **protocol.bootstrap,
    )
    return Section(
        name=name,
        images=len(set(image.tolist())),
        captions=len(set(gold.caption[scope].tolist())),
        phrases=len(image),
        missing=int((~matched.found[scope]).sum()),
        rows=tuple(Row(column.table, column.name, mean) for column, mean in zip(columns, means, strict=True)),
        comparisons=tuple(
            Comparison(
                f"{mine.table}, {mine.name}",
                paired_test(mine.values[scope], theirs.values[scope], image, **protocol.bootstrap),
            )
            for mine, theirs in (pairs if len(image) else ())
        ),
    )


def _match_warnings(gold: Gold, matched: Matched, regime: str) -> Iterator[str]:
    missing = int((~matched.found).sum())
    if missing:
        yield f"{missing:,} of {len(gold):,} phrases have no prediction: they count as wrong"
    if matched.first_unknown is not None:
        first = matched.first_unknown
        yield (
            f"{matched.unknown:,} predictions are for phrases that this split does not have, the first on line "
            f"{first.line} ({describe(first.key)}): they are left out"
        )
    unscored = sum(row == UNSCORED for row in gold.rows.values())
    if regime == "gold" and matched.unscored:
        yield f"{matched.unscored:,} predictions are for phrases without a known box: is this a file of regime all?"
    if regime == "all" and matched.unscored < unscored:
        yield (
            f"{unscored - matched.unscored:,} of {unscored:,} visual phrases without a known box have no prediction: "
            "is this a file of regime gold?"
        )


def _predicted(matched: Matched, convention: str) -> Tensor:
    boxes = predicted_in_convention_xyxy(matched.boxes, convention)
    return torch.where(matched.found[:, None], boxes, _NOWHERE)  # (N, 4)


def merged_ious(gold: Gold, matched: Matched, convention: str) -> Tensor:
    """The IoU of each phrase's box with its merged box in a pixel convention, 0 without a prediction: (N,)."""
    return iou_xyxy(_predicted(matched, convention), gold_in_convention_xyxy(gold.merged, convention))


def _ious(gold: Gold, predicted: Tensor) -> dict[str, Tensor]:
    return {
        "merged box": iou_xyxy(predicted, gold.merged),
        "any box": any_box_iou_xyxy(predicted, gold.boxes, gold.owner),
    }


def _accuracy_columns(gold: Gold, predicted: Tensor, thresholds: Sequence[float]) -> Iterator[_Column]:
    ious = _ious(gold, predicted)
    for threshold in sorted({RIGHT, *thresholds}):
        for name, iou in ious.items():
            yield _Column(f"accuracy at IoU {threshold:g}", name, iou >= threshold)


def _localisation_columns(gold: Gold, predicted: Tensor) -> Iterator[_Column]:
    for name, iou in _ious(gold, predicted).items():
        yield _Column("mean IoU", name, iou)
    inside = {
        "merged box": merged_box_pointing_xyxy(predicted, gold.merged),
        "any box": any_box_pointing_xyxy(predicted, gold.boxes, gold.owner),
    }
    for name, values in inside.items():
        yield _Column("pointing game: centre inside", name, values)


def _recall_columns(gold: Gold, matched: Matched, convention: str) -> Iterator[_Column]:
    """Recall of the ranked regions; nothing for a file that lists none."""
    longest = int(matched.region_counts.max())
    if longest == 0:
        return
    regions = predicted_in_convention_xyxy(matched.regions, convention)
    targets = {"merged box": (gold.merged, torch.arange(len(gold))), "any box": (gold.boxes, gold.owner)}
    for name, (boxes, owner) in targets.items():
        ranks = first_hits_xyxy(regions, matched.region_counts, boxes, owner)
        for k in RANKS:
            yield _Column(f"ranked regions, {name}", f"R@{k}", ranks < k)
        yield _Column(f"ranked regions, {name}", f"upper bound, {longest} listed", ranks < NEVER)


def _store_columns(hits: RegionHits) -> Iterator[_Column]:
    """The upper bounds of a store's regions. They and the gold boxes are half-open, whatever the predictions are."""
    for name, ranks in hits.ranks.items():
        for label, k in UPPER_BOUNDS_AT.items():
            yield _Column(f"regions of the store, {name}", f"upper bound, K={label}", ranks < k)


def _breakdown_columns(gold: Gold, predicted: Tensor) -> Iterator[_Column]:
    """Accuracy of kinds of phrases, and kinds of errors, all for the merged box at IoU 0.5."""
    right = iou_xyxy(predicted, gold.merged) >= RIGHT
    for name, member in zip(gold.category_names, gold.categories.unbind(-1), strict=True):
        yield _Column("category", name, right, member)
    near = neighbours(gold.caption, gold.entity, gold.categories)
    rival = has_rival(near, len(gold))
    yield _Column("rivals in the caption", "alone in its category", right, ~rival)
    yield _Column("rivals in the caption", "with a rival", right, rival)
    for name, kind in split_errors_xyxy(predicted, gold.merged, right, near).items():
        yield _Column("errors", name, kind, ~right)
    for length in sorted(set(gold.chain_length.tolist())):
        yield _Column("phrases in the caption", f"{length}", right, gold.chain_length == length)
