"""The benchmark of grounding: its figures, as a table against the goals."""

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from phrasechain.bench import ground as bench_ground
from phrasechain.core.errors import DataError
from tiny_grounder import write_grounder

NAMES = {
    "start to first answer, s",
    "peak memory, MB",
    "floor: the trunk alone, ms",
    "a new photo, ms",
    "a second caption, ms",
    "ground_many, photos a second",
}


def test_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos are new to the grounder each time, and the second caption's is not."""
    monkeypatch.setattr(bench_ground, "_STARTS", 1)
    threads = torch.get_num_threads()
    found = bench_ground.bench_ground(str(write_grounder(tmp_path / "model")), threads=1, seconds=0.0)
    assert torch.get_num_threads() == threads
    figures = found["figures"]
    assert set(figures) == NAMES
    assert all(value > 0 for value in figures.values())
    assert figures["a second caption, ms"] < figures["a new photo, ms"]
    assert json.loads(json.dumps(found)) == found
    printed = io.StringIO()
    bench_ground.print_ground(found, Console(file=printed, width=120))
    assert "a second caption, ms" in printed.getvalue()
    assert "goal, at most" in printed.getvalue()


def test_photos_differ(tmp_path: Path) -> None:
    paths = bench_ground.write_photos(tmp_path, 3)
    assert len({path.read_bytes() for path in paths}) == 3


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        bench_ground.bench_ground(str(tmp_path / "none"))
