"""A folder of groundings: a picture for each, and ``groundings.jsonl`` with one line for each.

A picture is written before its line, each of them whole. Half a line that a kill left is cut off by the next run, once
all lines before it are known to be groundings. Symbolic links are not followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from phrasechain.core.errors import DataError, PhrasechainError
from phrasechain.core.files import disk_errors, lock_folder, reason, write_atomically
from phrasechain.core.json_lines import parse_json, read_lines
from phrasechain.grounding.captions import LINES, CaptionedPhoto

_OPENING = b'{"image": {"path": '  # how each line begins


class GroundingFolder:
    """Makes the folder at ``path``, or resumes it. One process at a time, as a ``with`` block.

    All groundings of a folder are of one model and one decoder, and all or none are compared.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        busy = "another process is writing there; give each shard a folder of its own"
        self._lock = lock_folder(path, busy, "cannot be written")
        try:
            self._made_by: str | None = None
            self._done = {_key_of(record) for record in self._records()}
            self._file = _open_to_append(path / LINES)
        except OSError as error:
            self._lock.release()
            raise DataError(f"{path}: cannot be written: {reason(error)}") from None
        except BaseException:
            self._lock.release()
            raise

    def __contains__(self, pair: CaptionedPhoto) -> bool:
        return _key(pair) in self._done

    def add(self, pair: CaptionedPhoto, record: dict[str, Any], png: bytes | None) -> dict[str, Any]:
        """Write the grounding of a pair, as JSON has it, and its picture if there is one; return its line."""
        self.require_origin(_origin_of(record))
        if pair.phrases is not None:
            record = record | {"given": pair.phrases}
        with disk_errors(self.path):
            if png is not None:
                write_atomically(self.path / pair.picture, png)
                record = record | {"picture": pair.picture}
            self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._done.add(_key(pair))
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with disk_errors(self.path):
            os.fsync(self._file.fileno())
            self._file.close()
        self._lock.release()

    def _records(self) -> Iterator[dict[str, Any]]:
        lines = self.path / LINES
        if lines.is_symlink() or (lines.exists() and not lines.is_file()):
            raise DataError(f"{lines}: not a plain file; choose another folder")
        if not lines.exists():
            return
        for number, line in read_lines(lines):
            try:
                if not line.endswith(b"\n") and (number > 1 or _may_be_cut(line)):
                    _cut_half_line(lines)
                    return
                record = parse_json(line)
                _key_of(record)
                self.require_origin(_origin_of(record))
            except (KeyError, TypeError, DataError) as error:
                why = error if isinstance(error, DataError) else "no grounding"
                raise DataError(f"{lines}:{number}: {why}; choose another folder") from None
            yield record

    def require_origin(self, made_by: str) -> None:
        """Refuse groundings of another model or decoder than those that are there."""
        if self._made_by not in (None, made_by):
            raise PhrasechainError(
                f"{self.path} holds groundings of {self._made_by}, not of {made_by}; choose another folder"
            )
        self._made_by = made_by


def origin(model: object, decode: object, is_compared: bool = False) -> str:
    """
    >>> origin("phrasechain 0.1.0", "consensus", is_compared=True)
    'phrasechain 0.1.0 by consensus beside independent'
    """
    return f"{model} by {decode}" + " beside independent" * is_compared


def _origin_of(record: dict[str, Any]) -> str:
    return origin(record["model"], record["decode"], "independent" in record)


def _key(pair: CaptionedPhoto) -> str:
    return json.dumps([pair.image, pair.caption, pair.phrases])


def _key_of(record: dict[str, Any]) -> str:
    return json.dumps([record["image"]["path"], record["caption"], record.get("given")])


def _open_to_append(path: Path) -> FileIO:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return FileIO(os.open(path, flags, 0o666), "ab")


def _may_be_cut(line: bytes) -> bool:
    """Whether the only line of a file, which has no end, may be one that the writing of was interrupted."""
    return line.startswith(_OPENING) or _OPENING.startswith(line)


def _cut_half_line(path: Path) -> None:
    """Cut off what follows the last line break: the writing of it was interrupted."""
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - (1 << 16))
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            end = start
        file.truncate(0)
