"""Marked-up captions of many images in one file, to train the phrase finder.

A line is ``IMAGE<TAB>CAPTION INDEX<TAB>[/EN#1/people A man] sits .``, plain or gzipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from phrasechain.core.errors import DataError, located
from phrasechain.core.files import decode_utf8, open_unzipped
from phrasechain.core.schema import CATEGORIES, NOT_VISUAL, Caption, is_name
from phrasechain.data.markup import parse_caption

LINE_LIMIT = 1 << 16  # bytes
SIZE_LIMIT = 1 << 30  # bytes, uncompressed


class Sentence(NamedTuple):
    """A caption and its image id."""

    image: str
    caption: Caption


def read_sentences(path: Path | str, limit: int | None = None) -> list[Sentence]:
    """The captions of a file in order, all or the first ``limit``."""
    path = Path(path)
    sentences: list[Sentence] = []
    with open_unzipped(path) as (file, _):
        for number, line in islice(_lines(path, file), limit):
            with located(f"{path}:{number}"):
                sentences.append(_parse(line))
    if not sentences:
        raise DataError(f"{path}: contains no captions")
    return sentences


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines with their numbers from 1."""
    number = total = 0
    while line := file.readline(LINE_LIMIT + 1):
        number, total = number + 1, total + len(line)
        if len(line) > LINE_LIMIT:
            raise DataError(f"{path}:{number}: longer than {LINE_LIMIT:,} bytes, so it is not a caption")
        if total > SIZE_LIMIT:
            raise DataError(f"{path}:{number}: more than {SIZE_LIMIT:,} bytes so far; split the file")
        if not line.isspace():
            yield number, line


def _parse(line: bytes) -> Sentence:
    fields = decode_utf8(line).rstrip("\r\n").split("\t")
    if len(fields) != 3 or not is_name(fields[0]) or not (fields[1].isdecimal() and len(fields[1]) < 10):
        raise DataError("not image id, caption index and caption, separated by tabs")
    caption = parse_caption(fields[2], int(fields[1]))
    if not caption.tokens:
        raise DataError("the caption is empty; remove the line")
    for phrase in caption.phrases:
        if unknown := set(phrase.categories) - {*CATEGORIES, NOT_VISUAL}:
            raise DataError(f"{min(unknown)!r} is not a category; there are: {', '.join((*CATEGORIES, NOT_VISUAL))}")
    return Sentence(fields[0], caption)
