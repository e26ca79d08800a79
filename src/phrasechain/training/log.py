"""What a run notes: figures of its steps and scores, for TensorBoard too, and where it was started."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from phrasechain import __version__
from phrasechain.core.errors import DataError
from phrasechain.training.run_folder import log

if TYPE_CHECKING:
    from accelerate import Accelerator

Note = Callable[[Mapping[str, float]], None]


@contextmanager
def noting(folder: Path, step: int, processes: Accelerator, tensorboard: bool) -> Iterator[Note]:
    """What notes figures in ``metrics.jsonl``, and for TensorBoard if that is asked for; in the first process only."""
    if not processes.is_main_process:
        yield lambda figures: None
        return
    writer = _tensorboard(folder, step) if tensorboard else None

    def note(figures: Mapping[str, float]) -> None:
        log(folder, figures)
        if writer is not None:
            for name, value in figures.items():
                writer.add_scalar(name, value, int(figures["step"]))

    try:
        yield note
    finally:
        if writer is not None:
            writer.close()


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise DataError("--tensorboard: it is not installed: pip install 'phrasechain[train]'") from None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)


def note_environment(folder: Path, step: int, processes: Accelerator) -> None:
    """One line for each time that the run was started."""
    found = {
        "step": step,
        "command": sys.argv,
        "phrasechain": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "accelerate", "numpy", "safetensors")},
        "platform": platform.platform(),
        "device": str(processes.device),
        "processes": processes.num_processes,
        "threads": torch.get_num_threads(),
    }
    with (folder / "environment.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
