"""Custom datasets as JSON lines, one image per line; docs/data.md specifies the format.

The text of a caption is kept as given. Its tokens are words (letters, digits and underscores, joined by apostrophes and
hyphens) and single punctuation characters, separated by white space. A phrase's tokens are those that it overlaps.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phrasechain.core.errors import DataError, located, unknown_name
from phrasechain.core.images import image_size, without_warnings
from phrasechain.core.json_lines import are_numbers, parse_json, read_lines, whole_number
from phrasechain.core.schema import (
    ALL,
    COORDINATE_LIMIT,
    NAME_LIMIT,
    PHRASE_LIMIT,
    Box,
    Caption,
    Example,
    Phrase,
    is_name,
)
from phrasechain.data.flickr30k import Problem

DEFAULT_SPLIT = "train"
IMAGE_KEYS = ("image", "id", "width", "height", "split", "captions")
CAPTION_KEYS = ("text", "phrases")
PHRASE_KEYS = ("start", "end", "boxes", "categories", "entity")
_TOKEN = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def token_spans(text: str) -> list[tuple[int, int]]:
    """The tokens of a caption as character spans.

    >>> [text[i:j] for text in ["The boy's well-worn hat."] for i, j in token_spans(text)]
    ['The', "boy's", 'well-worn', 'hat', '.']
    """
    return [match.span() for match in _TOKEN.finditer(text)]


def read_jsonl(path: Path) -> tuple[list[Example], dict[str, tuple[str, ...]], list[Problem]]:
    """The images of the valid lines, the ids of each split, and the problems of the other lines."""
    examples: dict[str, Example] = {}
    splits: dict[str, list[str]] = {}
    problems: list[Problem] = []
    for number, line in read_lines(path):
        try:
            record = _object(parse_json(line), IMAGE_KEYS, "the line")
            image = _image_id(record)
            if image in examples:
                raise DataError(f'a second image with the id {image!r}; set another "id"')
            example = _example(record, image, path.parent)
            split = _name(record.get("split", DEFAULT_SPLIT), '"split"')
            if split == ALL:
                raise DataError(f'"split" is {ALL!r}, a reserved name; choose another')
        except DataError as error:
            problems.append(Problem(None, f"{path}:{number}: {error}"))
            continue
        examples[image] = example
        splits.setdefault(split, []).append(image)
    return list(examples.values()), {name: tuple(images) for name, images in splits.items()}, problems


def _image_id(record: Mapping[str, Any]) -> str:
    """The given "id", or the name of the image file without its folder and suffix."""
    if "id" in record:
        return _name(record["id"], '"id"')
    path = _text(record, "image")
    image = Path(path).stem
    if not image:
        raise DataError(f'"image" is {path[:NAME_LIMIT]!r}, which names no file')
    return _name(image, '"id", by default the image\'s name without suffix,')


def _example(record: Mapping[str, Any], image: str, folder: Path) -> Example:
    path = folder / _text(record, "image")
    exists = _is_file(path)
    if "width" in record or "height" in record:
        width, height = whole_number(record, "width", low=1), whole_number(record, "height", low=1)
    elif exists:
        with without_warnings():
            width, height = image_size(path)
    else:
        raise DataError(
            f'the image {path} is missing; fix "image" (relative to this file) or give "width" and "height"'
        )
    captions = [_caption(value, index) for index, value in enumerate(_list(record, "captions"))]
    return Example(image, path if exists else None, width, height, tuple(captions))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # the name is too long, or contains a NUL
        return False


def _caption(value: Any, index: int) -> Caption:
    record = _object(value, CAPTION_KEYS, f"caption {index}")
    text = _text(record, "text")
    tokens = token_spans(text)
    phrases: dict[tuple[int, int], Phrase] = {}
    items = _list(record, "phrases")
    if len(items) > PHRASE_LIMIT:
        raise DataError(f"caption {index} has {len(items):,} phrases, more than {PHRASE_LIMIT:,}; split it")
    for number, item in enumerate(items):
        where = f"caption {index}, phrase {number}"
        with located(where):
            phrase = _phrase(_object(item, PHRASE_KEYS, "it"), text, tokens)
        if phrases.setdefault((phrase.start, phrase.end), phrase) is not phrase:
            raise DataError(f"{where}: characters {phrase.start} to {phrase.end} are a phrase already")
    ordered = [phrases[span] for span in sorted(phrases)]
    return Caption(index, text, tuple(text[start:end] for start, end in tokens), tuple(ordered))


def _phrase(record: Mapping[str, Any], text: str, tokens: list[tuple[int, int]]) -> Phrase:
    start, end = whole_number(record, "start"), whole_number(record, "end")
    if not start < end <= len(text):
        raise DataError(f"characters {start} to {end} are not within a caption of {len(text)} characters")
    first_token = bisect_right(tokens, start, key=lambda span: span[1])
    end_token = bisect_left(tokens, end, key=lambda span: span[0])
    if first_token >= end_token:
        raise DataError(f"characters {start} to {end} contain no word")
    boxes = None if record.get("boxes") is None else tuple(_box(value) for value in _list(record, "boxes"))
    categories = [_name(name, "a category") for name in _list(record, "categories", optional=True)]
    return Phrase(
        text=text[start:end],
        start=start,
        end=end,
        first_token=first_token,
        end_token=end_token,
        entity=_entity(record.get("entity")),
        categories=tuple(dict.fromkeys(categories)),
        boxes=boxes,
        is_boxless=boxes == (),
    )


def _box(value: Any) -> Box:
    if not (isinstance(value, list) and len(value) == 4 and are_numbers(value)):
        raise DataError("a box is [x0, y0, x1, y1], four numbers")
    if max(map(abs, value)) > COORDINATE_LIMIT:
        raise DataError(f"a box is not within ±{COORDINATE_LIMIT:,} pixels")
    x0, y0, x1, y1 = map(float, value)
    if not (x0 < x1 and y0 < y1):
        raise DataError(f"the box {value} is empty: x0 < x1 and y0 < y1 in [x0, y0, x1, y1]")
    return x0, y0, x1, y1


def _entity(value: Any) -> str | None:
    if value is None:
        return None
    return _name(str(value) if isinstance(value, int) and not isinstance(value, bool) else value, '"entity"')


def _object(value: Any, keys: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{what} is not a JSON object with {', '.join(keys)}")
    for key in value:
        if key not in keys:
            raise DataError(f"{what}: {unknown_name('key', key[:40], keys)}")
    return value


def _list(record: Mapping[str, Any], key: str, optional: bool = False) -> list[Any]:
    value = record.get(key, [] if optional else None)
    if not isinstance(value, list):
        raise DataError(f'"{key}" is not a list')
    return value


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value or _SURROGATE.search(value):
        raise DataError(f'"{key}" is not a text')
    return value


def _name(value: Any, what: str) -> str:
    if not is_name(value):
        raise DataError(f"{what} is not a printable text of 1 to {NAME_LIMIT} characters")
    return str(value)
