"""The exchange file of predictions, JSON lines, one phrase each; docs/evaluation.md describes the format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError, located
from phrasechain.core.files import write_output
from phrasechain.core.json_lines import are_numbers, number_array, parse_boxes, parse_json, read_lines, whole_number
from phrasechain.core.schema import NAME_LIMIT, Box

TOP_REGIONS = 10  # what R@1, R@5 and R@10 need

#: Image id, caption index, start and end of the phrase in the caption's characters.
PhraseKey = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The box predicted for one phrase, and the regions that were ranked for it, the most probable first."""

    image: str
    caption: int
    start: int  # [start, end) in code points of the caption's text
    end: int
    box: Box
    region_boxes: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 4)))  # (R, 4)
    probabilities: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # (R,)
    line: int = 0  # where it stands in its file; 0 if it comes from none

    @property
    def key(self) -> PhraseKey:
        return self.image, self.caption, self.start, self.end


def read_predictions(path: Path) -> Iterator[Prediction]:
    """The predictions of a file, one at a time; whatever is not as documented is an error with its line."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; give a predictions file (.jsonl)")
    for number, line in read_lines(path):
        with located(f"{path}:{number}"):
            prediction = _prediction(parse_json(line), number)
        yield prediction


def write_predictions(path: Path, predictions: Iterable[Prediction], top: int | None = TOP_REGIONS) -> None:
    """Write the file, all or nothing, with the first ``top`` regions of each phrase (``None``: all of them)."""
    lines = (json.dumps(_record(prediction, top)).encode() + b"\n" for prediction in predictions)
    write_output(path, b"".join(lines))


def _record(prediction: Prediction, top: int | None) -> dict[str, Any]:
    boxes, probabilities = prediction.region_boxes[:top].tolist(), prediction.probabilities[:top].tolist()
    return {
        "image": prediction.image,
        "caption": prediction.caption,
        "start": prediction.start,
        "end": prediction.end,
        "box": list(prediction.box),
        "regions": [{"box": box, "probability": p} for box, p in zip(boxes, probabilities, strict=True)],
    }


def _prediction(record: Any, line: int) -> Prediction:
    if not isinstance(record, dict):
        raise DataError("the line is not a JSON object with image, caption, start, end, box and regions")
    image = record.get("image")
    if not isinstance(image, str) or len(image) > NAME_LIMIT:
        raise DataError(f'"image" is not a text of at most {NAME_LIMIT} characters, the image id')
    caption, start, end = (whole_number(record, key) for key in ("caption", "start", "end"))
    regions = record.get("regions", [])
    if not isinstance(regions, list) or not all(isinstance(region, dict) for region in regions):
        raise DataError('"regions" is not a list of objects with "box" and "probability"')
    boxes = parse_boxes([record.get("box"), *(region.get("box") for region in regions)])  # (1 + R, 4)
    x0, y0, x1, y1 = boxes[0].tolist()
    probabilities = _probabilities([region.get("probability") for region in regions])
    return Prediction(image, caption, start, end, (x0, y0, x1, y1), boxes[1:], probabilities, line)


def _probabilities(values: list[Any]) -> NDArray[np.float64]:
    if not are_numbers(values):
        raise DataError('a "probability" is not a number')
    probabilities = number_array(values)
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise DataError('a "probability" is not between 0 and 1')
    if (probabilities[1:] > probabilities[:-1]).any():
        raise DataError('"regions" are not in the order of falling probability; sort them, the best first')
    return probabilities
