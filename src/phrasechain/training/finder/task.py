"""Training the phrase finder: one command from marked-up captions to the weights in the package.

A run folder holds ``config.json``, ``metrics.jsonl``, ``checkpoint.safetensors`` for going on, and
``finder.safetensors``, the weights. What a step does follows from the seed and its number alone, so that a run that was
killed goes on as if it had not been.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from phrasechain.core.errors import DataError
from phrasechain.core.files import write_atomically
from phrasechain.core.progress import progress_bar, track
from phrasechain.core.schema import NOT_VISUAL, Caption
from phrasechain.core.tensors import file_errors, read_tensors
from phrasechain.data.dataset import open_dataset
from phrasechain.data.sentences import read_sentences
from phrasechain.phrases.finder import PhraseFinder, phrases_of
from phrasechain.text.tokens import tokenise
from phrasechain.text.vectors import WordVectors, read_vectors
from phrasechain.text.vocabulary import build_vocabulary
from phrasechain.training.finder.sentences import (
    MarkedText,
    TaggedSentence,
    as_stored,
    as_written,
    join,
    tag_sentence,
    vary,
)
from phrasechain.training.finder.variety import unlike_captions
from phrasechain.training.regions.settings import rate_at
from phrasechain.training.run_folder import FORMAT_KEY, claimed, log, truncate_metrics

CHECKPOINT = "checkpoint.safetensors"
WEIGHTS = "finder.safetensors"
#: Ways in which held-out captions are written when the finder is scored.
WRITINGS: dict[str, Callable[[Caption], MarkedText]] = {"stored": as_stored, "written": as_written}
HELD_OUT = 5000  # images
_KIND = "phrasechain finder training 1"
_RESERVED = ("val", "dev", "test")  # splits of a dataset that are never learnt from
_CLIP = 5.0
_SIZES = ("word_dimension", "buckets", "ngram_dimension", "hidden", "layers")
_POOL = 50  # batches whose captions are sorted by length together
_WATCHED = 1000  # held-out captions, from all over the file, that are scored after each epoch
_SCORED = 128  # captions that are labelled at once


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that a run depends on, besides the files."""

    word_dimension: int = 64
    buckets: int = 8192
    ngram_dimension: int = 32
    hidden: int = 160
    layers: int = 1
    dropout: float = 0.3
    word_dropout: float = 0.03
    rare_word: int = 3  # words that occur less often are left to their n-grams
    unlike: float = 0.2  # the share of captions that are changed to be unlike captions
    paragraphs: float = 0.06  # the share of batches whose captions are joined by fours
    epochs: int = 1
    batch: int = 64
    rate: float = 3e-3
    weight_decay: float = 0.01
    average: float = 0.999  # how slowly the averaged weights follow
    seed: int = 0
    checkpoint_steps: int = 500


class _Batches:
    """The sentences of every step, by its number."""

    def __init__(self, sentences: Sequence[Sequence[TaggedSentence]], recipe: Recipe) -> None:
        self.sentences, self.recipe = sentences, recipe
        self.per_epoch = -(-len(sentences) // recipe.batch)
        self._order = lru_cache(maxsize=1)(self._of_epoch)

    def __getitem__(self, step: int) -> list[TaggedSentence]:
        """Each in some way of writing; now and then all of them in paragraphs."""
        epoch, place = divmod(step, self.per_epoch)
        rng = np.random.default_rng([self.recipe.seed, 1, step])
        mine = (self.sentences[number] for number in self._order(epoch)[place])
        sentences = [self._vary(ways[int(rng.integers(len(ways)))], rng) for ways in mine]
        if rng.random() < self.recipe.paragraphs:
            return [join(sentences[first : first + 4]) for first in range(0, len(sentences), 4)]
        return sentences

    def _vary(self, sentence: TaggedSentence, rng: np.random.Generator) -> TaggedSentence:
        unlike = rng.random() < self.recipe.unlike
        return vary(unlike_captions(sentence, rng) if unlike else sentence, rng)

    def _of_epoch(self, epoch: int) -> list[list[int]]:
        """All captions in an order of this epoch's own, those of a batch of like length."""
        rng = np.random.default_rng([self.recipe.seed, 0, epoch])
        order, batch = rng.permutation(len(self.sentences)).tolist(), self.recipe.batch
        for start in range(0, len(order), _POOL * batch):
            pool = slice(start, start + _POOL * batch)
            order[pool] = sorted(order[pool], key=lambda number: len(self.sentences[number][0].tokens))
        batches = [order[start : start + batch] for start in range(0, len(order), batch)]
        return [batches[place] for place in rng.permutation(len(batches))]


class _Run:
    """The state of a training run, and the files that keep it."""

    def __init__(self, folder: Path, finder: PhraseFinder, recipe: Recipe, steps: int) -> None:
        self.folder, self.finder, self.recipe, self.steps = folder, finder.train(), recipe, steps
        self.weights = dict(finder.named_parameters())
        self.optimizer = torch.optim.AdamW(self.weights.values(), weight_decay=recipe.weight_decay)
        self.averaged = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.step = 0

    def learn(self, sentences: Sequence[TaggedSentence]) -> float:
        """One step; returns −log p of the labels, per token."""
        torch.manual_seed(int(np.random.SeedSequence([self.recipe.seed, 2, self.step]).generate_state(1)[0]))
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate * rate_at(self.step / self.steps)
        losses = self.finder([sentence.tokens for sentence in sentences]).nll(_padded_labels(sentences))  # (B,)
        self.optimizer.zero_grad()
        (losses.sum() / self.recipe.batch).backward()
        nn.utils.clip_grad_norm_(self.weights.values(), _CLIP)
        self.optimizer.step()
        self.step += 1
        follow = min(self.recipe.average, (1 + self.step) / (10 + self.step))
        for name, weight in self.weights.items():
            self.averaged[name].lerp_(weight.detach(), 1 - follow)
        return float(losses.detach().sum()) / sum(len(sentence.labels) for sentence in sentences)

    @torch.no_grad()
    def averaged_finder(self) -> PhraseFinder:
        """A copy with the averaged weights, rounded as they are in a file, for inference."""
        finder = copy.deepcopy(self.finder).eval()
        for name, weight in finder.named_parameters():
            weight.copy_(self.averaged[name].half())
        return finder

    def save(self) -> None:
        tensors = {f"weights.{name}": weight.detach() for name, weight in self.weights.items()}
        tensors |= {f"averaged.{name}": weight for name, weight in self.averaged.items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
        write_atomically(self.folder / CHECKPOINT, save(tensors, {"step": str(self.step)}))

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        what, remedy = "checkpoint", "remove it to begin anew"
        file = read_tensors(path, what, finite=False, remedy=remedy)
        with file_errors(path, what, remedy):
            self.step = int(file.metadata["step"])
            self._take(file.tensors)

    @torch.no_grad()
    def _take(self, tensors: Mapping[str, Tensor]) -> None:
        moments: dict[int, dict[str, Tensor]] = {}
        for number, (name, weight) in enumerate(self.weights.items()):
            weight.copy_(tensors[f"weights.{name}"])
            self.averaged[name].copy_(tensors[f"averaged.{name}"])
            moments[number] = {
                kind: tensors[f"optimizer.{number}.{kind}"] for kind in ("step", "exp_avg", "exp_avg_sq")
            }
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": moments})


def train_finder(
    sentences: Path,
    out: Path,
    data: Path | None = None,
    vectors: Path | None = None,
    recipe: Recipe | None = None,
    limit: int | None = None,
) -> Path:
    """Learn from marked-up captions, score on images that were held out, and write the weights; return their path.

    Args:
        sentences: lines of image, caption index and marked-up caption; see ``data/sentences.py``.
        out: the run's folder, new or to go on with. A run that is finished is left as it is.
        data: a dataset whose ``val``, ``dev`` and ``test`` are held out, besides others up to 5,000 images in all.
        vectors: word vectors to begin with, in the format of GloVe; their words join the vocabulary.
        limit: only the first captions of the file, for trying things out.
    """
    recipe = recipe or Recipe()
    _check(recipe)
    found = read_sentences(sentences, limit)
    given = None if vectors is None else read_vectors(vectors)
    kept_back = held_out((sentence.image for sentence in found), _reserved(data))
    learnt = [sentence.caption for sentence in found if sentence.image not in kept_back]
    others = [sentence.caption for sentence in found if sentence.image in kept_back]
    if not learnt or not others:
        raise DataError(f"{sentences}: {len(found):,} captions are too few: some are learnt from, some held out")
    files = {"captions": _file_digest(sentences), "vectors": vectors and _file_digest(vectors)}
    config = {FORMAT_KEY: _KIND, "limit": limit, "held out": _digest(sorted(kept_back)), **files, **asdict(recipe)}
    weights = out / WEIGHTS
    with claimed(out, config):
        if not weights.exists():
            tagged = [_ways(caption) for caption in track(learnt, len(learnt), "labels")]
            finder = _new_finder(tagged, given, recipe)
            _learn(out, finder, _Batches(tagged, recipe), others).save(weights)
    return weights


def _learn(out: Path, finder: PhraseFinder, batches: _Batches, held_out: Sequence[Caption]) -> PhraseFinder:
    """All steps that are left, with checkpoints and scores on the way; returns what has been learnt."""
    run = _Run(out, finder, batches.recipe, batches.recipe.epochs * batches.per_epoch)
    run.resume()
    truncate_metrics(out, run.step)
    with progress_bar() as bar:
        shown = bar.add_task("training", total=run.steps, completed=run.step)
        while run.step < run.steps:
            loss = run.learn(batches[run.step])
            bar.update(shown, advance=1, description=f"loss {loss:.3f}")
            log(out, {"step": run.step, "loss": loss})
            if run.step % batches.per_epoch == 0:
                scored = held_out if run.step == run.steps else held_out[:: -(-len(held_out) // _WATCHED)]
                log(out, {"step": run.step, "captions": len(scored), **score(run.averaged_finder(), scored)})
            if run.step % run.recipe.checkpoint_steps == 0 or run.step == run.steps:
                run.save()
    return run.averaged_finder()


def _check(recipe: Recipe) -> None:
    if min(recipe.epochs, recipe.batch, recipe.checkpoint_steps, *(getattr(recipe, name) for name in _SIZES)) < 1:
        raise DataError("epochs, batch, checkpoint steps and all sizes of the finder are at least 1")
    shares = (recipe.dropout, recipe.word_dropout, recipe.unlike, recipe.paragraphs, recipe.average)
    if not all(0 <= share < 1 for share in shares):
        raise DataError("dropout, word dropout, unlike, paragraphs and average are from 0 to below 1")


def held_out(images: Iterable[str], reserved: Collection[str] = (), count: int = HELD_OUT) -> set[str]:
    """The reserved images and, up to ``count`` in all or a third of them, others by a hash of their id, for ever."""
    known = dict.fromkeys(images)
    chosen = set(reserved) & known.keys()
    rest = sorted(known.keys() - chosen, key=lambda image: _digest([image]))
    return chosen | set(rest[: max(0, min(count, len(known) // 3) - len(chosen))])


def score(finder: PhraseFinder, captions: Sequence[Caption]) -> dict[str, float]:
    """For each way of writing, in percent: F1 of exact spans, and how often a right span has one of its gold types."""
    return {
        f"{writing} {name}": value
        for writing, mark in WRITINGS.items()
        for name, value in _score(finder, [mark(caption) for caption in captions]).items()
    }


def _score(finder: PhraseFinder, texts: Sequence[MarkedText]) -> dict[str, float]:
    order = sorted(texts, key=lambda marked: len(marked.text))
    found = right = gold = same_type = 0
    for start in range(0, len(order), _SCORED):
        some = order[start : start + _SCORED]
        for marked, guessed in zip(some, _find_all(finder, [marked.text for marked in some]), strict=True):
            known = {(first, end): types for first, end, types in marked.phrases if NOT_VISUAL not in types}
            hits = guessed.keys() & known.keys()
            found, gold, right = found + len(guessed), gold + len(known), right + len(hits)
            same_type += sum(guessed[span] in known[span] for span in hits)
    return {"F1": 200 * right / max(1, found + gold), "category": 100 * same_type / max(1, right)}


def _find_all(finder: PhraseFinder, texts: Sequence[str]) -> list[dict[tuple[int, int], str]]:
    """The visual phrases of each text: their spans in code points, and categories."""
    tokens = [tokenise(text) for text in texts]
    labels = finder.label([[token.text for token in mine] for mine in tokens])
    return [
        {(mine[first].start, mine[end - 1].end): name for first, end, name in phrases_of(row) if name != NOT_VISUAL}
        for mine, row in zip(tokens, labels, strict=True)
    ]


def _new_finder(
    sentences: Sequence[Sequence[TaggedSentence]], vectors: WordVectors | None, recipe: Recipe
) -> PhraseFinder:
    words = build_vocabulary((ways[0].tokens for ways in sentences), recipe.rare_word)
    if vectors is not None:
        words = tuple(dict.fromkeys([*words, *vectors.words]))
    torch.manual_seed(recipe.seed)
    sizes = {name: getattr(recipe, name) for name in _SIZES}
    finder = PhraseFinder(words, **sizes, dropout=recipe.dropout, word_dropout=recipe.word_dropout)
    if vectors is not None:
        finder.begin_with(vectors)
    return finder


def _ways(caption: Caption) -> tuple[TaggedSentence, ...]:
    """The sentence of a caption as stored and as written: one where both have the same tokens."""
    return tuple(dict.fromkeys(tag_sentence(mark(caption)) for mark in WRITINGS.values()))


def _padded_labels(sentences: Sequence[TaggedSentence]) -> Tensor:
    """(B, L) int64."""
    return nn.utils.rnn.pad_sequence([torch.tensor(sentence.labels) for sentence in sentences], batch_first=True)


def _reserved(data: Path | None) -> set[str]:
    if data is None:
        return set()
    dataset = open_dataset(data)
    return {image for split in _RESERVED if split in dataset.splits for image in dataset.ids(split)}


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode("utf-8", "backslashreplace")).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
