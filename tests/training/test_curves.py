"""Curves are drawn of any losses."""

import json
from pathlib import Path

import pytest

from phrasechain.training.log import draw_curves


@pytest.mark.parametrize("loss", [0.0, 1.5])
def test_a_loss_of_nought_is_drawn_without_a_warning(loss: float, tmp_path: Path) -> None:
    lines = [{"step": step, "loss": loss, "boxes": 0.0} for step in range(1, 4)] + [{"step": 3, "dev": 0.5}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    draw_curves(tmp_path, ("loss", "boxes"), {"dev": 100.0})
    assert (tmp_path / "curves.png").stat().st_size > 1000
