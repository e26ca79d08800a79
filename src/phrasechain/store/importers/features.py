"""Import region features of other tools: bottom-up-attention TSV, BAN HDF5, DDPN npz. See docs/features.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeVar

from phrasechain.core.errors import DataError, require_name
from phrasechain.core.files import reason
from phrasechain.core.progress import progress_bar
from phrasechain.core.schema import Regions
from phrasechain.store.importers.ban import open_ban
from phrasechain.store.importers.ddpn import open_ddpn
from phrasechain.store.importers.entry import Entry, EntrySource
from phrasechain.store.importers.tsv import open_tsv
from phrasechain.store.reader import HEADER_NAME, read_header
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter

FEATURE_FORMATS = ("auto", "tsv", "ban", "ddpn")
ON_ERROR = ("stop", "skip")
MAX_PROBLEMS = 20  # listed in the report; the rest are only counted
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_ZIP_MAGIC = b"PK\x03\x04"
T = TypeVar("T")


@dataclass(slots=True)
class ImportReport:
    """The result of an import."""

    written: int = 0
    already_there: int = 0
    duplicates: int = 0  # repeated ids; the first one is kept
    skipped: int = 0
    problems: list[str] = field(default_factory=list)  # the first MAX_PROBLEMS of what was skipped

    def skip(self, problem: str) -> None:
        self.skipped += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


def import_features(
    files: Sequence[Path],
    out: Path,
    *,
    format: str = "auto",
    dtype: str = "float16",
    ids: Sequence[Path] = (),
    on_error: str = "stop",
    limit: int | None = None,
    extractor: str = "bottom-up-attention",
) -> ImportReport:
    """Convert feature files to the store ``out``; images that it already has are skipped.

    The files are streamed: memory holds one image and one shard. A broken image stops the import with its file and
    line (the images before it are kept, and running again resumes there), or is skipped and reported. ``limit`` imports
    the first images only.
    """
    require_name("on_error choice", on_error, ON_ERROR)
    source = open_features(files, format, ids)
    attempt = _Attempt(on_error)
    if (out / HEADER_NAME).exists():
        dimension, entries = read_header(out)[0].dimension, source.entries
    else:
        dimension, entries = _first_dimension(source.entries, attempt)
    with StoreWriter(out, StoreInfo(dimension, dtype, extractor)) as writer, progress_bar() as bar:
        task = bar.add_task("images", total=None)
        for entry in _take(entries, writer, limit, attempt):
            done = attempt.report.written + attempt.report.already_there
            bar.update(task, completed=done, total=max(done, round(done * source.total / max(entry.position, 1))))
        if not len(writer):
            raise _nothing_to_import(attempt.report)
        writer.finish()
    return attempt.report


def open_features(files: Sequence[Path], format: str = "auto", ids: Sequence[Path] = ()) -> EntrySource:
    """The images of feature files; ``auto`` detects the format by magic bytes."""
    require_name("format", format, FEATURE_FORMATS)
    for file in files:
        if not file.exists():
            raise DataError(f"{file}: no such file")
    formats = sorted({detect_format(file) if format == "auto" else format for file in files})
    if len(formats) != 1:
        raise DataError(
            f"the files must have one format, not {' and '.join(formats) or 'none'}; import them one by one"
        )
    if ids and formats != ["ban"]:
        raise DataError(f"--ids belongs to BAN files, and these are {formats[0]}")
    if formats != ["ddpn"] and any(file.is_dir() for file in files):
        raise DataError(f"a folder is only supported for DDPN npz files; give the {formats[0]} files themselves")
    if formats == ["ban"]:
        return open_ban(files, ids)
    return open_tsv(files) if formats == ["tsv"] else open_ddpn(files)


def detect_format(file: Path) -> str:
    """``ddpn`` for a folder or a zip file, ``ban`` for HDF5, else ``tsv``."""
    if file.is_dir():
        return "ddpn"
    try:
        with file.open("rb") as stream:
            start = stream.read(8)
    except OSError as error:
        raise DataError(f"{file}: cannot read: {reason(error)}") from error
    if start == _HDF5_MAGIC:
        return "ban"
    return "ddpn" if start.startswith(_ZIP_MAGIC) else "tsv"


class _Attempt:
    """Applies a function to a decoded entry; a broken one raises, or is recorded in the report and gives ``None``."""

    def __init__(self, on_error: str) -> None:
        self._stops = on_error == "stop"
        self.report = ImportReport()

    def __call__(self, entry: Entry, use: Callable[[Regions], T]) -> T | None:
        try:
            return use(entry.load())
        except DataError as error:
            problem = f"{entry.where}: {error}"
            if self._stops:
                raise DataError(problem) from error
            self.report.skip(problem)
            return None


def _first_dimension(entries: Iterator[Entry], attempt: _Attempt) -> tuple[int, Iterator[Entry]]:
    """The feature dimension of the first readable image, and the entries from there on."""
    for entry in entries:
        dimension = attempt(entry, lambda regions: int(regions.features.shape[1]))
        if dimension is not None:
            return dimension, chain([entry], entries)
    raise _nothing_to_import(attempt.report)


def _nothing_to_import(report: ImportReport) -> DataError:
    hint = f"; the first problem: {report.problems[0]}" if report.problems else ""
    return DataError(f"there is no image to import{hint}")


def _take(entries: Iterator[Entry], writer: StoreWriter, limit: int | None, attempt: _Attempt) -> Iterator[Entry]:
    """Add the entries to the store, and yield each one that is processed."""
    seen: set[str] = set()
    for entry in entries:
        if limit is not None and len(seen) >= limit:
            return
        if entry.image in seen:
            attempt.report.duplicates += 1
        elif entry.image is not None and entry.image in writer:
            attempt.report.already_there += 1
            seen.add(entry.image)
        elif attempt(entry, writer.add) and entry.image is not None:
            attempt.report.written += 1
            seen.add(entry.image)
        yield entry
