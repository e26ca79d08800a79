"""Training the phrase finder: one command from marked-up captions to the weights in the package.

A run folder holds what every run does (see ``run_folder``) and ``finder.safetensors``, the weights.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from phrasechain.core.distributed import OneProcess
from phrasechain.core.errors import DataError
from phrasechain.core.progress import track
from phrasechain.core.schema import NOT_VISUAL, Caption
from phrasechain.data.dataset import open_dataset
from phrasechain.data.sentences import read_sentences
from phrasechain.phrases.finder import PhraseFinder, phrases_of
from phrasechain.text.tokens import tokenise
from phrasechain.text.vectors import WordVectors, read_vectors
from phrasechain.text.vocabulary import build_vocabulary
from phrasechain.training.finder.sentences import MarkedText, TaggedSentence, as_stored, as_written, tag_sentence
from phrasechain.training.finder.settings import FinderSettings
from phrasechain.training.finder.steps import FinderBatches
from phrasechain.training.loop import train
from phrasechain.training.run_folder import FORMAT_KEY, claimed
from phrasechain.training.task import ParameterGroup, Plan, Task, ema_decay, one_cycle

WEIGHTS = "finder.safetensors"
RUN_FORMAT = "phrasechain finder run 2"
#: Ways in which held-out captions are written when the finder is scored.
WRITINGS: dict[str, Callable[[Caption], MarkedText]] = {"stored": as_stored, "written": as_written}
HELD_OUT = 5000  # images
_RESERVED = ("val", "dev", "test")  # splits of a dataset that are never learnt from
_WATCHED = 1000  # held-out captions, from all over the file, that are scored after each epoch
_SCORED = 128  # captions that are labelled at once
_WARM_UP, _LAST_RATE = 0.05, 0.01  # shares of the steps and of the peak


def train_finder(
    sentences: Path,
    out: Path,
    data: Path | None = None,
    vectors: Path | None = None,
    settings: FinderSettings | None = None,
) -> Path:
    """Learn from marked-up captions, score on images that were held out, and write the weights; return their path.

    Args:
        sentences: lines of image, caption index and marked-up caption; see ``data/sentences.py``.
        out: the run's folder, new or to resume. A run that is finished is left as it is.
        data: a dataset whose ``val``, ``dev`` and ``test`` are held out, besides others up to 5,000 images in all.
        vectors: word vectors to begin with, in the format of GloVe; their words join the vocabulary.
    """
    settings = settings or FinderSettings()
    found = read_sentences(sentences, settings.data.limit or None)
    given = None if vectors is None else read_vectors(vectors)
    kept_back = held_out((sentence.image for sentence in found), _reserved(data))
    learnt = [sentence.caption for sentence in found if sentence.image not in kept_back]
    others = [sentence.caption for sentence in found if sentence.image in kept_back]
    if not learnt or not others:
        raise DataError(f"{sentences}: {len(found):,} captions are too few: some are learnt from, some held out")
    identity = {
        FORMAT_KEY: RUN_FORMAT,
        **asdict(settings),
        "held out": _digest(sorted(kept_back)),
        "captions": _file_digest(sentences),
        "vectors": vectors and _file_digest(vectors),
    }
    processes = OneProcess(torch.device("cpu"))
    with claimed(out, identity, processes):
        if not (out / WEIGHTS).exists():
            task, plan = _build(learnt, others, given, settings)
            train(task, plan, out, processes)
    return out / WEIGHTS


def _build(
    learnt: Sequence[Caption], others: Sequence[Caption], vectors: WordVectors | None, settings: FinderSettings
) -> tuple[FinderTask, Plan]:
    """The task and how it is trained."""
    options, data = settings.train, settings.data
    tagged = [_ways(caption) for caption in track(learnt, len(learnt), "labels")]
    torch.manual_seed(options.seed)
    finder = new_finder(tagged, vectors, settings)
    batches = FinderBatches(
        tagged, batch=options.batch, unlike=data.unlike, paragraphs=data.paragraphs, seed=options.seed
    )
    steps = options.epochs * batches.per_epoch
    plan = Plan(
        steps,
        evaluate_every=batches.per_epoch,
        save_every=options.save_every,
        seed=options.seed,
        weight_decay=options.weight_decay,
        clip=options.clip,
        clip_by="l2",
        ema=ema_decay(options.ema),
    )
    return FinderTask(finder.train(), batches, others, steps, options.rate), plan


@dataclass(eq=False)
class FinderTask(Task[list[TaggedSentence]]):
    """A phrase finder that learns the labels of tokens: −log p of each sentence under its chain CRF."""

    losses = ("loss", "loss per token")
    scores: ClassVar[Mapping[str, float]] = {f"{way} {name}": 1.0 for way in WRITINGS for name in ("F1", "category")}

    model: PhraseFinder
    batches: FinderBatches
    held_out: Sequence[Caption]
    steps: int
    rate: float

    def groups(self) -> list[ParameterGroup]:
        return [ParameterGroup(list(self.model.parameters()), self._rate)]

    def _rate(self, step: int) -> float:
        return self.rate * one_cycle((step + 0.5) / self.steps, _WARM_UP, _LAST_RATE)

    def loss(self, part: list[TaggedSentence], counts: Tensor) -> Tensor:
        nll = self.model([sentence.tokens for sentence in part]).nll(_padded_labels(part)).sum()  # of (B,)
        return torch.stack([nll / self.batches.batch, nll / sum(len(sentence.labels) for sentence in part)])

    def evaluate(self, is_last: bool) -> dict[str, float]:
        """On some of the captions that were held out, at the end on all."""
        captions = self.held_out if is_last else self.held_out[:: -(-len(self.held_out) // _WATCHED)]
        return {"captions": len(captions), **score(_rounded(self.model), captions)}

    def finish(self, folder: Path) -> None:
        _rounded(self.model).save(folder / WEIGHTS)


@torch.no_grad()
def _rounded(finder: PhraseFinder) -> PhraseFinder:
    """A copy with its weights rounded as they are in a file."""
    finder = copy.deepcopy(finder)
    for weight in finder.parameters():
        weight.copy_(weight.half())
    return finder


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


def new_finder(
    sentences: Sequence[Sequence[TaggedSentence]], vectors: WordVectors | None, settings: FinderSettings
) -> PhraseFinder:
    """A finder that has learnt nothing but the words of the sentences, and given vectors."""
    words = build_vocabulary((ways[0].tokens for ways in sentences), settings.data.rare_word)
    if vectors is not None:
        words = tuple(dict.fromkeys([*words, *vectors.words]))
    finder = PhraseFinder(words, **asdict(settings.model))
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
