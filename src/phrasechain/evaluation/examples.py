"""Pictures for a report: the captions that came out worst and best, and those where two files of predictions differ.

A caption is judged by the mean IoU of its phrases with their merged boxes, in the report's pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from phrasechain.core.errors import DataError
from phrasechain.core.images import without_warnings
from phrasechain.core.schema import Caption, Example, GroundedPhrase, Grounding
from phrasechain.draw import draw_comparison, draw_grounding
from phrasechain.evaluation.evaluate import MatchedFiles, merged_ious
from phrasechain.evaluation.metrics import RIGHT
from phrasechain.regions.pixels import read_rgb

PICTURES = 24
_ATTEMPTS = 4  # photos that are tried for each picture that is wanted
_WIDEST = {"single": 480, "pair": 900}  # pixels of a picture


@dataclass(frozen=True, slots=True)
class ExamplePicture:
    """A caption on its photo, and what is said below it."""

    group: str  # why it is shown
    jpeg: bytes = field(repr=False)
    image: str
    caption: int
    lines: tuple[str, ...]  # a phrase each


@dataclass(frozen=True, slots=True)
class _Choice:
    """A caption with its scored phrases, by their rows."""

    example: Example
    caption: Caption
    rows: list[int]
    spans: list[tuple[int, int]]  # of the phrases, in the caption's characters

    def texts(self) -> list[str]:
        return [self.caption.text[start:end] for start, end in self.spans]


def example_pictures(files: MatchedFiles, count: int = PICTURES) -> list[ExamplePicture]:
    """At most ``count`` pictures, an equal number for each reason; none where there are no photos."""
    choices = list(_choices(files))
    ious = [merged_ious(files.gold, matched, files.protocol.convention) for matched in files.matched]  # (N,) each
    means = [_means(each, choices) for each in ious]  # (C,) each
    phrases = torch.tensor([len(choice.rows) for choice in choices])
    several = (phrases > 1).double()  # what a caption with one phrase shows is little
    reasons: dict[str, Tensor] = {"worst": several + 1 - means[0], "best": several + means[0]}
    if len(means) > 1:
        first, second = ((each >= RIGHT).double() for each in ious)
        verdicts = _means((first - second).abs(), choices)
        reasons["different"] = torch.where(verdicts > 0, verdicts + (means[0] - means[1]).abs(), -1.0)
    seen: set[str] = set()
    found: list[ExamplePicture] = []
    for reason, order in reasons.items():
        ranked = [place for place in order.argsort(descending=True, stable=True).tolist() if order[place] >= 0]
        found += _draw_some(files, ious, [choices[place] for place in ranked], reason, count // len(reasons), seen)
    return found


def _choices(files: MatchedFiles) -> Iterator[_Choice]:
    """The captions whose photo is known and whose phrases all have a prediction in every file."""
    complete = torch.stack([matched.found for matched in files.matched]).all(0)  # (N,)
    rows: dict[tuple[str, int], list[int]] = {}
    keys = files.gold.scored_keys()
    for row, (image, index, _, _) in enumerate(keys):
        rows.setdefault((image, index), []).append(row)
    for example in files.examples:
        for caption in example.captions if example.path is not None else ():
            own = rows.get((example.image, caption.index), [])
            if own and bool(complete[own].all()):
                yield _Choice(example, caption, own, [keys[row][2:] for row in own])


def _means(values: Tensor, choices: Sequence[_Choice]) -> Tensor:
    """The mean of (N,) over the phrases of each caption: (C,)."""
    return torch.tensor([float(values[choice.rows].mean()) for choice in choices], dtype=torch.float64)


def _draw_some(
    files: MatchedFiles,
    ious: Sequence[Tensor],
    ranked: Sequence[_Choice],
    reason: str,
    count: int,
    seen: set[str],
) -> Iterator[ExamplePicture]:
    """The first ones that can be drawn, of images that have not been seen."""
    drawn = tried = 0
    for choice in ranked:
        if drawn == count or tried == _ATTEMPTS * count:
            return
        if choice.example.image in seen:
            continue
        tried += 1
        try:
            jpeg = _draw(files, choice, reason)
        except DataError:  # a photo that is missing, broken or of another size
            continue
        drawn += 1
        seen.add(choice.example.image)
        yield ExamplePicture(reason, jpeg, choice.example.image, choice.caption.index, tuple(_lines(choice, ious)))


def _lines(choice: _Choice, ious: Sequence[Tensor]) -> Iterator[str]:
    for text, row in zip(choice.texts(), choice.rows, strict=True):
        verdicts = [f"{float(iou[row]):.2f} {'right' if iou[row] >= RIGHT else 'wrong'}" for iou in ious]
        yield f"{text}: IoU {', the other '.join(verdicts)}"


def _draw(files: MatchedFiles, choice: _Choice, reason: str) -> bytes:
    """The best alone, the worst beside the annotation, different ones side by side."""
    assert choice.example.path is not None
    with without_warnings():
        photo = read_rgb(choice.example.path)
    mine = _grounding(choice, files.matched[0].boxes)
    if reason == "best":
        return _jpeg(draw_grounding(photo, mine), _WIDEST["single"])
    if reason == "worst":
        other, names = _grounding(choice, files.gold.merged), ("predicted", "annotated")
    else:
        other, names = _grounding(choice, files.matched[1].boxes), _names(files)
    return _jpeg(draw_comparison(photo, mine, other, names), _WIDEST["pair"])


def _names(files: MatchedFiles) -> tuple[str, str]:
    """The two files by the ends of their paths in which they differ."""
    assert files.against is not None
    parts = [Path(path).with_suffix("").parts for path in (files.predictions, files.against)]
    while len(parts[0]) > 1 and len(parts[1]) > 1 and parts[0][-1] == parts[1][-1]:
        parts = [each[:-1] for each in parts]
    return parts[0][-1], parts[1][-1]


def _grounding(choice: _Choice, boxes: Tensor) -> Grounding:
    phrases = []
    for text, (start, end), row in zip(choice.texts(), choice.spans, choice.rows, strict=True):
        x0, y0, x1, y1 = boxes[row].tolist()
        phrases.append(GroundedPhrase(text, start, end, "", (x0, y0, x1, y1), 0.0))
    example = choice.example
    return Grounding(str(example.path), example.width, example.height, choice.caption.text, "", "", tuple(phrases))


def _jpeg(picture: Image.Image, widest: int) -> bytes:
    if picture.width > widest:
        picture = picture.resize((widest, round(picture.height * widest / picture.width)), Image.Resampling.LANCZOS)
    file = BytesIO()
    picture.save(file, "JPEG", quality=85)
    return file.getvalue()
