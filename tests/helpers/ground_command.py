"""Running ``phrasechain ground``, and photos to run it on."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from phrasechain import cli

Run = Callable[..., tuple[int, str, str]]


def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> tuple[int, str, str]:
    """The status of the command, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["phrasechain", "ground", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    status = end.value.code or 0
    assert isinstance(status, int)
    return status, *capsys.readouterr()


def write_photo(path: Path, width: int = 300, height: int = 200) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(100, 156, (height, width, 3), np.uint8)).save(path)
