"""What captions teach about a photo: boxes that somebody named, and the words that name them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from phrasechain.core.boxes import union_xyxy
from phrasechain.core.schema import Example, Phrase

#: Words that say nothing about what a region looks like.
_EMPTY_WORDS = (
    "a an the of in on at to with and or for from by his her its their it he she they them him is are be this that "
    "these those some any each other another 's ' \" , . - one"
)
_EMPTY = frozenset(_EMPTY_WORDS.split())
_MIRRORED = {"left": "right", "right": "left", "Left": "Right", "Right": "Left"}


@dataclass(frozen=True)
class Vocabulary:
    """The words that a region can be told to show; a category is a word in angle brackets."""

    words: tuple[str, ...]

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        """The numbers of the known ones, each once, in rising order."""
        return sorted({self.index[word] for word in words if word in self.index})


@dataclass(frozen=True, slots=True)
class RegionTargets:
    """One photo's G named boxes, and P phrases that name one of them each."""

    boxes: Tensor  # (G, 4) in shares of the image's sides: all merged boxes, then the single ones
    words: tuple[tuple[int, ...], ...]  # of each merged box: all words that name it
    phrases: tuple[tuple[int, tuple[int, ...]], ...]  # the merged box of each phrase, and its words
    #: Of partial targets, for each merged box: the words that it is known not to show. All other words are unknown, and
    #: so is whatever has no box. ``None`` where all that captions name has its box and its words.
    absent: tuple[tuple[int, ...], ...] | None = None


def phrase_words(phrase: Phrase, tokens: Sequence[str]) -> list[str]:
    """The telling words of a phrase, in small letters, and its categories."""
    words = [token.lower() for token in tokens[phrase.first_token : phrase.end_token]]
    return telling_words(words) + [f"<{name}>" for name in phrase.categories]


def telling_words(words: Iterable[str]) -> list[str]:
    """Those that say something about what a region looks like.

    >>> telling_words(["the", "brown", "dog"])
    ['brown', 'dog']
    """
    return [word for word in words if word not in _EMPTY]


def build_region_vocabulary(examples: Iterable[Example], least: int, more: Iterable[Iterable[str]] = ()) -> Vocabulary:
    """The words of phrases with a box that occur in at least ``least`` of them, frequent ones first.

    ``more`` are the words of further phrases.
    """
    counts = Counter(
        word
        for example in examples
        for caption in example.captions
        for phrase in caption.phrases
        if phrase.boxes
        for word in phrase_words(phrase, caption.tokens)
    )
    counts.update(word for words in more for word in words)
    return Vocabulary(tuple(word for word, count in counts.most_common() if count >= least))


def read_targets(example: Example, vocabulary: Vocabulary) -> RegionTargets:
    """Collect what the captions of one photo name."""
    sizes = torch.tensor([example.width, example.height] * 2, dtype=torch.float32)
    merged: dict[tuple[float, ...], int] = {}
    single: dict[tuple[float, ...], None] = {}
    words: list[set[int]] = []
    phrases = []
    for caption in example.captions:
        for phrase in caption.phrases:
            if not phrase.boxes:
                continue
            boxes = torch.tensor(phrase.boxes, dtype=torch.float32) / sizes
            number = merged.setdefault(tuple(union_xyxy(boxes).tolist()), len(merged))
            known = vocabulary.encode(phrase_words(phrase, caption.tokens))
            if number == len(words):
                words.append(set())
            words[number].update(known)
            phrases.append((number, tuple(known)))
            if len(boxes) > 1:
                single |= dict.fromkeys(map(tuple, boxes.tolist()))
    rows = [*merged, *(box for box in single if box not in merged)]
    return RegionTargets(
        boxes=torch.tensor(rows, dtype=torch.float32).view(-1, 4),
        words=tuple(tuple(sorted(each)) for each in words),
        phrases=tuple(phrases),
    )


def mirror(target: RegionTargets, vocabulary: Vocabulary) -> RegionTargets:
    """The target of the photo seen in a mirror: boxes change sides, and so do the words left and right."""
    swap = {
        vocabulary.index[one]: vocabulary.index.get(other)
        for one, other in _MIRRORED.items()
        if one in vocabulary.index
    }

    def mirrored(words: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(new for word in words if (new := swap.get(word, word)) is not None))

    boxes = target.boxes.clone()
    boxes[:, 0], boxes[:, 2] = 1 - target.boxes[:, 2], 1 - target.boxes[:, 0]
    phrases = tuple((box, mirrored(words)) for box, words in target.phrases)
    absent = None if target.absent is None else tuple(map(mirrored, target.absent))
    return RegionTargets(boxes, tuple(map(mirrored, target.words)), phrases, absent)
