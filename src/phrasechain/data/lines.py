"""JSON lines that strangers wrote: read one at a time within bounds, with errors that say what to mend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from phrasechain.errors import DataError
from phrasechain.files import reason

LINE_LIMIT = 16 << 20  # bytes


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers from 1."""
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


def parse_json(line: bytes) -> Any:
    """The value of one line of JSON; NaN and Infinity are refused."""
    try:
        return json.loads(line.decode("utf-8").rstrip(), parse_constant=_refuse_constant)
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(f"broken JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError):
        raise DataError("broken JSON: a number of too many digits, or brackets nested too deeply") from None


def _refuse_constant(name: str) -> NoReturn:
    raise DataError(f"{name} is not a number that JSON knows")
