"""Training a grounding model: from annotated captions and stored region features to a folder with the best model.

A run folder holds ``config.json``, ``environment.jsonl`` (versions and command of each start), ``metrics.jsonl``,
``curves.png`` and the best and the last checkpoint, which ``checkpoints.json`` names. What a step does follows from the
seed and its number alone: a run that was killed goes on from its last checkpoint and ends as if it had not been.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from phrasechain.core.distributed import start_processes
from phrasechain.core.errors import DataError, one_line, unknown_name
from phrasechain.core.files import reason
from phrasechain.core.memory import keep_freed_memory
from phrasechain.core.progress import progress_bar
from phrasechain.core.schema import Example
from phrasechain.core.tensors import read_tensors
from phrasechain.evaluation.predict import count_right
from phrasechain.model.batch import BY, make_groups
from phrasechain.model.build import build_model
from phrasechain.model.checkpoint import (
    WEIGHTS,
    FeatureSource,
    ModelInfo,
    RunState,
    read_run_state,
    read_training,
    remove_leftovers,
    save_checkpoint,
    step_folder,
    write_run_state,
)
from phrasechain.model.config import Config, config_dict
from phrasechain.model.config import Loss as LossConfig
from phrasechain.model.decode import DECODERS
from phrasechain.model.losses import DIVIDE, OFFSETS, REGRESS, TARGETS, UNLABELLED
from phrasechain.store.reader import FeatureStore
from phrasechain.training.curves import SCORES, draw_curves
from phrasechain.training.grounder.data import READINGS, annotation_digest, read_splits, region_digest
from phrasechain.training.grounder.learner import CLIPS, OPTIMIZERS, PRECISIONS, SCHEDULES, Learner
from phrasechain.training.grounder.steps import BatchPart, ProcessBatches, Steps
from phrasechain.training.log import Note, note_environment, noting
from phrasechain.training.run_folder import FORMAT_KEY, claimed, truncate_metrics

if TYPE_CHECKING:
    from accelerate import Accelerator

RUN_FORMAT = "phrasechain run 1"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def train(
    data: Path, features: Path, out: Path, config: Config, device: str = "auto", tensorboard: bool = False
) -> Path:
    """Train a model and return its run folder. A finished run is left as it is; an unfinished one goes on.

    ``data`` is a dataset, ``features`` a store with the regions of its images. Started by ``torchrun`` or ``accelerate
    launch``, all processes share each step.
    """
    loss = config.loss.settled()
    _check(config, loss)
    keep_freed_memory()
    store = FeatureStore.open(features)
    fit, dev = read_splits(data, config.data)
    identity = {
        FORMAT_KEY: RUN_FORMAT,
        **config_dict(config),
        "annotations": annotation_digest([*fit, *dev]),
        "regions": region_digest([*fit, *dev], store),
    }
    processes = start_processes(device)
    with _held(out, identity, processes):
        pointers = read_run_state(out)
        if pointers is None or not pointers.is_finished:
            _Run(out, config, loss, fit, dev, store, processes).finish(tensorboard)
        processes.wait_for_everyone()  # until the first process has written all: the others may want to read it
    return out


class _Run:
    """A run that is not finished: the learner, what it learns from, and the folder that keeps it."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        loss: LossConfig,
        fit: Sequence[Example],
        dev: Sequence[Example],
        store: FeatureStore,
        processes: Accelerator,
    ) -> None:
        how = config.train
        self.folder, self.config, self.dev, self.store, self.processes = folder, config, dev, store, processes
        self.plan = Steps(make_groups(fit, how.by), by=how.by, batch=how.batch, window=how.window, seed=how.seed)
        self.share = ProcessBatches(
            self.plan,
            store,
            unboxed=config.data.unboxed,
            index=processes.process_index,
            count=processes.num_processes,
            parts=how.accumulate,
        )
        self.steps = how.steps or max(1, ceil(how.epochs * self.plan.per_epoch))
        self.score_every = how.score_every or self.plan.per_epoch
        torch.manual_seed(how.seed)
        model = build_model(config, fit, store).to(processes.device).train()
        self.learner = Learner(model, how, loss, self.steps, processes)
        self.pointers: RunState | None = None
        self.best: float | None = None  # accuracy on dev
        self.stale = 0  # scores since then

    def finish(self, tensorboard: bool) -> None:
        """Everything that is left to do."""
        self._go_on()
        if self.processes.is_main_process:
            note_environment(self.folder, self.learner.step, self.processes)
            truncate_metrics(self.folder, self.learner.step)
        with noting(self.folder, self.learner.step, self.processes, tensorboard) as note:
            self._learn(note)
        if self.processes.is_main_process and self.pointers is not None:
            draw_curves(self.folder)
            write_run_state(self.folder, RunState(self.pointers.last, self.pointers.best, is_finished=True))

    def _go_on(self) -> None:
        """Take up the last checkpoint, if there is one."""
        self.pointers = read_run_state(self.folder)
        if self.processes.is_main_process:
            remove_leftovers(self.folder, self.pointers)
        if self.pointers is None:
            return
        last = self.folder / self.pointers.last
        tensors, state = read_training(last)
        try:
            self.best, self.stale = state["best"], int(state["stale"])
            self.learner.go_on(int(state["step"]), read_tensors(last / WEIGHTS, "checkpoint").tensors, tensors)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{last}: broken checkpoint: {one_line(error)}; remove the run to begin anew") from None

    def _learn(self, note: Note) -> None:
        learner = self.learner
        loader = DataLoader(
            self.share,
            batch_size=None,
            sampler=range(learner.step, self.steps),
            num_workers=self.config.train.workers,
            pin_memory=self.processes.device.type == "cuda",
        )
        batches = iter(loader)
        with progress_bar(self.processes.is_main_process) as bar:
            shown = bar.add_task("training", total=self.steps, completed=learner.step)
            while learner.step < self.steps and not self._is_stale():
                start = time.perf_counter()
                figures = learner.learn(_raised(next(batches)))
                seconds = time.perf_counter() - start
                note({"step": learner.step, **figures, "seconds": seconds})
                bar.update(shown, completed=learner.step, description=self._says(figures, seconds))
                self._score_and_save(note)

    def _is_stale(self) -> bool:
        return 0 < self.config.train.patience <= self.stale

    def _says(self, figures: Mapping[str, float], seconds: float) -> str:
        accuracy = "–" if self.best is None else f"{100 * self.best:.1f}"
        return f"loss {figures['loss']:.3f}, best on dev {accuracy} %, {figures['phrases'] / seconds:,.0f} phrases/s"

    def _score_and_save(self, note: Note) -> None:
        """Score dev and write a checkpoint, where it is time for that."""
        step = self.learner.step
        is_last = step == self.steps
        score = None
        if step % self.score_every == 0 or is_last:
            score, first = self._score()
            self.learner.keep_text()
            note({"step": step, **dict(zip(SCORES, (score, first), strict=True))})
        if score is not None or step % self.config.train.save_every == 0:
            self._save(score)

    def _score(self) -> tuple[float, float]:
        """The accuracy on dev: of all captions, which chooses the best checkpoint, and of caption 0."""
        mine = self.dev[self.processes.process_index :: self.processes.num_processes]
        with self.learner.scored_model() as model:
            counts = count_right(model, mine, self.store, self.config.decode.how, self.processes.device)
        counts = self.processes.reduce(counts, "sum")
        (first_right, first), (right, phrases) = counts.tolist()
        return right / phrases, first_right / max(first, 1)

    def _save(self, score: float | None) -> None:
        """Write a checkpoint and point to it; a score that is the best so far makes it the best one too."""
        name = step_folder(self.learner.step)
        is_best = self.best is None or (score is not None and score > self.best)
        if score is not None:
            self.best, self.stale = (score, 0) if is_best else (self.best, self.stale + 1)
        best = name if is_best or self.pointers is None else self.pointers.best
        self.pointers = RunState(name, best, is_finished=False)
        self.learner.forget()  # what no checkpoint keeps
        if self.processes.is_main_process:
            state = {"step": self.learner.step, "best": self.best, "stale": self.stale}
            learner = self.learner
            save_checkpoint(
                self.folder / name, learner.model, learner.kept_weights(), self._card(score), learner.state(), state
            )
            write_run_state(self.folder, self.pointers)

    def _card(self, score: float | None) -> ModelInfo:
        config = self.config
        return ModelInfo(
            model=config.model,
            regions=FeatureSource.of(self.store),
            decode=config.decode.how,
            step=self.learner.step,
            score=score,
            trained=config_dict(config),
        )


def _raised(parts: list[BatchPart] | DataError) -> list[BatchPart]:
    if isinstance(parts, DataError):
        raise parts
    return parts


@contextmanager
def _held(out: Path, identity: dict[str, Any], processes: Accelerator) -> Iterator[None]:
    """Hold the run folder, of which the first process is in charge; what cannot be written is one line."""
    try:
        with claimed(out, identity) if processes.is_main_process else nullcontext():
            processes.wait_for_everyone()
            yield
    except OSError as error:
        if error.errno in _FULL:
            hint = "make room and run the same command again, what was trained is kept"
        else:
            hint = "mend that and run the same command again, or choose another folder; what was trained is kept"
        raise DataError(f"{error.filename or out}: cannot be written: {reason(error)}; {hint}") from None


def _check(config: Config, loss: LossConfig) -> None:
    """Refuse names that nothing bears and values that go against each other, before any work."""
    how = config.train
    for kind, name, known in (
        ("reading of the data", config.data.reading, READINGS),
        ("targets", loss.targets, TARGETS),
        ("treatment of unlabelled phrases", loss.unlabelled, UNLABELLED),
        ("division of the loss", loss.divide, DIVIDE),
        ("choice of regressed regions", loss.regress, REGRESS),
        ("way to count offsets", loss.offsets, OFFSETS),
        ("optimizer", how.optimizer, OPTIMIZERS),
        ("schedule", how.schedule, SCHEDULES),
        ("way to batch", how.by, BY),
        ("way to clip", how.clip_by, CLIPS),
        ("precision", how.precision, PRECISIONS),
        ("decoder", config.decode.how, DECODERS),
    ):
        if name not in known:
            raise DataError(unknown_name(kind, name, known))
    if loss.targets == "refined" and not config.model.box_regression:
        raise DataError(
            "loss.targets=refined needs boxes that move; set model.box_regression=true or loss.targets=soft"
        )
    if config.data.unboxed and loss.unlabelled != "marginalise":
        raise DataError(
            f"data.unboxed keeps phrases in chains that loss.unlabelled={loss.unlabelled} leaves out again; set "
            "loss.unlabelled=marginalise too"
        )
