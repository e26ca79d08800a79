"""Tuning a region network and a grounder together, so that what the chain gets wrong reaches the pixels.

Both begin as they were trained one after the other. A step looks at random views of a few photos, finds their regions
as one would later, and adds the loss of the chains to those that the region network was taught by. Batch norms keep
their statistics. Weights are averaged over all steps, and the averages are what is scored and written.

A run folder holds ``config.json``, ``metrics.jsonl``, ``checkpoint.safetensors`` for going on and, in the end,
``regions.safetensors`` and the checkpoint of the grounder, as a run of ``phrasechain train`` has it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from phrasechain.averages import Averages
from phrasechain.checkpoint import (
    WEIGHTS,
    Card,
    Checkpoint,
    Pointers,
    Source,
    load_checkpoint,
    point_to,
    save_checkpoint,
    step_folder,
)
from phrasechain.data.batch import collate
from phrasechain.data.dataset import load_examples
from phrasechain.data.regimes import chain_phrases, is_scored
from phrasechain.errors import DataError
from phrasechain.evaluate_run import count_right
from phrasechain.losses import loss_terms
from phrasechain.memory import keep_freed_memory
from phrasechain.model import GroundingModel
from phrasechain.progress import progress_bar
from phrasechain.region_recipe import rate_at
from phrasechain.region_start import keep_early_stages
from phrasechain.resume import CHECKPOINT, load_state, save_state
from phrasechain.run_folder import FORMAT, claimed, forget_after, log, read_metrics
from phrasechain.schema import Example, Regions
from phrasechain.train_data import annotation_digest
from phrasechain.train_regions import (
    file_digest,
    has_gone_on,
    photo_path,
    read_rare_word,
    require_same_photos,
    trunk_groups,
)
from phrasechain.vision.augment import paint, random_view, see_example
from phrasechain.vision.extractor import RegionExtractor, as_input, find
from phrasechain.vision.network import Dense, Maps, RegionNetwork
from phrasechain.vision.pixels import read_photo, read_rgb
from phrasechain.vision.teacher import WEIGHTS as TAUGHT
from phrasechain.vision.teacher import LessonBatch, Teacher, stack_lessons
from phrasechain.vision.weights import load_network, save_network
from phrasechain.vision.words import Vocabulary, build_vocabulary, read_lesson

REGIONS = "regions.safetensors"
RUN_FORMAT = "phrasechain tuning 2"
_CLIP = 10.0
_SCORE = "dev accuracy"
_WATCHED = 300  # photos of dev that are scored after each epoch


@dataclass(frozen=True, slots=True)
class Tuning:
    """Everything that a run depends on, besides the data and the two networks that it starts from."""

    epochs: int = 3
    batch: int = 16
    rate: float = 5e-4  # of the region network's heads
    trunk_rate: float = 7e-4  # as a share of each weight tensor's size
    grounder_rate: float = 3e-4
    weight_decay: float = 0.05
    grounder_decay: float = 0.01
    gamma: float = 10.0  # how much the grounder's box loss counts
    unboxed: float = 0.5  # share of the visual phrases without a box that are kept in a chain
    frozen_stages: int = 3  # of the trunk, with its first convolution
    seed: int = 0
    checkpoint_steps: int = 100


class Together(nn.Module):
    """A region network with what teaches it, and a grounder that sees what it finds."""

    def __init__(self, teacher: Teacher, grounder: GroundingModel) -> None:
        super().__init__()
        self.teacher, self.grounder = teacher, grounder

    def train(self, mode: bool = True) -> Together:
        super().train(mode)
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eval()
        return self

    def forward(self, pixels: Tensor, lessons: LessonBatch, examples: Sequence[Example]) -> dict[str, Tensor]:
        """The losses by name, from B views (B, 3, S, S), what they teach, and the captions about them."""
        network = self.teacher.network
        maps, dense = network(pixels)
        losses = self.teacher.losses(maps, dense, lessons)
        network.describe.dropout.eval()  # the grounder is to see features as they will be
        regions = list(_find_regions(network, maps, dense))  # B of (K, 4), (K,)
        boxes = nn.utils.rnn.pad_sequence([boxes for boxes, _ in regions], batch_first=True)  # (B, K, 4)
        features = network.describe(maps, boxes).features  # (B, K, D)
        network.describe.dropout.train(self.training)
        return losses | self._chain_losses(examples, regions, features)

    def _chain_losses(
        self, examples: Sequence[Example], regions: Sequence[tuple[Tensor, Tensor]], features: Tensor
    ) -> dict[str, Tensor]:
        found = {
            example.image: Regions(
                example.image, 1, 1, boxes.numpy(), np.zeros((len(boxes), 1), np.float32), sure.numpy()
            )
            for example, (boxes, sure) in zip(examples, regions, strict=True)
        }
        items = [(example, caption) for example in examples for caption in example.captions]
        if not any(chain_phrases(caption, "all") for _, caption in items):  # of so few photos may nothing be in view
            return dict.fromkeys(("grounding", "boxes"), 0 * features.sum())
        batch = collate(items, found, "all")
        place = {example.image: number for number, example in enumerate(examples)}
        rows = torch.tensor([place[image] for image in batch.images])
        batch = replace(batch, features=features[rows, : batch.boxes.shape[1]])  # for the zeros: these have a gradient
        scores, *others = self.grounder.opinions(batch)
        terms = loss_terms(scores, batch, others)
        return {
            "grounding": terms.grounding / terms.count.clamp(min=1),
            "boxes": terms.boxes / terms.pairs.clamp(min=1),
        }


@torch.no_grad()
def _find_regions(network: RegionNetwork, maps: Maps, dense: Dense) -> Iterator[tuple[Tensor, Tensor]]:
    """Boxes (K, 4) and how sure they are (K,), photo by photo."""
    for number in range(len(dense.score)):
        one = slice(number, number + 1)
        chosen, score = find(
            network.describe, Maps(*(each[one] for each in maps)), Dense(*(each[one] for each in dense))
        )
        yield chosen, score.sigmoid()


class _Run:
    """The state of a run, and the file that keeps it."""

    def __init__(self, folder: Path, both: Together, recipe: Tuning, steps: int) -> None:
        self.folder, self.both, self.recipe, self.steps = folder, both, recipe, steps
        words, heads, trunk = both.teacher.parts()
        grounder = [weight for weight in both.grounder.parameters() if weight.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [*heads, *words], "peak": recipe.rate},
            {"params": grounder, "peak": recipe.grounder_rate, "weight_decay": recipe.grounder_decay},
            *trunk_groups(trunk, recipe.trunk_rate),
        ]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=recipe.weight_decay, fused=True)
        self.averages = Averages(both)
        self.weights = TAUGHT | {"grounding": 1.0, "boxes": recipe.gamma}
        self.step = 0

    def learn(self, pixels: Tensor, lessons: LessonBatch, examples: Sequence[Example]) -> dict[str, float]:
        """One step on pixels (B, S, S, 3); returns the losses by name."""
        torch.manual_seed(int(np.random.SeedSequence([self.recipe.seed, 2, self.step]).generate_state(1)[0]))
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * rate_at(self.step / self.steps)
        losses: dict[str, Tensor] = self.both(as_input(pixels), lessons, examples)
        self.optimizer.zero_grad()
        sum(weight * losses[name] for name, weight in self.weights.items()).backward()  # type: ignore[union-attr]
        for part in (self.both.teacher, self.both.grounder):
            nn.utils.clip_grad_norm_(part.parameters(), _CLIP)
        self.optimizer.step()
        self.step += 1
        self.averages.follow(1 / self.step)  # the mean over all steps so far
        return {name: float(loss.detach()) for name, loss in losses.items()}

    @contextmanager
    def average(self) -> Iterator[Together]:
        """Both networks with averaged weights, for inference; back to training afterwards."""
        with self.averages.in_place():
            self.both.eval()
            try:
                yield self.both
            finally:
                self.both.train()

    def save(self) -> None:
        save_state(self.folder, self.step, self.both, self.optimizer, self.averages.values)

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if (self.folder / CHECKPOINT).exists():
            self.step, averaged = load_state(self.folder, self.both, self.optimizer)
            self.averages.load(averaged)


def tune(
    data: Path, regions: Path, run: Path, out: Path, recipe: Tuning | None = None, limit: int | None = None
) -> Path:
    """Tune the network of a run of ``train-regions`` with the grounder of a run of ``train``; return the new run.

    Learns from the part ``fit`` of the data's train split and watches ``dev``. A finished run is left as it is.
    """
    recipe = recipe or Tuning()
    keep_freed_memory()
    fit, dev = (list(load_examples(data, split)[:limit]) for split in ("fit", "dev"))
    require_same_photos(regions, data, [*fit, *dev])
    for example in [*fit, *dev]:
        photo_path(example)  # refuse to begin what would stop in the middle
    vocabulary = build_vocabulary(fit, read_rare_word(regions))
    teacher, sha256 = _read_teacher(regions, vocabulary, recipe)
    grounder = load_checkpoint(run)
    if grounder.card.regions.weights_sha256 != sha256:
        raise DataError(f"{run}: trained with other regions than those of {regions}; give the run on their features")
    identity = {
        FORMAT: RUN_FORMAT,
        **asdict(recipe),
        "regions": sha256,
        "grounder": file_digest(grounder.folder / WEIGHTS),
        "annotations": annotation_digest([*fit, *dev]),
    }
    with claimed(out, identity):
        if not (out / REGIONS).exists():
            views = _Views(fit, vocabulary, recipe, teacher.network.size)
            both = Together(teacher, grounder.model).train()
            state = _Run(out, both, recipe, recipe.epochs * views.per_epoch)
            state.resume()
            forget_after(out, state.step)
            accuracy = _learn(state, views, dev[:_WATCHED])
            _write(state, grounder, accuracy)
    return out


def _read_teacher(folder: Path, vocabulary: Vocabulary, recipe: Tuning) -> tuple[Teacher, str]:
    """The network of a finished run of ``train-regions``, with what taught it, and the hash of its weights."""
    loaded = load_network(folder / REGIONS)
    known = loaded.network
    network = known if has_gone_on(folder) else RegionNetwork(known.dimension, known.sides, known.size)
    teacher = Teacher(network, len(vocabulary))
    _, averaged = load_state(folder, teacher)
    teacher.load_state_dict(averaged, strict=False)
    keep_early_stages(network.trunk, recipe.frozen_stages)
    return teacher.to(memory_format=torch.channels_last), loaded.sha256  # type: ignore[call-overload]


def _learn(run: _Run, views: _Views, dev: Sequence[Example]) -> float:
    """All steps that are left, with a checkpoint now and then and a score on ``dev`` after each epoch; the last one."""
    loader = DataLoader(views, batch_size=None, sampler=range(run.step, run.steps), num_workers=1, prefetch_factor=3)
    accuracy = max(
        [(line["step"], line[_SCORE]) for line in read_metrics(run.folder) if _SCORE in line], default=(0, 0.0)
    )[1]
    with progress_bar() as bar:
        shown = bar.add_task("tuning", total=run.steps, completed=run.step)
        for seen in loader:
            if isinstance(seen, DataError):
                raise seen
            losses = run.learn(*seen)
            log(run.folder, {"step": run.step, **losses})
            said = f"grounding {losses['grounding']:.3f}, on dev {100 * accuracy:.1f} %"
            bar.update(shown, advance=1, description=said)
            if run.step % views.per_epoch == 0:
                with run.average() as both:
                    accuracy, first = _score(both, dev)
                log(run.folder, {"step": run.step, _SCORE: accuracy, f"{_SCORE}, caption 0": first})
            if run.step % run.recipe.checkpoint_steps == 0 or run.step == run.steps:
                run.save()
    return accuracy


@torch.inference_mode()
def _score(both: Together, examples: Sequence[Example]) -> tuple[float, float]:
    """The share of phrases that are found, by consensus: of all captions, and of caption 0."""
    extractor = RegionExtractor(both.teacher.network, "")
    regions = {
        example.image: extractor.regions(example.image, read_photo(photo_path(example), extractor.size))
        for example in examples
    }
    (first_right, first), (right, phrases) = count_right(both.grounder, examples, regions, "consensus").tolist()
    return right / max(phrases, 1), first_right / max(first, 1)


def _write(run: _Run, grounder: Checkpoint, accuracy: float) -> None:
    """Both networks, with averaged weights; the regions last, since they tell that the run is finished."""
    with run.average() as both:
        new = run.folder / f".{REGIONS}"
        save_network(new, both.teacher.network)
        source = Source(both.teacher.network.dimension, grounder.card.regions.extractor, load_network(new).sha256)
        card = Card(
            model=grounder.card.model,
            regions=source,
            decode=grounder.card.decode,
            step=run.step,
            score=accuracy,
            trained={**(grounder.card.trained or {}), "tuning": asdict(run.recipe)},
        )
        name = step_folder(run.step)
        shutil.rmtree(run.folder / name, ignore_errors=True)  # of a run that was killed here
        save_checkpoint(run.folder / name, both.grounder, both.grounder.state_dict(), card)
        shutil.copyfile(new, run.folder / name / REGIONS)  # where a grounder looks for its own
        point_to(run.folder, Pointers(name, name, is_finished=True))
        new.replace(run.folder / REGIONS)


class _Views(Dataset[Any]):
    """The views of every step, by its number; an error instead where a photo is broken."""

    def __init__(self, examples: Sequence[Example], vocabulary: Vocabulary, recipe: Tuning, size: int) -> None:
        self.examples, self.vocabulary, self.recipe, self.size = examples, vocabulary, recipe, size
        self.per_epoch = max(1, len(examples) // recipe.batch)

    def __getitem__(self, step: int) -> tuple[Tensor, LessonBatch, list[Example]] | DataError:
        recipe = self.recipe
        epoch, place = divmod(step, self.per_epoch)
        order = np.random.default_rng([recipe.seed, 0, epoch]).permutation(len(self.examples))
        chance = np.random.default_rng([recipe.seed, 1, step])
        pixels, examples, lessons = [], [], []
        try:
            for number in order[place * recipe.batch : (place + 1) * recipe.batch].tolist():
                view = random_view(chance)
                pixels.append(paint(read_rgb(photo_path(self.examples[number])), view, self.size))
                example = see_example(self.examples[number], view)
                lessons.append(read_lesson(example, self.vocabulary))
                examples.append(self._thin(example, chance))
        except DataError as error:
            return error
        return torch.from_numpy(np.stack(pixels)), stack_lessons(lessons, len(self.vocabulary)), examples

    def _thin(self, example: Example, chance: np.random.Generator) -> Example:
        """The example with a share of the phrases whose box nobody knows."""
        captions = (
            replace(
                caption,
                phrases=tuple(
                    phrase for phrase in caption.phrases if is_scored(phrase) or chance.random() < self.recipe.unboxed
                ),
            )
            for caption in example.captions
        )
        return replace(example, captions=tuple(captions))
