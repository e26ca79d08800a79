"""The loop on a toy task, against the same steps written out by hand; killed and resumed it ends with the same bits."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from paths import importing
from phrasechain.core.distributed import start_processes
from phrasechain.core.errors import DataError
from phrasechain.model.checkpoint import RunState, read_run_state
from phrasechain.training import loop
from phrasechain.training.log import read_metrics
from phrasechain.training.loop import Trainer, clip_gradients, train
from phrasechain.training.run_folder import Checkpoints, claimed, is_finished
from phrasechain.training.task import ParameterGroup, Plan, Task, ema_decay, one_cycle

CPU = start_processes("cpu")
PLAN = Plan(steps=12, evaluate_every=4, save_every=3, clip=0.5, clip_by="l2", ema=ema_decay(0.9))


class Noise(Dataset[list[Tensor] | DataError]):
    """Two parts for every step, the same whenever they are asked for."""

    def __getitem__(self, step: int) -> list[Tensor] | DataError:
        return list(torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(step)))


class Toy(Task[Tensor]):
    """A small network with dropout and a batch norm; its second layer learns from step 2 on."""

    losses = ("loss", "second")
    counted = ("rows",)
    scores: ClassVar = {"score": 1.0}
    best_by = "score"

    def __init__(self, rate: Callable[[int], float] = lambda step: 0.1) -> None:
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.batches, self.rate, self.resets = Noise(), rate, 0
        self.values = iter(range(1000))

    def groups(self) -> list[ParameterGroup]:
        return [
            ParameterGroup(list(self.model[:3].parameters()), self.rate),
            ParameterGroup(list(self.model[3].parameters()), self.rate, 2),
        ]

    def counts(self, parts: Any) -> Tensor:
        return torch.tensor([sum(map(len, parts))])

    def loss(self, part: Tensor, counts: Tensor) -> Tensor:
        total = (self.model(part) - 1).square().sum() / counts[0]
        return torch.stack([total, total.detach() * 2])

    def evaluate(self, is_last: bool) -> dict[str, float]:
        assert not self.model.training
        return {"score": -float(self.model[0].weight.detach().abs().sum())}

    def reset(self) -> None:
        self.resets += 1

    def files(self, step: int, score: float | None) -> dict[str, bytes]:
        return {"model.txt": f"{self.model[0].weight.tolist()}".encode()}

    def finish(self, folder: Path) -> None:
        (folder / "result.txt").write_text(f"{self.model[0].weight.tolist()}")


def parts_of(step: int) -> list[Tensor]:
    found = Noise()[step]
    assert isinstance(found, list)
    return found


def run_toy(folder: Path, plan: Plan = PLAN, task: Toy | None = None) -> Path:
    with claimed(folder, {"format": "toy"}, CPU):
        train(task or Toy(), plan, folder, CPU)
    return folder


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "draw_curves", lambda *arguments: None)


def tensors(run: Path) -> dict[str, Tensor]:
    state = read_run_state(run)
    assert state is not None
    return load_file(run / state.last / "training.safetensors")


def assert_same(run: Path, other: Path) -> None:
    mine, theirs = tensors(run), tensors(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (run / "result.txt").read_text() == (other / "result.txt").read_text()
    lines = [[{**line, "seconds": 0} for line in read_metrics(each)] for each in (run, other)]
    assert lines[0] == lines[1]
    assert read_run_state(run) == read_run_state(other)


# --- a step -------------------------------------------------------------------------------------------------------


def test_steps_and_ema_are_those_of_the_formulas() -> None:
    """Gradients of both parts are added up, clipped and given to AdamW; the EMA follows."""
    plan = replace(PLAN, seed=3)
    trainer, mine = Trainer(Toy(lambda step: 0.1 / (1 + step)), plan, CPU), Toy().model
    optimizer = torch.optim.AdamW(mine.parameters(), weight_decay=0.01)
    ema = {name: value.detach().clone() for name, value in mine.state_dict().items()}
    for step in range(5):
        figures = trainer.take_step(parts_of(step))
        seed = loop.np.random.SeedSequence([3, step, 0]).generate_state(1)[0]
        torch.manual_seed(int(seed))
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        mine[3].requires_grad_(step >= 2)
        optimizer.zero_grad()
        losses = [(mine(part) - 1).square().sum() / 12 for part in parts_of(step)]
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(mine.parameters(), 0.5)
        optimizer.step()
        total = float((losses[0] + losses[1]).detach())
        assert figures == pytest.approx({"loss": total, "second": 2 * total, "rows": 12}, rel=1e-5)
        keep = min(0.9, (2 + step) / (11 + step))
        for name, value in mine.state_dict().items():
            ema[name] = keep * ema[name] + (1 - keep) * value if value.is_floating_point() else value.clone()
    for name, value in trainer.task.model.state_dict().items():
        torch.testing.assert_close(value, mine.state_dict()[name], rtol=1e-4, atol=1e-5)
    with trainer.averaged():
        assert not trainer.task.model.training
        for name, value in trainer.task.model.state_dict().items():
            torch.testing.assert_close(value, ema[name], rtol=1e-4, atol=1e-5)
    assert trainer.task.model.training
    torch.testing.assert_close(trainer.task.model.state_dict()["0.weight"], mine[0].weight, rtol=1e-4, atol=1e-5)


def test_a_model_has_its_own_weights_again_even_after_an_error() -> None:
    task = Toy()
    trainer = Trainer(task, PLAN, CPU)
    trainer.take_step(parts_of(0))
    before = {name: value.clone() for name, value in task.model.state_dict().items()}

    def use() -> None:
        with trainer.averaged():
            assert not torch.equal(task.model[0].weight, before["0.weight"])
            raise KeyError

    with pytest.raises(KeyError):
        use()
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    assert task.resets == 2


def test_random_numbers_follow_from_seed_and_step() -> None:
    def losses(seed: int, start: int) -> list[float]:
        trainer = Trainer(Toy(lambda step: 0.0), Plan(10, seed=seed, weight_decay=0.0), CPU)
        trainer.step = start
        torch.rand(start + 1)  # what was drawn before does not matter
        return [trainer.take_step(parts_of(0))["loss"] for _ in range(2)]

    assert losses(0, 2) == losses(0, 2)
    assert losses(0, 2)[1] == losses(0, 3)[0]
    assert len({*losses(0, 2), *losses(1, 2)}) == 4


def test_no_parts_are_a_step_without_gradient() -> None:
    trainer = Trainer(Toy(), Plan(10, weight_decay=0.0), CPU)
    before = trainer.task.model[0].weight.detach().clone()
    assert trainer.take_step([]) == {"loss": 0, "second": 0, "rows": 0}
    assert trainer.step == 1
    assert torch.equal(trainer.task.model[0].weight, before)


def test_a_step_that_would_ruin_the_weights_is_not_taken() -> None:
    trainer = Trainer(Toy(), PLAN, CPU)
    before = trainer.task.model[0].weight.detach().clone()
    with pytest.raises(DataError, match="step 1: the loss is not finite; lower"):
        trainer.take_step([torch.full((6, 3), math.nan)])
    assert torch.equal(trainer.task.model[0].weight, before)
    assert trainer.step == 0


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=6), st.floats(0.1, 10))
def test_clipping(values: list[float], limit: float) -> None:
    largest, length = max(map(abs, values)), math.hypot(*values)
    wanted = {
        "norm": [value * min(1, limit / largest) if largest else 0 for value in values],
        "value": [max(-limit, min(limit, value)) for value in values],
        "l2": [value * min(1, limit / length) if length else 0 for value in values],
    }
    for by, expected in wanted.items():
        for given_limit in (limit, 0.0):
            gradients = torch.tensor(values).split([1, len(values) - 1])
            norm = clip_gradients(gradients, given_limit, by)
            assert norm == pytest.approx(length if by == "l2" else largest, rel=1e-5)
            assert torch.cat(gradients).tolist() == pytest.approx(expected if given_limit else values, rel=1e-4)


def test_learning_rates() -> None:
    """Of 1,000 steps, 100 up and the rest down."""
    rates = [one_cycle((step + 0.5) / 1000, 0.1) for step in range(1000)]
    peak = rates.index(max(rates))
    assert peak in (99, 100)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[0] == pytest.approx(0.005)
    assert rates[549] == pytest.approx(0.5, abs=2e-3)
    assert 0 < rates[-1] < 1e-5
    assert one_cycle(1.0, 0.1, last=0.25) == pytest.approx(0.25)
    assert one_cycle(1.0, 1.0) == 1


# --- a run --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "draw_curves", lambda *arguments: None)
        return run_toy(tmp_path_factory.mktemp("runs") / "whole")


def test_a_run_leaves_what_it_says(whole: Path) -> None:
    lines = read_metrics(whole)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    scores = {line["step"]: line["score"] for line in lines if "score" in line}
    assert list(scores) == [4, 8, 12]
    best = max(scores, key=lambda step: scores[step])
    assert read_run_state(whole) == RunState("step-00000012", f"step-{best:08d}", is_finished=True)
    assert is_finished(whole)
    assert (whole / "result.txt").read_text() == (whole / "step-00000012" / "model.txt").read_text()
    state = json.loads((whole / "step-00000012" / "state.json").read_text())
    assert state == {
        "format": "phrasechain training 2",
        "step": 12,
        "best": max(scores.values()),
        "stale": (12 - best) // 4,
    }


@pytest.mark.parametrize("kills", [(1,), (2, 3), (3, 1, 1, 4)])
def test_an_interrupted_run_ends_with_the_same_bits(whole: Path, tmp_path: Path, kills: tuple[int, ...]) -> None:
    """After so many checkpoints each time, however often."""
    write = Checkpoints.write
    for count in kills:
        saves = iter(range(count))

        def save(self: Checkpoints, *arguments: Any, left: Any = saves) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            write(self, *arguments)

        with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Checkpoints, "write", save)
            run_toy(tmp_path / "run")
    run_toy(tmp_path / "run")
    assert_same(tmp_path / "run", whole)


def test_a_killed_run_ends_with_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """By SIGKILL, at no moment in particular, with what a kill may leave behind."""
    program = (
        "import sys, time, pathlib, test_loop as t; t.loop.draw_curves = lambda *a: time.sleep(0.2);"
        "t.run_toy(pathlib.Path(sys.argv[1]))"
    )
    run = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", program, str(run)], env=importing(__file__)) as process:
        while not (run / "step-00000006").exists():
            with suppress(subprocess.TimeoutExpired):
                assert process.wait(0.01) is None, "the run ended too early"
        os.kill(process.pid, signal.SIGKILL)
    assert not is_finished(run)
    (run / ".step-00000009.abcd.tmp").mkdir()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "lo')
    run_toy(run)
    assert_same(run, whole)
    assert len((run / "environment.jsonl").read_text().splitlines()) == 2


def test_killed_after_its_last_step_it_still_finishes(whole: Path, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toy, "finish", stop)
        with pytest.raises(KeyboardInterrupt):
            run_toy(tmp_path / "run")
    assert not is_finished(tmp_path / "run")
    run_toy(tmp_path / "run")
    assert_same(tmp_path / "run", whole)


def test_workers_change_nothing(whole: Path, tmp_path: Path) -> None:
    assert_same(run_toy(tmp_path / "run", replace(PLAN, workers=1)), whole)


def test_it_stops_when_nothing_gets_better(tmp_path: Path) -> None:
    plan = replace(PLAN, ema=None, weight_decay=0.0, patience=2, steps=40)
    run = run_toy(tmp_path / "run", plan, Toy(lambda step: 0.0))
    assert [line["step"] for line in read_metrics(run) if "score" in line] == [
        4,
        8,
        12,
    ]  # a best one, and two no better
    assert read_run_state(run) == RunState("step-00000012", "step-00000004", is_finished=True)
    assert not (run / "step-00000004" / "training.safetensors").exists()


def test_without_a_score_the_last_is_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "best_by", "")
    assert read_run_state(run_toy(tmp_path / "run")) == RunState("step-00000012", "step-00000012", is_finished=True)


def test_an_error_of_a_batch_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "__getitem__", lambda self, step: DataError("photo 7: broken"))
    with pytest.raises(DataError, match="photo 7: broken"):
        run_toy(tmp_path / "run")


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    run = run_toy(tmp_path / "run")
    last = run / "step-00000012"
    good = (last / "state.json").read_text()
    for text, message in (
        (
            '{"format": "phrasechain training 2"}',
            "broken checkpoint: its state.json has no step; remove the run to restart",
        ),
        ("{}", "step-00000012: written by another version of phrasechain; remove the run to restart"),
        ("[", r"step-00000012: broken JSON: .*; remove the run"),
    ):
        (last / "state.json").write_text(text)
        with pytest.raises(DataError, match=message):
            run_toy(run)
    (last / "state.json").write_text(good)
    save_file({"model.0/weight": torch.zeros(2)}, last / "training.safetensors")
    with pytest.raises(DataError, match=r"step 12: broken checkpoint: .*; remove the run to restart"):
        run_toy(run)
    (last / "training.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(DataError, match=r"training\.safetensors: broken"):
        run_toy(run)
