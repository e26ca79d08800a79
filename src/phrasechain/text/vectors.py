"""Word vectors in the text format of GloVe, word2vec and fastText, plain or gzipped.

Each line is a word and D numbers, separated by spaces; the first line may be ``count dimension``. A word may hold
spaces: the last D fields are the numbers.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError
from phrasechain.core.files import open_unzipped

MAX_DIMENSION = 16_384
MAX_VALUES = 1 << 30  # numbers kept in memory: 4 GB
_LINE_LIMIT = 1 << 20  # bytes
_ZIP = b"PK\x03\x04"
_GROWTH = 100  # the most that a gzipped file may expand; numbers as text give about 3


@dataclass(frozen=True, slots=True, eq=False)
class WordVectors:
    """W words, each once, and their vectors."""

    words: tuple[str, ...]
    vectors: NDArray[np.float32]  # (W, D)

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])


def read_vectors(path: Path | str, wanted: Collection[str] | None = None) -> WordVectors:
    """The vectors of the ``wanted`` words, or of all, in the file's order; of equal words the first."""
    path = Path(path)
    keys = None if wanted is None else {word.encode("utf-8", "replace") for word in wanted}
    heads = None if keys is None else {key.partition(b" ")[0] for key in keys}
    dimension, announced = 0, None
    places: dict[bytes, int] = {}  # word → its line
    values = array("f")
    count = 0
    for number, line in _lines(path):
        if number == 1 and (announced := _header(line)):
            continue
        count += 1
        dimension = dimension or (announced[1] if announced else _first_dimension(path, number, line))
        if heads is not None and line.partition(b" ")[0] not in heads and line.count(b" ") >= dimension:
            continue
        word, numbers = _split(path, number, line, dimension)
        if word in places or (keys is not None and word not in keys):
            continue
        places[word] = number
        values.extend(numbers)
        if len(values) > MAX_VALUES:
            raise DataError(f"{path}:{number}: more than {MAX_VALUES:,} numbers so far; name the words that you need")
    if announced and count != announced[0]:
        raise DataError(f"{path}: its first line says {announced[0]:,} words, there are {count:,}; get it again")
    if not dimension:
        raise DataError(f"{path}: no word vectors in it")
    vectors = np.array(values, np.float32).reshape(-1, dimension)
    _require_finite(path, vectors, list(places.values()))
    return WordVectors(tuple(word.decode("utf-8", "replace") for word in places), vectors)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty with their numbers, without the spaces and newlines at their ends."""
    with open_unzipped(path) as (file, is_gzipped):
        limit = _GROWTH * path.stat().st_size + _LINE_LIMIT if is_gzipped else math.inf
        number = total = 0
        while line := file.readline(_LINE_LIMIT):
            number, total = number + 1, total + len(line)
            if number == 1 and line.startswith(_ZIP):
                raise DataError(f"{path}: a zip archive; unpack it and name the text file in it")
            if len(line) == _LINE_LIMIT:
                raise DataError(f"{path}:{number}: longer than {_LINE_LIMIT:,} bytes: no word with its vector is")
            if total > limit:
                raise DataError(
                    f"{path}:{number}: unpacks to more than {_GROWTH} times its size: no file of vectors does"
                )
            if line := line.rstrip(b" \r\n"):
                yield number, line


def _header(line: bytes) -> tuple[int, int] | None:
    """Count and dimension, where the line says only that."""
    fields = line.split(b" ")
    if len(fields) == 2 and all(field.isdigit() and len(field) < 12 for field in fields):
        return int(fields[0]), int(fields[1])
    return None


def _first_dimension(path: Path, number: int, line: bytes) -> int:
    """How many numbers the first line ends with; its first field is a word, whatever it looks like."""
    fields = line.split(b" ")[1:]
    words = [place for place, field in enumerate(fields, 1) if not _is_number(field)]
    dimension = len(fields) - (words[-1] if words else 0)
    if not 1 <= dimension <= MAX_DIMENSION:
        raise DataError(f"{path}:{number}: not a word and then 1 to {MAX_DIMENSION:,} numbers, separated by spaces")
    return dimension


def _split(path: Path, number: int, line: bytes, dimension: int) -> tuple[bytes, list[float]]:
    word, *fields = line.rsplit(b" ", dimension)
    try:
        numbers = [float(field) for field in fields]
    except ValueError:
        wrong = next(field for field in fields if not _is_number(field)).decode("utf-8", "replace")
        raise DataError(f"{path}:{number}: {wrong[:40]!r} is not a number, or there are not {dimension}") from None
    if len(fields) < dimension or not word:
        raise DataError(f"{path}:{number}: not a word and then {dimension} numbers, as before")
    _, space, last = word.rpartition(b" ")
    if space and _is_number(last):
        raise DataError(f"{path}:{number}: more than {dimension} numbers, other than before")
    return word, numbers


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _require_finite(path: Path, vectors: NDArray[np.float32], lines: list[int]) -> None:
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        line = lines[int(finite.argmin())]
        raise DataError(f"{path}:{line}: a number that is not finite, or too large; fix the line or remove it")
