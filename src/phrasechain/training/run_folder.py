"""The folder of a training run: whose it is, that one process works in it, and what was noted step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from phrasechain.core.errors import DataError
from phrasechain.core.files import read_bounded, write_atomically

FORMAT_KEY = "format"  # the key of what kind of run it is, and of which version
_CONFIG_LIMIT = 1 << 20


@contextmanager
def claimed(folder: Path, config: dict[str, Any]) -> Iterator[None]:
    """Hold the run folder, new or this very run's, against other processes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock", timeout=0):
            _compare(folder / "config.json", config)
            yield
    except Timeout:
        raise DataError(f"{folder}: another process is training there; wait until it ends") from None


def _compare(path: Path, config: dict[str, Any]) -> None:
    if not path.exists():
        write_atomically(path, json.dumps(config, indent=1).encode() + b"\n")
        return
    try:
        found = dict(json.loads(read_bounded(path, _CONFIG_LIMIT)))
    except (ValueError, TypeError):
        raise DataError(f"{path}: not the configuration of a run; choose another folder") from None
    if found.get(FORMAT_KEY) != config.get(FORMAT_KEY):
        raise DataError(f"{path.parent}: made by another command or version of phrasechain; choose another folder")
    if other := list(_differences(found, config)):
        raise DataError(f"{path.parent}: a run with another {', '.join(other)}; choose another folder")


def _differences(found: Mapping[str, Any], config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted names of the values that are not as they are in ``config``."""
    for key, wanted in config.items():
        value = found.get(key)
        if isinstance(value, dict) and isinstance(wanted, dict):
            yield from _differences(value, wanted, f"{prefix}{key}.")
        elif value != wanted:
            yield f"{prefix}{key}"


def log(folder: Path, line: Mapping[str, float]) -> None:
    """Note one line of figures."""
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(dict(line)) + "\n")


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of ``metrics.jsonl``; one that a kill cut short is left out."""
    path = folder / "metrics.jsonl"
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def truncate_metrics(folder: Path, step: int) -> None:
    """Drop what was noted after the checkpoint that the run goes on from."""
    kept = [json.dumps(line) + "\n" for line in read_metrics(folder) if line["step"] <= step]
    write_atomically(folder / "metrics.jsonl", "".join(kept).encode())
