"""Untrusted JSON and JSON lines: bounded reads, and errors that say what to fix."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError, located
from phrasechain.core.files import decode_utf8, read_bounded, reason
from phrasechain.core.schema import COORDINATE_LIMIT, NAME_LIMIT

LINE_LIMIT = 16 << 20  # bytes
_MOST_DIGITS = 18  # of a whole number of 64 bits
_MOST_BRACKETS = 2_000_000  # an empty list takes thirty times its two bytes


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines with their numbers from 1."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_LIMIT + 1):
                number += 1
                if len(line) > LINE_LIMIT:
                    raise DataError(f"{path}:{number}: the line is longer than {LINE_LIMIT:,} bytes; split it")
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line and not line.isspace():
                    yield number, line
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None


def parse_json(text: bytes, unique_keys: bool = False) -> Any:
    """Parse a line or a file of JSON; NaN and Infinity are refused, and with ``unique_keys`` duplicate keys."""
    return _parsed(text, object_pairs_hook=_refuse_second_key if unique_keys else None)


def _parsed(text: bytes, **hooks: Any) -> Any:
    try:
        return json.loads(decode_utf8(text).rstrip(), parse_constant=_refuse_constant, **hooks)
    except DataError:
        raise
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise DataError(f"broken JSON: {error.msg} at {line}column {error.colno}") from None
    except (ValueError, RecursionError):
        raise DataError("broken JSON: a number has too many digits, or brackets are nested too deeply") from None


def read_json(path: Path, limit: int) -> dict[str, Any]:
    """The object in a small JSON file, such as a model's settings: numbers are finite and whole ones fit 64 bits."""
    with located(path):
        return parse_settings(read_bounded(path, limit, named=False))


def parse_settings(text: bytes) -> dict[str, Any]:
    """:func:`read_json` of bytes that come from elsewhere, such as the header of a weights file."""
    if text.count(b"[") + text.count(b"{") > _MOST_BRACKETS:
        raise DataError(f"broken JSON: more than {_MOST_BRACKETS:,} brackets")
    record = _parsed(text, parse_int=_whole, parse_float=_finite)
    if not isinstance(record, dict):
        raise DataError("broken: not a JSON object")
    return record


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise DataError(f"a number of more than {_MOST_DIGITS} digits")
    return int(digits)


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise DataError(f"{text[:40]} is too large for a number")
    return value


def parse_json_at(where: str, text: bytes, unique_keys: bool = False) -> Any:
    """:func:`parse_json`, with ``where`` (a file, or a file and line) at the start of the error."""
    with located(where):
        return parse_json(text, unique_keys)


def parse_boxes(values: list[Any]) -> NDArray[np.float64]:
    """Validate N boxes [x0, y0, x1, y1] of parsed JSON: (N, 4)."""
    if not all(isinstance(value, list) and len(value) == 4 for value in values) or not are_numbers(
        chain.from_iterable(values)
    ):
        raise DataError('a "box" is not [x0, y0, x1, y1], four numbers')
    boxes = number_array(values).reshape(-1, 4)
    if not (np.abs(boxes) <= COORDINATE_LIMIT).all():
        raise DataError(f"a box is not within ±{COORDINATE_LIMIT:,} pixels")
    ordered = (boxes[:, :2] <= boxes[:, 2:]).all(1)
    if not ordered.all():
        wrong = values[int(ordered.argmin())]
        raise DataError(f"the box {wrong} ends before it starts: x0 ≤ x1 and y0 ≤ y1 in [x0, y0, x1, y1]")
    return boxes


def whole_number(record: Mapping[str, Any], key: str, low: int = 0) -> int:
    """The value of a key, a whole number from ``low`` to ``COORDINATE_LIMIT``; true and false are none."""
    value = record.get(key)
    if type(value) is not int or not low <= value <= COORDINATE_LIMIT:
        raise DataError(f'"{key}" is not a whole number of {low} or more')
    return value


def are_numbers(values: Iterable[Any]) -> bool:
    """Whether all values are JSON numbers, which true and false are not."""
    return set(map(type, values)) <= {int, float}


def number_array(values: list[Any]) -> NDArray[np.float64]:
    """JSON numbers, or lists of them of equal length, as an array."""
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise DataError("a number has too many digits") from None


def _refuse_constant(name: str) -> NoReturn:
    raise DataError(f"{name} is not a number in JSON")


def _refuse_second_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise DataError(f"the key {key[:NAME_LIMIT]!r} appears twice")
    return record
