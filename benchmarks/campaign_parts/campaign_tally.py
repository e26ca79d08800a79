"""What becomes of the cases of a part of the campaign."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Tally:
    """What became of a part."""

    cases: int = 0
    failures: int = 0
    refused: int = 0  # with an error of one line
    worst_seconds: float = 0.0
    worst_bytes: int = 0
    note: str = ""


def keep_failure(folder: Path, name: str, number: int, data: bytes, problem: str) -> None:
    """Write a failed input and what it led to."""
    home = folder / "failures" / name.replace(" ", "-").replace(",", "")
    home.mkdir(parents=True, exist_ok=True)
    (home / f"{number}.bin").write_bytes(data)
    (home / f"{number}.txt").write_text(problem)
