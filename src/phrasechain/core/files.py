"""Files: reading what strangers wrote within bounds, writing all or nothing, locks, and the user's cache folder."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from phrasechain.core.errors import DataError, PhrasechainError

if TYPE_CHECKING:
    from filelock import FileLock

LOCK_NAME = ".lock"


def reason(error: OSError) -> str:
    """What the system says, without the path and the number: ``No such file or directory``."""
    return error.strerror or str(error)


def read_bounded(path: str | Path, limit: int) -> bytes:
    """The file's bytes; a file of more than ``limit`` bytes is refused before it fills the memory."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a third of the time of Path.open, and there are many files
            data = file.read(limit + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None
    if len(data) > limit:
        raise DataError(f"{path}: larger than {limit:,} bytes, so it is not what its name says; remove or replace it")
    return data


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to a temporary name in the same folder, force it to the disk and rename it to ``path``.

    Readers see the old file or the new one, whole; whoever is killed while writing leaves the old one in place.
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
    """Refuse files that cannot be made where the user asked for them: before the long work, not after it."""
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise DataError(f"{path}: cannot be written: there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise DataError(f"{path}: cannot be written: it is a folder")


def write_output(path: Path, data: bytes) -> None:
    """Write a file that the user asked for, all or nothing; where that cannot be, say why.

    What is no plain file (``/dev/stdout``, a pipe, a link) is written through, not replaced.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(data)
        else:
            write_atomically(path, data)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {reason(error)}") from None


def sync_folder(folder: Path) -> None:
    """Force the folder's list of names to the disk, where the system can (Windows cannot, and need not)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder() -> Path:
    """``$PHRASECHAIN_CACHE``, or ``phrasechain`` in the platform's folder for caches. It need not exist yet."""
    if chosen := os.environ.get("PHRASECHAIN_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = _home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or _home() / ".cache"
    return Path(base) / "phrasechain"


def _home() -> Path:
    """The user's home; for a user without one, as containers have, a place where nothing can be kept."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)


def lock_folder(path: Path, busy: str, refusal: str) -> FileLock:
    """Make the folder and hold its lock. The system lets go of it when its process ends, however it ends.

    ``busy`` is said where another process holds it, ``refusal`` where the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / LOCK_NAME)
        lock.acquire(timeout=0)
    except Timeout:
        raise DataError(f"{path}: {busy}") from None
    except FileExistsError:
        raise DataError(f"{path}: {refusal}: it is no folder") from None
    except OSError as error:
        raise DataError(f"{path}: {refusal}: {reason(error)}") from None
    return lock


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A full or broken disk in one line. It is no ``DataError``: the image at hand is not to blame."""
    try:
        yield
    except OSError as error:
        raise PhrasechainError(f"{path}: cannot write: {reason(error)}; mend it and run again") from None
