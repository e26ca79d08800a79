"""Two processes, really started by torchrun, end with the weights of one: for all kinds of batches."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from paths import HELPERS
from phrasechain.core.distributed import start_processes, sum_gradients
from phrasechain.core.errors import DataError
from phrasechain.evaluation.predict import InferenceOptions, predict_run, predictions_file
from phrasechain.training.grounder.task import train
from tiny_grounding import assert_close, last_weights, tiny_config, write_world

EXACT = ("model.dropout=0", "text.word_dropout=0", "train.epochs=2", "train.rate=3e-4")
CASES = {
    # 29 captions or so by fours: the last batch of a pass is uneven, sometimes a single caption for two processes
    "captions": ("train.by=caption", "train.window=1", "data.unboxed=0.5", "loss.unlabelled=marginalise"),
    # all captions of an image together, in two parts, with EMA weights
    "images": ("train.by=image", "train.accumulate=2", "train.ema=0.9"),
    # no chain has a link: the transitions' weights are not used at all
    "single": ("train.by=caption", "train.batch=3"),
}


@pytest.mark.slow
def test_two_processes_do_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    worlds = {single: write_world(tmp_path / f"single-{single}", images=13, single=single) for single in (False, True)}
    plan = []
    for name, settings in CASES.items():
        data, features = worlds[name == "single"]
        run = {"data": data, "features": features, "out": tmp_path / "two" / name, "settings": [*EXACT, *settings]}
        plan.append({key: value if key == "settings" else str(value) for key, value in run.items()})
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    launch(tmp_path / "plan.json")
    for name, settings in CASES.items():
        two, one = tmp_path / "two" / name, tmp_path / "one" / name
        data, features = worlds[name == "single"]
        train(data, features, one, tiny_config(*EXACT, *settings))
        assert_close(last_weights(two), last_weights(one))
        require_shared(two)
        predict_run(one, data, features, "train", regime="all")
        files = [predictions_file(run, "train", InferenceOptions("all")) for run in (one, two)]
        assert keys(files[0]) == keys(files[1])  # in the same order, each phrase once


def launch(plan: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = HELPERS / "two_processes.py"
    result = subprocess.run([*command, str(program), str(plan)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]


def require_shared(run: Path) -> None:
    """There were two processes, and no caption of a step was seen by both."""
    shares = [json.loads((run / f"seen-{rank}.json").read_text()) for rank in (0, 1)]
    assert [share["processes"] for share in shares] == [2, 2]
    assert len(shares[0]["steps"]) == len(shares[1]["steps"]) > 2
    for first, second in zip(shares[0]["steps"], shares[1]["steps"], strict=True):
        seen = Counter(map(tuple, first + second))
        assert set(seen.values()) == {1}
    assert all(any(share["steps"]) for share in shares)


def keys(file: Path) -> list[tuple[object, ...]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = [(line["image"], line["caption"], line["start"], line["end"]) for line in lines]
    assert len(set(found)) == len(found)
    return found


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DataError, match=r"--device cuda: torch finds no GPU here; .*--device cpu"):
        start_processes("cuda")
    with pytest.raises(DataError, match=r"no device named 'gpu'; there are: auto, cpu, cuda"):
        start_processes("gpu")
    assert start_processes("auto").device.type == "cpu"


def test_accelerate_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is needed by many processes, not by one."""
    monkeypatch.setitem(sys.modules, "accelerate", None)
    assert start_processes("cpu").num_processes == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DataError, match=r"pip install 'phrasechain\[train\]'"):
        start_processes("cpu")


def test_alone_nothing_is_added_up() -> None:
    used, unused = (torch.nn.Parameter(torch.ones(2, 3)) for _ in range(2))
    (used * 2).sum().backward()  # type: ignore[no-untyped-call]
    figures = sum_gradients([used, unused], torch.tensor([1.0, 2.0]), start_processes("cpu"))
    assert figures.tolist() == [1.0, 2.0]
    assert used.grad is not None
    assert used.grad.eq(2).all()
    assert unused.grad is not None
    assert unused.grad.eq(0).all()
    assert "RANK" not in os.environ
