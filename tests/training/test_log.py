import json
from pathlib import Path

import pytest

from phrasechain.core.distributed import start_processes
from phrasechain.training.log import draw_curves, open_log, read_metrics


def test_lines_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    alone = start_processes("cpu")
    with open_log(tmp_path, 0, alone) as log:
        for step in range(1, 6):
            log({"step": step, "loss": step / 2})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')  # cut short by a kill
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]
    with open_log(tmp_path, 3, alone) as log:
        log({"step": 4, "loss": 9.0})
    assert [line["loss"] for line in read_metrics(tmp_path)] == [0.5, 1.0, 1.5, 9.0]
    starts = [json.loads(line) for line in (tmp_path / "environment.jsonl").read_text().splitlines()]
    assert [(start["step"], start["processes"]) for start in starts] == [(0, 1), (3, 1)]
    assert read_metrics(tmp_path / "none") == []


@pytest.mark.parametrize("loss", [0.0, 1.5])
def test_a_loss_of_nought_is_drawn_without_a_warning(loss: float, tmp_path: Path) -> None:
    lines = [{"step": step, "loss": loss, "boxes": 0.0} for step in range(1, 4)] + [{"step": 3, "dev": 0.5}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    draw_curves(tmp_path, ("loss", "boxes"), {"dev": 100.0})
    assert (tmp_path / "curves.png").stat().st_size > 1000
