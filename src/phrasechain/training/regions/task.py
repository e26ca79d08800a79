"""Training the region network: one command from photos and captions to the weights in the package.

A run folder holds ``config.json``, ``metrics.jsonl``, ``curves.png``, ``checkpoint.safetensors`` for going on, and
``regions.safetensors``, the weights. What a step does follows from the seed and its number alone, so that a run that
was killed goes on as if it had not been.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from phrasechain.core.boxes import pairwise_iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.memory import keep_freed_memory
from phrasechain.core.progress import progress_bar
from phrasechain.core.schema import Example, Regions
from phrasechain.data.dataset import load_examples
from phrasechain.evaluation.coverage import region_hits
from phrasechain.evaluation.gold import collect_gold
from phrasechain.regions.extractor import RegionExtractor, as_input
from phrasechain.regions.pixels import read_photo, read_rgb
from phrasechain.regions.weights import load_network, save_network
from phrasechain.training.curves import draw_curves
from phrasechain.training.ema import Ema
from phrasechain.training.regions.augment import random_view, render_view, view_targets
from phrasechain.training.regions.losses import NEAR
from phrasechain.training.regions.map_cache import keep_maps, kept_maps
from phrasechain.training.regions.model import WEIGHTS, RegionTargetBatch, RegionTrainingModel, stack_targets
from phrasechain.training.regions.settings import (
    GOING_ON,
    Recipe,
    check_recipe,
    in_precision,
    is_region_network,
    learning_starts,
    rate_at,
)
from phrasechain.training.regions.start import make_training_model, new_network
from phrasechain.training.regions.vocabulary import RegionTargets, Vocabulary, build_vocabulary, mirror, read_targets
from phrasechain.training.resume import CHECKPOINT, load_state, save_state
from phrasechain.training.run_folder import claimed, log, truncate_metrics

_CLIP = 10.0
_SCORES = ("recall@10", "recall@36", "recall@100", "accuracy", "fit accuracy")  # in percent
_WATCHED = 150  # photos of dev, and of fit, that are scored after each epoch
_MAPS = "maps"  # the folder, in that of the run, for what the trunk makes of the photos


class _Run:
    """The state of a training run, and the files that keep it."""

    def __init__(self, folder: Path, teacher: RegionTrainingModel, recipe: Recipe, steps: int) -> None:
        self.folder, self.teacher, self.recipe, self.steps = folder, teacher, recipe, steps
        words, self.heads, self.tuned = teacher.parts()
        starts = learning_starts(recipe)
        self.word_steps, self.trunk_steps = (steps * epochs // recipe.epochs for epochs in starts)
        word_share, trunk_share = (epochs / recipe.epochs for epochs in starts)
        groups: list[dict[str, Any]] = [
            {"params": words, "peak": recipe.rate, "start": 0.0},
            {"params": self.heads, "peak": recipe.rate, "start": word_share},
        ]
        groups += [group | {"start": trunk_share} for group in trunk_groups(self.tuned, recipe.trunk_rate)]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=recipe.weight_decay, fused=True)
        self.averages = Ema(teacher) if recipe.average else None
        self.step = 0

    def learn(self, seen: Tensor | tuple[Tensor, ...], lessons: RegionTargetBatch) -> dict[str, float]:
        """One step, from pixels (B, S, S, 3) or from the trunk's maps of them; returns the losses by name."""
        torch.manual_seed(int(np.random.SeedSequence([self.recipe.seed, 2, self.step]).generate_state(1)[0]))
        for group in self.optimizer.param_groups:
            done = (self.step / self.steps - group["start"]) / (1 - group["start"])
            group["lr"] = group["peak"] * rate_at(done, self.recipe.last_rate)
        if self.step < self.word_steps:
            self.optimizer.param_groups[0]["lr"] = self.recipe.word_rate * rate_at(self.step / self.word_steps)
        for weights, start in ((self.heads, self.word_steps), (self.tuned, self.trunk_steps)):
            for weight in weights:
                weight.requires_grad_(self.step >= start)
        with in_precision(self.recipe.precision):
            maps = self.teacher.network.trunk(as_input(seen)) if isinstance(seen, Tensor) else [m.float() for m in seen]
            losses = self.teacher(maps, lessons)
        total = sum(weight * losses[name] for name, weight in WEIGHTS.items())
        self.optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(self.teacher.parameters(), _CLIP)
        self.optimizer.step()
        self.step += 1
        self._follow()
        return {name: float(loss.detach()) for name, loss in losses.items()}

    def _follow(self) -> None:
        """Let the averages follow the weights: once all learn, the later ones count more, in proportion to the step."""
        steps = max(0, self.step - self.trunk_steps)
        if self.averages is not None:
            self.averages.follow(1 - min(self.recipe.average, steps / (2 + steps)))

    def averaged(self) -> AbstractContextManager[None]:
        """Within it the teacher has averaged weights, where there are such."""
        return nullcontext() if self.averages is None else self.averages.in_place()

    def save(self) -> None:
        save_state(self.folder, self.step, self.teacher, self.optimizer, self.averages.values if self.averages else {})

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if (self.folder / CHECKPOINT).exists():
            self.step, averaged = load_state(self.folder, self.teacher, self.optimizer)
            if self.averages is not None:
                self.averages.load(averaged)


def train_regions(data: Path, out: Path, start: Path, recipe: Recipe | None = None, limit: int | None = None) -> Path:
    """Train on the ``fit`` part of the data's train split, watch ``dev``, and write the weights; return their path.

    ``start`` are the published ImageNet weights of EfficientNet-Lite0, or a region network (.safetensors) to go on
    from, whose shape then counts. A run that is finished is left as it is.
    """
    known = load_network(start).network if is_region_network(start) else None
    recipe = recipe or (GOING_ON if known else Recipe())
    if known is not None:
        recipe = replace(recipe, dimension=known.dimension, size=known.size, anchors=known.sides.shape[1])
    keep_freed_memory()
    weights = out / "regions.safetensors"
    check_recipe(recipe)
    fit, dev = (list(load_examples(data, split)[:limit]) for split in ("fit", "dev"))
    _require_photos(data, fit, dev)
    vocabulary = build_vocabulary(fit, recipe.rare_word)
    lessons = [read_targets(example, vocabulary) for example in fit]
    torch.manual_seed(recipe.seed)
    network = new_network(lessons, recipe) if known is None else known
    teacher = make_training_model(network, len(vocabulary), None if known else start, recipe)
    identity = {"photos": _digest(fit + dev), "start": file_digest(start), "goes on": known is not None}
    with claimed(out, asdict(recipe) | identity):
        if not weights.exists():
            batches = _Steps(fit, lessons, vocabulary, recipe, out / _MAPS)
            run = _Run(out, teacher, recipe, recipe.epochs * batches.per_epoch)
            run.resume()
            truncate_metrics(out, run.step)
            if recipe.head_epochs and run.step < run.trunk_steps:
                teacher.eval()
                trunk = in_precision(recipe.precision)(teacher.network.trunk)
                keep_maps(out / _MAPS, trunk, [photo_path(example) for example in fit], recipe.size)
                teacher.train()
            _learn(run, batches, dev[:_WATCHED])
            with run.averaged():
                save_network(weights, teacher.network)
            shutil.rmtree(out / _MAPS, ignore_errors=True)
    return weights


def _learn(run: _Run, batches: _Steps, dev: Sequence[Example]) -> None:
    """All steps that are left, with a checkpoint now and then and a score on ``dev`` and ``fit`` after each epoch."""
    loader = DataLoader(batches, batch_size=None, sampler=range(run.step, run.steps), num_workers=1, prefetch_factor=3)
    with progress_bar() as bar:
        shown = bar.add_task("training", total=run.steps, completed=run.step)
        for seen, lessons in loader:
            if isinstance(seen, str):
                raise DataError(seen)
            losses = run.learn(seen, lessons)
            bar.update(shown, advance=1, description=f"loss {sum(WEIGHTS[name] * losses[name] for name in losses):.3f}")
            log(run.folder, {"step": run.step, **losses})
            if run.step % batches.per_epoch == 0:
                with run.averaged():
                    found = score(run.teacher, dev, batches.vocabulary)
                    known = score(run.teacher, batches.examples[: len(dev)], batches.vocabulary)
                log(run.folder, {"step": run.step, **found, "fit accuracy": known["accuracy"]})
                draw_curves(run.folder, WEIGHTS, dict.fromkeys(_SCORES, 1.0))
            if run.step % run.recipe.checkpoint_steps == 0 or run.step == run.steps:
                run.save()


def _require_photos(data: Path, *parts: Sequence[Example]) -> None:
    """Refuse to begin what would stop in the middle."""
    for name, part in zip(("fit", "dev"), parts, strict=True):
        if not any(phrase.boxes for example in part for caption in example.captions for phrase in caption.phrases):
            raise DataError(f"{data}: no phrase with a box in its part {name!r}; there is nothing to learn from")
        for example in part:
            photo_path(example)


@torch.inference_mode()
def score(teacher: RegionTrainingModel, examples: Sequence[Example], vocabulary: Vocabulary) -> dict[str, float]:
    """Recall of the regions for phrases of caption 0, and how often a bag of words finds its box, in percent."""
    teacher.eval()
    extractor = RegionExtractor(teacher.network, "")
    regions = {
        example.image: extractor.regions(example.image, read_photo(photo_path(example), extractor.size))
        for example in examples
    }
    gold = collect_gold(examples, "gold")
    ranks = region_hits(gold, regions).ranks["merged box"][gold.caption_index == 0]
    found = {f"recall@{count}": 100 * float((ranks < count).double().mean()) for count in (10, 36, 100)}
    found["accuracy"] = 100 * _bag_accuracy(teacher, examples, regions, vocabulary)
    teacher.train()
    return found


def _bag_accuracy(
    teacher: RegionTrainingModel, examples: Sequence[Example], regions: Mapping[str, Regions], vocabulary: Vocabulary
) -> float:
    right = []
    for example in examples:
        batch = stack_targets([read_targets(example, vocabulary)], len(vocabulary))
        sides = torch.tensor([example.width, example.height] * 2)
        asked = teacher.phrase(batch.phrase_words, batch.phrase_starts)  # (P, D)
        mine = regions[example.image]
        best = (asked @ torch.from_numpy(mine.features).float().T).argmax(-1)  # (P,)
        overlap = pairwise_iou_xyxy(batch.named[0], torch.from_numpy(mine.boxes) / sides)  # (G, K)
        right.append(overlap[batch.phrase_box, best] >= NEAR)
    return float(torch.cat(right).double().mean())


def trunk_groups(weights: Sequence[nn.Parameter], share: float) -> list[dict[str, Any]]:
    """A group for each weight tensor, which learns at ``share`` of its size."""
    return [{"params": [weight], "peak": share * float(weight.detach().square().mean().sqrt())} for weight in weights]


class _Steps(Dataset[Any]):
    """The batch of every step, by its number; two texts, of which the first says why, where a photo is broken."""

    def __init__(
        self,
        examples: Sequence[Example],
        lessons: Sequence[RegionTargets],
        vocabulary: Vocabulary,
        recipe: Recipe,
        maps: Path,
    ) -> None:
        self.examples, self.lessons, self.vocabulary, self.recipe = examples, lessons, vocabulary, recipe
        self.maps = maps
        self.per_epoch = max(1, len(examples) // recipe.batch)

    def __getitem__(self, step: int) -> tuple[Tensor | tuple[Tensor, ...], RegionTargetBatch] | tuple[str, str]:
        recipe = self.recipe
        epoch, place = divmod(step, self.per_epoch)
        order = np.random.default_rng([recipe.seed, 0, epoch]).permutation(len(self.examples))
        numbers = order[place * recipe.batch : (place + 1) * recipe.batch].tolist()
        rng = np.random.default_rng([recipe.seed, 1, step])
        try:
            seen, lessons = self._kept(numbers, rng) if epoch < recipe.head_epochs else self._views(numbers, rng)
        except DataError as error:  # raised again where no trace of this process comes with it
            return str(error), ""
        return seen, stack_targets(lessons, len(self.vocabulary))

    def _kept(self, numbers: list[int], rng: np.random.Generator) -> tuple[tuple[Tensor, ...], list[RegionTargets]]:
        """The trunk's maps of photos, half of them mirrored."""
        mirrored = (rng.random(len(numbers)) < 0.5).tolist()
        lessons = [
            mirror(self.lessons[number], self.vocabulary) if turned else self.lessons[number]
            for number, turned in zip(numbers, mirrored, strict=True)
        ]
        return kept_maps(self.maps, list(zip(numbers, mirrored, strict=True))), lessons

    def _views(self, numbers: list[int], rng: np.random.Generator) -> tuple[Tensor, list[RegionTargets]]:
        """Random views of photos: (B, S, S, 3) uint8."""
        views, lessons = [], []
        for number in numbers:
            image = read_rgb(photo_path(self.examples[number]))
            view = random_view(rng)
            views.append(render_view(image, view, self.recipe.size))
            lessons.append(view_targets(self.lessons[number], view, self.vocabulary))
        return torch.from_numpy(np.stack(views)), lessons


def _digest(examples: Sequence[Example]) -> str:
    return hashlib.sha256("\n".join(example.image for example in examples).encode()).hexdigest()


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def photo_path(example: Example) -> Path:
    if example.path is None or not example.path.exists():
        raise DataError(f"image {example.image}: there is no photo of it ({example.path})")
    return example.path
