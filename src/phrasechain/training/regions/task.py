"""Training the region network: one command from photos and captions to the weights in the package.

A run folder holds what every run does (see ``run_folder``) and ``regions.safetensors``, the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from phrasechain.core.boxes import pairwise_iou_xyxy
from phrasechain.core.distributed import OneProcess
from phrasechain.core.errors import DataError
from phrasechain.core.memory import keep_freed_memory
from phrasechain.core.schema import Example, Regions
from phrasechain.data.class_boxes import ClassPhoto, learnable_photos
from phrasechain.data.dataset import load_examples
from phrasechain.evaluation.coverage import region_hits
from phrasechain.evaluation.gold import collect_gold
from phrasechain.regions.extractor import RegionExtractor, as_input
from phrasechain.regions.network import RegionNetwork
from phrasechain.regions.pixels import read_photo
from phrasechain.regions.weights import load_network, save_network
from phrasechain.training.loop import train
from phrasechain.training.regions.data import photo_path, read_data
from phrasechain.training.regions.losses import NEAR
from phrasechain.training.regions.model import LOSS_WEIGHTS, RegionTrainingModel, stack_targets
from phrasechain.training.regions.settings import RegionSettings, check_settings, with_shape_of
from phrasechain.training.regions.start import Start, is_region_network, make_training_model, new_network, read_start
from phrasechain.training.regions.steps import RegionBatches, RegionBatchPart
from phrasechain.training.regions.vocabulary import Vocabulary, read_targets
from phrasechain.training.run_folder import FORMAT_KEY, claimed
from phrasechain.training.task import ParameterGroup, Plan, Task, one_cycle

RUN_FORMAT = "phrasechain region run 2"
WEIGHTS = "regions.safetensors"
_WATCHED = 150  # photos of dev, and of fit, that are scored after each epoch
_WARM_UP, _LAST_RATE = 0.05, 0.01  # shares of the steps and of the peak


def train_regions(
    data: Path, out: Path, start: Path, settings: RegionSettings | None = None, boxes: Path | None = None
) -> Path:
    """Train on a part of the data, watch ``dev``, and write the weights; return their path.

    ``start`` are the published ImageNet weights of an EfficientNet-Lite, a detector's trunk (.safetensors), or a region
    network (.safetensors) whose layers are all fine-tuned; it keeps its shape. ``boxes`` is a file of photos
    with boxes of classes to learn from as well (see ``data.class_boxes``). A finished run is left as it is.
    """
    settings = settings or RegionSettings()
    check_settings(settings)
    keep_freed_memory()
    known = load_network(start).network if is_region_network(start) else read_start(start)
    if isinstance(known, RegionNetwork):
        settings = with_shape_of(settings, known)
    limit = settings.data.limit or None
    fit, dev = (list(load_examples(data, split)[:limit]) for split in (settings.data.fit, "dev"))
    more = [] if boxes is None else learnable_photos(boxes)[:limit]
    _require_photos(data, {settings.data.fit: fit, "dev": dev})
    task, plan = _build(fit, dev, more, known, settings)
    identity = {
        FORMAT_KEY: RUN_FORMAT,
        **asdict(settings),
        "photos": hashlib.sha256("\n".join(example.image for example in fit + dev).encode()).hexdigest(),
        "start": hashlib.sha256(start.read_bytes()).hexdigest(),
        "boxes": boxes and hashlib.sha256(boxes.read_bytes()).hexdigest(),
    }
    processes = OneProcess(torch.device("cpu"))
    with claimed(out, identity, processes, settings):
        if not (out / WEIGHTS).exists():
            train(task, plan, out, processes)
    return out / WEIGHTS


def _require_photos(data: Path, parts: Mapping[str, Sequence[Example]]) -> None:
    """Refuse to begin what would stop in the middle."""
    for name, part in parts.items():
        if not any(phrase.boxes for example in part for caption in example.captions for phrase in caption.phrases):
            raise DataError(f"{data}: no phrase with a box in its part {name!r}; there is nothing to learn from")
        for example in part:
            photo_path(example)


def _build(
    fit: Sequence[Example],
    dev: Sequence[Example],
    more: Sequence[ClassPhoto],
    known: RegionNetwork | Start,
    settings: RegionSettings,
) -> tuple[RegionTask, Plan]:
    """The task and how it is trained."""
    options = settings.train
    data = read_data(fit, more, settings.data.rare_word)
    torch.manual_seed(options.seed)
    if isinstance(known, Start):  # anchors are for the boxes that captions name
        start, network = known, new_network(data.targets[: len(fit)], **asdict(settings.network), shape=known.shape)
    else:
        start, network = None, known
    model = make_training_model(
        network,
        len(data.vocabulary),
        start,
        frozen_stages=options.frozen_stages,
        drop_path=options.drop_path,
        unmarked_rivals=settings.data.unmarked_rivals,
    )
    head_epochs = min(options.head_epochs, options.epochs - 1)
    batches = RegionBatches(
        data.photos,
        data.targets,
        data.vocabulary,
        settings.network.size,
        options.batch,
        options.seed,
        partial_weight=settings.data.partial_weight,
    )
    steps, trunk_start = (epochs * batches.per_epoch for epochs in (options.epochs, head_epochs))
    task = RegionTask(
        model,
        batches,
        fit[: min(_WATCHED, len(dev))],
        dev[:_WATCHED],
        steps,
        trunk_start,
        options.rate,
        options.trunk_rate,
        precision=options.precision,
        fine_tune=options.fine_tune if start is None else None,
    )
    plan = Plan(
        steps,
        evaluate_every=batches.per_epoch,
        save_every=options.save_every,
        seed=options.seed,
        weight_decay=options.weight_decay,
        clip=options.clip,
        clip_by="l2",
        ema=partial(late_ema_decay, options.ema, trunk_start) if options.ema else None,
        workers=1,
    )
    return task, plan


def late_ema_decay(limit: float, start: int, step: int) -> float:
    """The decay of an EMA that begins at ``start``: weights count in proportion to their step, up to ``limit``."""
    steps = max(0, step - start)
    return min(limit, steps / (2 + steps))


@dataclass(eq=False)
class RegionTask(Task[RegionBatchPart]):
    """A region network that learns to propose boxes, and to know them by the words and phrases that name them."""

    losses = ("loss", *LOSS_WEIGHTS)
    scores = dict.fromkeys(("recall@10", "recall@36", "recall@100", "accuracy", "fit accuracy"), 1.0)

    model: RegionTrainingModel
    batches: RegionBatches
    fit: Sequence[Example]  # a few, to see how far it overfits
    dev: Sequence[Example]
    steps: int
    trunk_start: int  # the step from which the trunk learns
    rate: float
    trunk_rate: float
    precision: str
    fine_tune: float | None = None  # the share of the rates that a network to start from learns at; None: a new one

    def groups(self) -> list[ParameterGroup]:
        """Words, the heads, and each tensor of the trunk at a rate in proportion to its root mean square.

        The heads of a new network learn from the first step on, those of a network that is fine-tuned with its trunk.
        """
        words, heads, trunk = self.model.parts()
        share, start = (1.0, 0) if self.fine_tune is None else (self.fine_tune, self.trunk_start)
        rms = [float(weight.detach().square().mean().sqrt()) for weight in trunk]
        return [
            ParameterGroup(words, partial(self._rate, self.rate, 0)),
            ParameterGroup(heads, partial(self._rate, share * self.rate, start), start),
            *(
                ParameterGroup(
                    [weight], partial(self._rate, share * self.trunk_rate * size, self.trunk_start), self.trunk_start
                )
                for weight, size in zip(trunk, rms, strict=True)
            ),
        ]

    def _rate(self, peak: float, start: int, step: int) -> float:
        done = (step + 0.5 - start) / (self.steps - start)
        return peak * one_cycle(max(done, 0.0), _WARM_UP, _LAST_RATE)

    def loss(self, part: RegionBatchPart, counts: Tensor) -> Tensor:
        seen, targets = part
        trunk = self.model.network.trunk
        trunk.train(any(weight.requires_grad for weight in trunk.parameters()))  # no drop path before it learns
        with self._autocast():
            losses = self.model(trunk(as_input(seen)), targets)
        total = sum(weight * losses[name] for name, weight in LOSS_WEIGHTS.items())
        return torch.stack([total, *(losses[name] for name in LOSS_WEIGHTS)])

    def _autocast(self) -> torch.autocast:
        """Matrix products in bfloat16, if so set: half of the time where a processor knows it."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16")

    def evaluate(self, is_last: bool) -> dict[str, float]:
        found = score(self.model, self.dev, self.batches.vocabulary)
        known = score(self.model, self.fit, self.batches.vocabulary)
        return found | {"fit accuracy": known["accuracy"]}

    def finish(self, folder: Path) -> None:
        save_network(folder / WEIGHTS, self.model.network)


@torch.inference_mode()
def score(model: RegionTrainingModel, examples: Sequence[Example], vocabulary: Vocabulary) -> dict[str, float]:
    """Recall of the regions for phrases of caption 0, and how often a bag of words finds its box, in percent."""
    extractor = RegionExtractor(model.network, "")
    regions = {
        example.image: extractor.regions(example.image, read_photo(photo_path(example), extractor.size))
        for example in examples
    }
    gold = collect_gold(examples, "gold")
    ranks = region_hits(gold, regions).ranks["merged box"][gold.caption_index == 0]
    found = {f"recall@{count}": 100 * float((ranks < count).double().mean()) for count in (10, 36, 100)}
    return found | {"accuracy": 100 * _phrase_accuracy(model, examples, regions, vocabulary)}


def _phrase_accuracy(
    model: RegionTrainingModel, examples: Sequence[Example], regions: Mapping[str, Regions], vocabulary: Vocabulary
) -> float:
    right = []
    for example in examples:
        batch = stack_targets([read_targets(example, vocabulary)], len(vocabulary))
        sides = torch.tensor([example.width, example.height] * 2)
        phrases = model.phrase(batch.phrase_words, batch.phrase_starts)  # (P, D)
        found = regions[example.image]
        best = (phrases @ torch.from_numpy(found.features).float().T).argmax(-1)  # (P,)
        overlap = pairwise_iou_xyxy(batch.named[0], torch.from_numpy(found.boxes) / sides)  # (G, K)
        right.append(overlap[batch.phrase_box, best] >= NEAR)
    return float(torch.cat(right).double().mean())
