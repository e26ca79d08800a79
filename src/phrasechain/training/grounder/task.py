"""Training a grounding model: from annotated captions and stored region features to a folder with the best model.

A run folder holds what every run does (see ``run_folder``); each of its checkpoints is a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from phrasechain.baselines.base import Baseline
from phrasechain.baselines.build import build_system
from phrasechain.baselines.registry import BUILDERS
from phrasechain.core.distributed import Processes, start_processes
from phrasechain.core.errors import DataError, require_name
from phrasechain.core.memory import keep_freed_memory
from phrasechain.core.schema import Example
from phrasechain.data.class_boxes import learnable_photos
from phrasechain.data.flickr30k import READINGS
from phrasechain.evaluation.predict import count_right, my_examples
from phrasechain.model.batch import BY, Batch, make_groups, require_finite
from phrasechain.model.build import MAKERS
from phrasechain.model.checkpoint import FeatureSource, ModelInfo, checkpoint_files
from phrasechain.model.config import Config, Model
from phrasechain.model.config import Loss as LossConfig
from phrasechain.model.decode import DECODERS
from phrasechain.model.losses import (
    DIVIDE,
    OFFSETS,
    REGRESS,
    TARGETS,
    UNLABELLED,
    LossTerms,
    loss_counts,
    training_loss,
)
from phrasechain.model.model import INITS, GroundingModel
from phrasechain.model.phrase_encoder import CONTEXTS
from phrasechain.model.scores import Scores
from phrasechain.model.system import GroundingSystem
from phrasechain.model.targets import Targets, make_targets
from phrasechain.model.transitions import TRANSITIONS
from phrasechain.store.reader import FeatureStore
from phrasechain.text.cache import CachedEncoder
from phrasechain.training.grounder.absent import AbsentPhrases
from phrasechain.training.grounder.class_captions import class_examples
from phrasechain.training.grounder.data import annotation_digest, read_splits, region_digest, with_stored_regions
from phrasechain.training.grounder.start import load_start, start_digest
from phrasechain.training.grounder.steps import BatchPart, ProcessBatches, Steps
from phrasechain.training.log import require_tensorboard
from phrasechain.training.loop import CLIPS, OPTIMIZERS
from phrasechain.training.loop import train as train_task
from phrasechain.training.run_folder import FORMAT_KEY, claimed, is_finished
from phrasechain.training.task import ParameterGroup, Plan, Task, ema_decay, gradual, one_cycle, two_steps

RUN_FORMAT = "phrasechain run 1"
PRECISIONS = ("float32", "bf16")
KEEP = {"best": "dev", "last": ""}  # which checkpoint is the model, and the score that chooses it
_KEPT = {"best": "checkpoint that is best on", "last": "last checkpoint, and scores it on"}
_CPU = torch.device("cpu")
#: The learning rate as a share of its peak, from the share of the steps that is done and that of the warm-up.
SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "one_cycle": one_cycle,
    "constant": lambda done, warm_up: 1.0,
    "two_steps": two_steps,
    "gradual": gradual,
}


def train(
    data: Path,
    features: Path,
    out: Path,
    config: Config,
    device: str = "auto",
    tensorboard: bool = False,
    missing: str = "refuse",
    say: Callable[[str], object] = lambda line: None,
    start: Path | None = None,
    boxes: Path | None = None,
) -> Path:
    """Train a model and return its run folder. A finished run is left as it is; an unfinished one is resumed.

    ``data`` is a dataset, ``features`` a store with the regions of its images; ``missing="skip"`` leaves out images
    that it lacks. Started by ``torchrun`` or ``accelerate launch``, all processes share each step. ``say`` is handed a
    line about what is learnt from. ``start`` is the checkpoint of a grounder to fine-tune, and ``config`` then that of
    :func:`start_config`. ``boxes`` is a file of photos with boxes of classes to learn from as well (see
    ``data.class_boxes``), whose regions the store has too.
    """
    loss = config.loss.settled()
    _check(config, loss)
    keep_freed_memory()
    store = FeatureStore.open(features)
    fit, dev = read_splits(data, config.data, may_overlap=config.train.keep == "last")
    fit, fit_line = with_stored_regions(fit, config.data.fit, store, missing)
    dev, dev_line = with_stored_regions(dev, config.data.dev, store, missing)
    more, more_line = ([], None) if boxes is None else _class_examples(boxes, config, store, missing)
    identity = {
        FORMAT_KEY: RUN_FORMAT,
        **asdict(config),
        "annotations": annotation_digest([*fit, *more, *dev]),
        "regions": region_digest([*fit, *more, *dev], store),
    } | ({} if start is None else {"start": start_digest(start)})
    processes = start_processes(device)
    built = None
    if not is_finished(out):  # what is refused is refused before a folder is made
        if tensorboard:
            require_tensorboard()
        built = _build(config, loss, fit, more, dev, store, processes, start)
        for line in filter(None, (fit_line, more_line, dev_line)):
            say(line)
        classes = f" and {len(more):,} photos with boxes of classes" if more else ""
        say(
            f"learns from {config.data.fit} ({len(fit):,} images){classes}, keeps the {_KEPT[config.train.keep]} "
            f"{config.data.dev} ({len(dev):,} images)"
        )
    with claimed(out, identity, processes, config):
        if built is not None and not is_finished(out):
            train_task(*built, out, processes, tensorboard)
    return out


def _build(
    config: Config,
    loss: LossConfig,
    fit: Sequence[Example],
    more: Sequence[Example],
    dev: Sequence[Example],
    store: FeatureStore,
    processes: Processes,
    start: Path | None = None,
) -> tuple[GroundingTask, Plan]:
    """The task and how it is trained; ``more`` are photos with boxes of classes."""
    options = config.train
    order = Steps(
        make_groups([*fit, *more], options.by, phraseless=config.data.phraseless),
        by=options.by,
        batch=options.batch,
        window=options.window,
        seed=options.seed,
    )
    steps = options.steps or max(1, ceil(options.epochs * order.per_epoch))
    torch.manual_seed(options.seed)
    model = build_system(config, [*fit, *more], store) if start is None else load_start(start, store)
    model.to(processes.device).train()
    loss_terms, counts = _loss_of(model, loss)
    task = GroundingTask(
        model,
        ProcessBatches(
            order,
            store,
            unboxed=config.data.unboxed,
            absent=AbsentPhrases(fit, config.data.absent) if config.model.absent else None,
            read_all=config.data.phraseless,
            index=processes.process_index,
            count=processes.num_processes,
            parts=options.accumulate,
            targets=model.targets if isinstance(model, Baseline) else make_targets,
        ),
        score=partial(accuracy, model, dev, store, config.decode.method, processes),
        info=ModelInfo(config.model, FeatureSource.of(store), config.decode.method, trained=asdict(config)),
        rate=partial(learning_rate, options.rate, options.schedule, options.warm_up, steps),
        encoder_rate=options.encoder_rate,
        loss_terms=loss_terms,
        loss_counts=counts,
        gamma=loss.gamma,
        precision=options.precision,
        device=processes.device,
        best_by=KEEP[options.keep],
    )
    plan = Plan(
        steps,
        evaluate_every=options.score_every or order.per_epoch,
        save_every=options.save_every,
        seed=options.seed,
        optimizer=options.optimizer,
        betas=(options.beta1, options.beta2),
        weight_decay=options.weight_decay,
        clip=options.clip,
        clip_by=options.clip_by,
        ema=ema_decay(options.ema),
        patience=options.patience,
        workers=options.workers,
    )
    return task, plan


def _class_examples(boxes: Path, config: Config, store: FeatureStore, missing: str) -> tuple[list[Example], str | None]:
    photos = learnable_photos(boxes)[: config.data.limit or None]
    examples = class_examples(photos, absent=config.model.absent, seed=config.train.seed)
    return with_stored_regions(examples, str(boxes), store, missing)


def _loss_of(
    model: GroundingSystem, loss: LossConfig
) -> tuple[Callable[..., LossTerms], Callable[[Batch, Targets], Tensor]]:
    """The loss that a config asks for, or that of a compared system's paper; and its counts."""
    if isinstance(model, Baseline):
        return lambda member_scores, batch, targets: model.loss(batch, targets), model.loss_counts
    counted: dict[str, Any] = {"unlabelled": loss.unlabelled, "divide": loss.divide, "regress": loss.regress}
    terms = partial(training_loss, kind=loss.targets, offsets=loss.offsets, least_side=loss.least_side, **counted)
    return terms, partial(loss_counts, **counted)


def learning_rate(peak: float, schedule: str, warm_up: float, steps: int, step: int) -> float:
    return peak * SCHEDULES[schedule]((step + 0.5) / steps, warm_up)


@dataclass(eq=False)
class GroundingTask(Task[BatchPart]):
    """A grounding model that learns from captions whose phrases have boxes.

    Each loss is a sum over phrases or pairs divided by their number in the whole step, over all processes and parts.
    """

    losses = ("loss", "grounding", "boxes")
    counted = ("divisor", "pairs", "phrases")
    scores: ClassVar[Mapping[str, float]] = {"dev": 100.0, "dev, caption 0": 100.0}

    model: GroundingSystem
    batches: Dataset[list[BatchPart] | DataError]
    score: Callable[[], dict[str, float]]
    info: ModelInfo
    rate: Callable[[int], float]
    encoder_rate: float = 1.0  # of the text encoder, as a share of ``rate``
    loss_terms: Callable[..., LossTerms] = training_loss
    loss_counts: Callable[..., Tensor] = loss_counts
    gamma: float = 10.0
    precision: str = "float32"
    device: torch.device = _CPU
    best_by: str = "dev"

    def groups(self) -> list[ParameterGroup]:
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        text = {id(weight) for weight in self.model.text.encoder.parameters()}
        return [
            ParameterGroup([weight for weight in weights if id(weight) not in text], self.rate),
            ParameterGroup(
                [weight for weight in weights if id(weight) in text], lambda step: self.encoder_rate * self.rate(step)
            ),
        ]

    def counts(self, parts: Sequence[BatchPart]) -> Tensor:
        return torch.zeros(3, dtype=torch.int64) + sum(self.loss_counts(*part) for part in parts)

    def loss(self, part: BatchPart, counts: Tensor) -> Tensor:
        batch, targets = (each.to(self.device) for each in part)
        terms = self.loss_terms(self._member_scores, batch, targets)
        divisor, pairs = counts[:2].clamp(min=1)
        grounding, boxes = terms.grounding / divisor, terms.boxes / pairs
        return torch.stack([grounding + self.gamma * boxes, grounding, boxes])

    def _member_scores(self, batch: Batch) -> Sequence[Scores]:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            assert isinstance(self.model, GroundingModel)
            return self.model.member_scores(batch)

    def check(self, parts: Sequence[BatchPart]) -> None:
        require_finite(batch for batch, _ in parts)

    def evaluate(self, is_last: bool) -> dict[str, float]:
        found = self.score()
        if isinstance(cache := self.model.text.encoder, CachedEncoder):
            cache.flush()  # so that no run computes these vectors again
        return found

    def reset(self) -> None:
        """Let a text encoder that carries its state from batch to batch begin anew."""
        self.model.text.encoder.reset()

    def files(self, step: int, score: float | None) -> dict[str, bytes]:
        return checkpoint_files(self.model, self.model.state_dict(), replace(self.info, step=step, score=score))


def accuracy(
    model: GroundingSystem, dev: Sequence[Example], store: FeatureStore, decode: str, processes: Processes
) -> dict[str, float]:
    """The accuracy on dev: of all captions, which chooses the best checkpoint, and of caption 0."""
    mine = my_examples(model, dev, processes)
    counts = processes.reduce(count_right(model, mine, store, decode, processes.device), "sum")
    (first_right, first), (right, phrases) = counts.tolist()
    return {"dev": right / phrases, "dev, caption 0": first_right / max(first, 1)}


def _check(config: Config, loss: LossConfig) -> None:
    """Refuse names that nothing bears and values that contradict each other, before any work."""
    options = config.train
    for kind, name, known in (
        ("kind of model", config.model.kind, BUILDERS),
        ("text encoder", config.text.encoder, MAKERS),
        ("transition", config.model.transition, TRANSITIONS),
        ("context", config.model.context, CONTEXTS),
        ("initialisation", config.model.init, INITS),
        ("reading of the data", config.data.reading, READINGS),
        ("targets", loss.targets, TARGETS),
        ("treatment of unlabelled phrases", loss.unlabelled, UNLABELLED),
        ("division of the loss", loss.divide, DIVIDE),
        ("choice of regressed regions", loss.regress, REGRESS),
        ("way to count offsets", loss.offsets, OFFSETS),
        ("optimizer", options.optimizer, OPTIMIZERS),
        ("schedule", options.schedule, SCHEDULES),
        ("way to batch", options.by, BY),
        ("way to clip", options.clip_by, CLIPS),
        ("precision", options.precision, PRECISIONS),
        ("checkpoint to keep", options.keep, KEEP),
        ("decoder", config.decode.method, DECODERS),
    ):
        require_name(kind, name, known)
    if options.precision != "float32" and config.model.kind != Model().kind:
        raise DataError(f"model.kind={config.model.kind} trains in float32 alone; leave train.precision as it is")
    if loss.targets == "refined" and not config.model.box_regression:
        raise DataError("loss.targets=refined needs box regression; set model.box_regression=true or loss.targets=soft")
    if config.model.absent and (config.model.kind != Model().kind or not config.data.absent):
        what = "data.absent above 0" if config.model.kind == Model().kind else f"model.kind={Model().kind}"
        raise DataError(f"model.absent=true learns the label ∅ from absent phrases; it needs {what}")
    if config.model.second_order and loss.unlabelled == "marginalise":
        raise DataError(
            "model.second_order=true cannot sum phrases out, which would couple four neighbours; set "
            "loss.unlabelled=skip and data.unboxed=0"
        )
    if config.data.unboxed and loss.unlabelled != "marginalise":
        raise DataError(
            f"data.unboxed keeps phrases in chains that loss.unlabelled={loss.unlabelled} leaves out again; set "
            "loss.unlabelled=marginalise too"
        )
