from pathlib import Path

import pytest
import torch
from filelock import FileLock

from phrasechain.core.distributed import start_processes
from phrasechain.core.errors import DataError
from phrasechain.model.checkpoint import RunState, read_run_state
from phrasechain.model.config import Config
from phrasechain.training.run_folder import Checkpoints, claimed, is_finished, step_folder

ALONE = start_processes("cpu")


def test_a_folder_is_one_runs_alone(tmp_path: Path) -> None:
    run = tmp_path / "new" / "run"
    for _ in range(2):
        with claimed(run, {"seed": 1, "size": 64}, ALONE):
            assert (run / "config.json").exists()
    with (
        pytest.raises(DataError, match="run: a run with another seed; choose another folder"),
        claimed(run, {"seed": 2, "size": 64}, ALONE),
    ):
        pass


def test_differences_are_named_with_their_section(tmp_path: Path) -> None:
    config = {"format": "run 1", "train": {"rate": 1.0, "seed": 3}, "model": {"rank": 4}, "photos": "ab"}
    with claimed(tmp_path, config, ALONE):
        pass
    other = {"format": "run 1", "train": {"rate": 2.0, "seed": 3}, "model": {"rank": 4, "new": 5}, "photos": "cd"}
    with (
        pytest.raises(DataError, match=r"a run with another train\.rate, model\.new, photos; choose"),
        claimed(tmp_path, other, ALONE),
    ):
        pass
    with (
        pytest.raises(DataError, match="another command or version of phrasechain; choose another folder"),
        claimed(tmp_path, {**config, "format": "run 2"}, ALONE),
    ):
        pass


def test_one_process_works_in_a_folder(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(DataError, match="another process is training there"),
        claimed(tmp_path, {}, ALONE),
    ):
        pass


@pytest.mark.parametrize("text", ['{"seed": ', "[1, 2]", "7", ""])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with (
        pytest.raises(DataError, match=r"config\.json: not the configuration of a run"),
        claimed(tmp_path, {"seed": 1}, ALONE),
    ):
        pass


def test_a_run_points_to_its_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.read() is None
    for step, score in ((1, None), (2, 0.5), (3, 0.4), (4, None)):
        checkpoints.write(step, score, {"model.txt": b"mine"}, {"x": torch.full((2,), float(step))})
    (tmp_path / ".step-00000005.abcd.tmp").mkdir()
    (tmp_path / step_folder(1)).mkdir()
    (tmp_path / "val-gold-viterbi").mkdir()
    again = Checkpoints(tmp_path)
    found = again.read()
    assert found is not None
    assert (found[0], found[1]["x"].tolist()) == (4, [4, 4])
    assert (again.best, again.stale) == (0.5, 1)
    state = RunState(step_folder(4), step_folder(2), is_finished=False)
    assert read_run_state(tmp_path) == state
    names = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert names == {state.last, state.best, "val-gold-viterbi"}
    assert {path.name for path in (tmp_path / state.best).iterdir()} == {"model.txt"}  # it is not resumed from
    assert not is_finished(tmp_path)
    again.finish()
    assert is_finished(tmp_path)
    (tmp_path / "checkpoints.json").unlink()
    assert Checkpoints(tmp_path).read() is None
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"val-gold-viterbi"}


def test_one_process_writes(tmp_path: Path) -> None:
    """The others know what it writes."""
    other = Checkpoints(tmp_path, is_writer=False)
    other.write(3, 0.5, {}, {})
    assert other.run == RunState(step_folder(3), step_folder(3), is_finished=False)
    assert (other.best, list(tmp_path.iterdir())) == (0.5, [])


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(DataError, match=r"file: cannot be written: there is a file in its place; choose another"),
        claimed(tmp_path / "file", {}, ALONE),
    ):
        pass


def test_settings_know_the_names_of_earlier_versions(tmp_path: Path) -> None:
    with claimed(tmp_path, {"train": {"average": 0.5, "rate": 1.0}, "photos": "ab"}, ALONE):
        pass
    with claimed(tmp_path, {"train": {"ema": 0.5, "rate": 1.0}, "photos": "ab"}, ALONE, Config()):
        pass
    with (
        pytest.raises(DataError, match=r"a run with another train\.ema; choose"),
        claimed(tmp_path, {"train": {"ema": 0.6}}, ALONE, Config()),
    ):
        pass
