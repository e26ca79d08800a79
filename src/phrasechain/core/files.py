"""Files: bounded reads of untrusted files, atomic writes, lock files, and the user's cache folder."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import secrets
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from phrasechain.core.errors import DataError, PhrasechainError, one_line

if TYPE_CHECKING:
    from filelock import FileLock

LOCK_NAME = ".lock"
_GZIP = b"\x1f\x8b"


def reason(error: OSError) -> str:
    """The system's message without path and errno: ``No such file or directory``."""
    return error.strerror or str(error)


def read_bounded(path: str | Path, limit: int, *, named: bool = True) -> bytes:
    """The file's bytes; a file of more than ``limit`` bytes is refused before it is read into memory.

    Errors begin with the path, unless not ``named``: the caller says it.
    """
    name = f"{path}: " if named else ""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a third of the time of Path.open, and there are many files
            data = file.read(limit + 1)
    except OSError as error:
        raise DataError(f"{name}cannot be read: {reason(error)}") from None
    if len(data) > limit:
        raise DataError(f"{name}larger than {limit:,} bytes, which is too large for such a file; remove or replace it")
    return data


def files_below(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The files with such suffixes in a folder, by name, then those in its subfolders; hidden ones are skipped."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be listed: {reason(error)}")

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(suffixes) and not name.startswith("."):  # macOS archives contain ._NAME files
                yield Path(parent, name)


def decode_utf8(line: bytes) -> str:
    """A line as text."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None


@contextmanager
def open_unzipped(path: Path) -> Iterator[tuple[BinaryIO, bool]]:
    """Open a file that may be gzipped: its plain content, and whether it is. A broken file is refused in one line."""
    try:
        with path.open("rb") as raw:
            is_gzipped = raw.read(2) == _GZIP
            raw.seek(0)
            yield gzip.GzipFile(fileobj=raw) if is_gzipped else raw, is_gzipped  # type: ignore[misc]
    except (zlib.error, EOFError) as error:
        raise DataError(f"{path}: broken gzip, download the file again: {one_line(error)}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to a temporary file in the same folder, fsync it and rename it to ``path``.

    Readers see the complete old or the complete new file; a process killed while writing leaves the old one in place.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def require_writable(*paths: Path | None) -> None:
    """Refuse output paths that cannot be written, before the long computation rather than after it."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            above = next((each for each in path.parents if each.exists()), None)
            why = f"there is no folder {path.parent}" if above is None or above.is_dir() else f"{above} is not a folder"
            raise DataError(f"{path}: cannot be written: {why}")
        if path is not None and path.is_dir():
            raise DataError(f"{path}: cannot be written: it is a folder")


def json_bytes(values: object) -> bytes:
    """Plain values as an indented JSON file."""
    return json.dumps(values, indent=1).encode() + b"\n"


def write_output(path: Path, data: bytes, *, follow: bool = True) -> None:
    """Write an output file atomically; a failure is a one-line ``DataError``.

    Anything but a regular file (``/dev/stdout``, a pipe, a symbolic link) is written to, not replaced. Where the user
    has not named the path it may be another's: without ``follow`` it is replaced.
    """
    try:
        if follow and (path.is_symlink() or (path.exists() and not path.is_file())):
            path.write_bytes(data)
        else:
            write_atomically(path, data)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {reason(error)}") from None


def sync_folder(folder: Path) -> None:
    """fsync the directory entry, where the system can (Windows cannot, and need not)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder() -> Path:
    """``$PHRASECHAIN_CACHE``, or ``phrasechain`` in the platform's cache folder. It need not exist yet."""
    if chosen := os.environ.get("PHRASECHAIN_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = _home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or _home() / ".cache"
    return Path(base) / "phrasechain"


def private_folder(path: Path) -> Path | None:
    """Make a folder of the cache that only the user may write to; ``None`` if others may, or if it cannot be made.

    What is loaded from a cache decides what is computed, so what others can put there is not loaded.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "nt":
            return path
        about = path.stat()
    except OSError:
        return None
    is_ours = about.st_uid == os.getuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return path if is_ours else None


def write_cached(path: Path, data: bytes) -> None:
    """Write a file of the cache with the hash of its content; one that cannot be written is made again next time."""
    with suppress(OSError):
        write_atomically(path, hashlib.sha256(data).digest() + data)


def read_cached(path: Path) -> bytes | None:
    """What :func:`write_cached` wrote, if it is there as it was written."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def _home() -> Path:
    """The user's home folder; for a user without one, as in some containers, a path that cannot be written to."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)


def lock_folder(path: Path, busy: str, refusal: str) -> FileLock:
    """Create the folder and acquire its lock file. The system releases the lock when the process ends, even if killed.

    ``busy`` is the message where another process holds the lock, ``refusal`` where the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK_NAME)
        lock.acquire(timeout=0)
    except Timeout:
        raise DataError(f"{path}: {busy}") from None
    except FileExistsError:
        raise DataError(f"{path}: {refusal}: it is not a folder") from None
    except OSError as error:
        raise DataError(f"{path}: {refusal}: {reason(error)}") from None
    return lock


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Report a full or failing disk in one line. Not a ``DataError``: the image being processed is not at fault."""
    try:
        yield
    except OSError as error:
        raise PhrasechainError(f"{path}: cannot write: {reason(error)}; fix that and run again") from None
