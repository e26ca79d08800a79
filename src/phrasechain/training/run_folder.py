"""The folder of a run: that one process at a time trains there, and the checkpoints that it resumes from.

``config.json`` says which run it is. ``checkpoints.json`` names the best and the last ``step-…`` folder and is replaced
when they are complete, so that a kill at any moment leaves a whole one. The last folder holds ``training.safetensors``
(all that training changes) and ``state.json``, besides what the task puts there.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

from filelock import FileLock, Timeout
from safetensors.torch import save
from torch import Tensor

from phrasechain.core.distributed import Processes
from phrasechain.core.errors import DataError
from phrasechain.core.files import json_bytes, read_bounded, reason, write_atomically
from phrasechain.core.json_lines import parse_settings, read_json
from phrasechain.core.settings import upgraded
from phrasechain.core.tensors import file_errors, read_tensors
from phrasechain.model.checkpoint import POINTERS, STEP_FOLDER, RunState, read_run_state, write_folder
from phrasechain.training.log import CURVES, ENVIRONMENT, METRICS, TENSORBOARD

FORMAT_KEY = "format"  # the key of what kind of run it is, and of which version
STATE_FORMAT = "phrasechain training 2"
TRAINING, STATE = "training.safetensors", "state.json"
CONFIG, LOCK = "config.json", ".lock"
TRACES = (CONFIG, METRICS, ENVIRONMENT, CURVES, TENSORBOARD, LOCK)  # what a run writes before its first checkpoint
_JSON_LIMIT = 1 << 20
_REMEDY = "remove the run to restart"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def claimed(
    folder: Path, config: dict[str, Any], processes: Processes, settings: object | None = None
) -> Iterator[None]:
    """Hold the run folder, new or this very run's, against others; what cannot be written is one line.

    Of many processes the first is in charge. ``settings`` know the keys of earlier versions. A run that fails before
    its first checkpoint leaves nothing behind: the corrected command finds the folder as it was.
    """
    try:
        with _locked(folder, config, settings) if processes.is_main_process else nullcontext():
            processes.wait_for_everyone()
            yield
            processes.wait_for_everyone()  # until the first process has written all: the others may want to read it
    except OSError as error:
        if error.errno in _FULL:
            hint = "make room and run the same command again, what was trained is kept"
        else:
            hint = "fix that and run the same command again, or choose another folder; what was trained is kept"
        raise DataError(f"{error.filename or folder}: cannot be written: {reason(error)}; {hint}") from None


@contextmanager
def _locked(folder: Path, config: dict[str, Any], settings: object | None) -> Iterator[None]:
    is_new = not folder.exists()
    is_failed = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise DataError(f"{folder}: cannot be written: there is a file in its place; choose another folder") from None
    try:
        with FileLock(folder / LOCK, timeout=0):
            is_begun = (folder / CONFIG).exists()
            _require_same(folder / CONFIG, config, settings)
            try:
                yield
            except BaseException:
                is_failed = not is_begun and read_run_state(folder) is None
                raise
    except Timeout:
        raise DataError(f"{folder}: another process is training there; wait until it ends") from None
    finally:
        if is_failed:
            _remove_traces(folder, is_new)


def _remove_traces(folder: Path, is_new: bool) -> None:
    """Remove what a run without a checkpoint has left."""
    for name in TRACES:
        with suppress(OSError):
            shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    if is_new:
        with suppress(OSError):  # something else is in it
            folder.rmdir()


def _require_same(path: Path, config: dict[str, Any], settings: object | None) -> None:
    if not path.exists():
        write_atomically(path, json_bytes(config))
        return
    try:
        found = read_json(path, _JSON_LIMIT)
    except DataError:
        raise DataError(f"{path}: not the configuration of a run; choose another folder") from None
    if found.get(FORMAT_KEY) != config.get(FORMAT_KEY):
        raise DataError(f"{path.parent}: made by another command or version of phrasechain; choose another folder")
    if settings is not None:
        found = upgraded(settings, found, str(path))
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


def is_finished(folder: Path) -> bool:
    """Whether a run has nothing left to do."""
    found = read_run_state(folder)
    return found is not None and found.is_finished


def step_folder(step: int) -> str:
    """
    >>> step_folder(1200)
    'step-00001200'
    """
    return f"step-{step:08d}"


class Checkpoints:
    """The checkpoints of a run: the last, which it resumes from, and the best by its score. One process writes them."""

    def __init__(self, folder: Path, is_writer: bool = True) -> None:
        self.folder, self.is_writer = folder, is_writer
        self.run = read_run_state(folder)
        self.best: float | None = None  # score
        self.stale = 0  # scores since then
        if is_writer:
            self._remove_others()

    def read(self) -> tuple[int, dict[str, Tensor]] | None:
        """The step and the tensors to resume from, if there is a checkpoint."""
        if self.run is None:
            return None
        last = self.folder / self.run.last
        with file_errors(last, "checkpoint", _REMEDY):
            state = parse_settings(read_bounded(last / STATE, _JSON_LIMIT, named=False))
            if state.get(FORMAT_KEY) != STATE_FORMAT:
                raise DataError("written by another version of phrasechain")
            best, stale, step = (state.get(key) for key in ("best", "stale", "step"))
            if type(stale) is not int or type(step) is not int or type(best) not in (int, float, NoneType):
                raise DataError(f"broken checkpoint: its {STATE} has no step")
            self.best, self.stale = best, stale
        return step, read_tensors(last / TRAINING, "training state", remedy=_REMEDY).tensors

    def write(self, step: int, score: float | None, files: Mapping[str, bytes], tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint, all or nothing: a task's files, and tensors to resume from."""
        is_best = self.best is None or (score is not None and score > self.best)
        if score is not None:
            self.best, self.stale = (score, 0) if is_best else (self.best, self.stale + 1)
        name = step_folder(step)
        self.run = RunState(name, name if is_best or self.run is None else self.run.best, is_finished=False)
        if self.is_writer:
            plain = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
            state = {FORMAT_KEY: STATE_FORMAT, "step": step, "best": self.best, "stale": self.stale}
            write_folder(self.folder / name, {**files, TRAINING: save(plain), STATE: json.dumps(state).encode()})
            self._point()

    def finish(self) -> None:
        """Say that the run has nothing left to do."""
        if self.run is not None:
            self.run = replace(self.run, is_finished=True)
            self._point()

    def _point(self) -> None:
        """Make these the run's checkpoints, at once, and remove the others."""
        assert self.run is not None
        found = {"last": self.run.last, "best": self.run.best, "finished": self.run.is_finished}
        write_atomically(self.folder / POINTERS, json_bytes(found))
        self._remove_others()

    def _remove_others(self) -> None:
        """Remove checkpoints that are neither the best nor the last, and what a kill left half written."""
        kept = set() if self.run is None else {self.run.last, self.run.best}
        for folder in self.folder.iterdir():
            if folder.is_dir() and (folder.name.startswith(".step-") or STEP_FOLDER.fullmatch(folder.name)):
                if folder.name not in kept:
                    shutil.rmtree(folder)
                elif self.run is not None and folder.name != self.run.last:
                    for name in (TRAINING, STATE):
                        (folder / name).unlink(missing_ok=True)
