"""The TSV of bottom-up-attention: one image per line, boxes and features as base64-encoded float32."""

from __future__ import annotations

import binascii
import gzip
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions
from phrasechain.store.importers.entry import Entry, EntrySource, broken_entry

COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
MAX_LINE_BYTES = 1 << 24
MAX_GROWTH = 100  # times that a gzipped file may unpack to; base64 of features gives about 1.3
_GZIP_MAGIC = b"\x1f\x8b"


def open_tsv(files: Sequence[Path]) -> EntrySource:
    """The images of one or more TSV files, plain or gzipped; progress is in bytes on disk."""
    sizes = [file.stat().st_size for file in files]
    return EntrySource(_entries(files, sizes), sum(sizes))


def _entries(files: Sequence[Path], sizes: Sequence[int]) -> Iterator[Entry]:
    for number, file in enumerate(files):
        yield from _file_entries(file, sum(sizes[:number]))


def _file_entries(file: Path, before: int) -> Iterator[Entry]:
    with file.open("rb") as raw:
        is_gzip = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        stream: BinaryIO = gzip.GzipFile(fileobj=raw) if is_gzip else raw  # type: ignore[assignment]
        expanded, most = 0, MAX_GROWTH * file.stat().st_size + MAX_LINE_BYTES if is_gzip else None
        for number in count(1):
            where = f"{file}:{number}"
            try:
                line, is_too_long = _read_line(stream)
                expanded += len(line)
            except Exception as error:  # gzip and zlib raise several kinds
                yield broken_entry(where, f"the file is truncated or damaged here: {error}", before + raw.tell())
                return
            if most is not None and expanded > most:
                reason = f"unpacks to more than {MAX_GROWTH} times its size: no file of features does"
                yield broken_entry(where, reason, before + raw.tell())
                return
            if is_too_long:
                yield broken_entry(where, f"a line of more than {MAX_LINE_BYTES} bytes", before + raw.tell())
            elif not line:
                return
            elif not line.isspace():
                yield _line_entry(line, where, before + raw.tell())


def _read_line(stream: BinaryIO) -> tuple[bytes, bool]:
    """The next line, and whether it was too long (then its rest is skipped)."""
    line = stream.readline(MAX_LINE_BYTES + 1)
    if len(line) <= MAX_LINE_BYTES:
        return line, False
    while line and not line.endswith(b"\n"):
        line = stream.readline(MAX_LINE_BYTES)
    return b"", True


def _line_entry(line: bytes, where: str, position: int) -> Entry:
    columns = line.rstrip(b"\r\n").split(b"\t")
    if len(columns) != len(COLUMNS):
        reason = f"{len(columns)} columns, not {len(COLUMNS)} ({', '.join(COLUMNS)})"
        return broken_entry(where, reason, position)
    try:
        image = columns[0].decode("utf-8").strip()
    except UnicodeDecodeError:
        return broken_entry(where, "image_id is not UTF-8", position)
    return Entry(where, image, partial(_decode, image, columns), position)


def _decode(image: str, columns: Sequence[bytes]) -> Regions:
    width, height, regions = (_number(columns[i], COLUMNS[i]) for i in (1, 2, 3))
    boxes = _floats(columns[4], "boxes")
    features = _floats(columns[5], "features")
    if regions < 1:
        raise DataError(f"num_boxes is {regions}: the image has no regions")
    if len(boxes) != 4 * regions:
        raise DataError(f"boxes hold {len(boxes)} numbers, not num_boxes × 4 = {4 * regions}")
    if len(features) == 0 or len(features) % regions:
        raise DataError(f"features hold {len(features)} numbers, which num_boxes = {regions} does not divide")
    return Regions(image, width, height, boxes.reshape(regions, 4), features.reshape(regions, -1))


def _number(text: bytes, column: str) -> int:
    if not text.strip().isdigit() or len(text) > 20:
        raise DataError(f"{column} is not a whole number: {text[:40]!r}")
    return int(text)


def _floats(text: bytes, column: str) -> NDArray[np.float32]:
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise DataError(f"{column} is not base64: {error}") from error
    if len(data) % 4:
        raise DataError(f"{column} holds {len(data)} bytes, not a multiple of 4 (float32)")
    return np.frombuffer(data, "<f4")
