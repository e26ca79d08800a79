from pathlib import Path

import pytest
from filelock import FileLock

from phrasechain.core.errors import DataError
from phrasechain.training.run_folder import claimed, log, read_metrics, truncate_metrics


def test_a_folder_is_one_runs_alone(tmp_path: Path) -> None:
    run = tmp_path / "new" / "run"
    for _ in range(2):
        with claimed(run, {"seed": 1, "size": 64}):
            assert (run / "config.json").exists()
    with (
        pytest.raises(DataError, match="run: a run with another seed; choose another folder"),
        claimed(run, {"seed": 2, "size": 64}),
    ):
        pass


def test_differences_are_named_with_their_section(tmp_path: Path) -> None:
    config = {"format": "run 1", "train": {"rate": 1.0, "seed": 3}, "model": {"rank": 4}, "photos": "ab"}
    with claimed(tmp_path, config):
        pass
    other = {"format": "run 1", "train": {"rate": 2.0, "seed": 3}, "model": {"rank": 4, "new": 5}, "photos": "cd"}
    with (
        pytest.raises(DataError, match=r"a run with another train\.rate, model\.new, photos; choose"),
        claimed(tmp_path, other),
    ):
        pass
    with (
        pytest.raises(DataError, match="another command or version of phrasechain; choose another folder"),
        claimed(tmp_path, {**config, "format": "run 2"}),
    ):
        pass


def test_one_process_works_in_a_folder(tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(DataError, match="another process is training there"),
        claimed(tmp_path, {}),
    ):
        pass


@pytest.mark.parametrize("text", ['{"seed": ', "[1, 2]", "7", ""])
def test_what_is_no_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with (
        pytest.raises(DataError, match=r"config\.json: not the configuration of a run"),
        claimed(tmp_path, {"seed": 1}),
    ):
        pass


def test_notes_after_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    for step in range(1, 6):
        log(tmp_path, {"step": step, "loss": step / 2})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')  # cut short by a kill
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4, 5]
    truncate_metrics(tmp_path, 3)
    assert read_metrics(tmp_path) == [{"step": step, "loss": step / 2} for step in (1, 2, 3)]
    assert read_metrics(tmp_path / "none") == []
