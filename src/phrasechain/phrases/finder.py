"""The phrase finder: the noun phrases of a caption and their categories.

A BIO tagger with a chain CRF over nine classes: the eight categories, and ``notvisual``, whose phrases are dropped:

    token → [word vector ; mean of its n-grams' vectors ; vector of its shape] → BiLSTM → emissions → ChainCRF

An I follows only a B or an I of its class. Words are looked up in lower case; n-grams stand for unknown words, and the
shape distinguishes capitals, digits and punctuation.

Axes: B captions, L tokens, U distinct tokens of the batch, K labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple, Self

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from phrasechain.chain import ChainCRF, ChainTagger
from phrasechain.core.errors import DataError
from phrasechain.core.files import write_atomically
from phrasechain.core.schema import CATEGORIES, NOT_VISUAL
from phrasechain.core.tensors import EmptyParameters, assign_weights, file_errors, read_tensors
from phrasechain.text.base import Captions, longest
from phrasechain.text.tokens import Span, Token, plain, tokenise
from phrasechain.text.vectors import WordVectors
from phrasechain.text.vocabulary import ngram_buckets

FINDER_FORMAT = "phrasechain finder 1"
_WHAT = "phrase finder"
CLASSES = (*CATEGORIES, NOT_VISUAL)
LABELS = ("O", *(f"{mark}-{name}" for name in CLASSES for mark in "BI"))
_LARGEST = 1 << 26  # bytes of a file of weights; the embedded one has 4 million at most
_MOST = {"word_dimension": 1024, "buckets": 1 << 20, "ngram_dimension": 1024, "hidden": 1024, "layers": 4}
_SHAPES = tuple(
    map(re.compile, (r"[^\w]+", r"\d+", r".*\d.*", r"[A-Z]", r"[A-Z][^a-z]*", r"[A-Z][^A-Z]*", r".*[A-Z].*"))
)
_SHAPE_DIMENSION = 8
_SPREAD = 0.5  # standard deviation of given vectors


def begin(name: str) -> int:
    """The label of the first token of a phrase of this class."""
    return 1 + 2 * CLASSES.index(name)


def inside(name: str) -> int:
    """The label of its other tokens."""
    return begin(name) + 1


@dataclass(frozen=True, slots=True)
class FoundPhrase:
    """A phrase of a text, ``text[start:end]`` in code points, and its tokens."""

    text: str
    start: int
    end: int
    category: str
    first_token: int
    end_token: int


class TokenFeatures(NamedTuple):
    """The inputs of the embeddings for a batch of captions."""

    words: Tensor  # (B, L) int64: indices in the vocabulary, 0 for unknown words
    shapes: Tensor  # (B, L) int64
    kinds: Tensor  # (B, L) int64: the index among the U distinct tokens
    buckets: Tensor  # n-grams of the distinct tokens, concatenated
    starts: Tensor  # (U,) where those of each token start
    lengths: Tensor  # (B,)


class PhraseFinder(nn.Module):
    """Finds the phrases that a text names.

    Args:
        words: the vocabulary, in lower case, each word once.
        word_dimension, ngram_dimension: of the vectors of words and of n-grams.
        buckets: rows that n-grams share by their hash.
        hidden, layers: units of one direction of the LSTM, and its layers.
        dropout: of token vectors and states, in training.
        word_dropout: the share of words that count as unknown in training.

    Example:
        >>> finder = PhraseFinder(["a", "dog"])  # untrained; see from_pretrained()
        >>> [phrase.text for phrase in finder.eval().find("")]
        []
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        word_dimension: int = 48,
        buckets: int = 8192,
        ngram_dimension: int = 32,
        hidden: int = 128,
        layers: int = 1,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.words = tuple(words)
        self.word_dropout = word_dropout
        self.shape = {
            "word_dimension": word_dimension,
            "buckets": buckets,
            "ngram_dimension": ngram_dimension,
            "hidden": hidden,
            "layers": layers,
        }
        self._places = {word: place for place, word in enumerate(self.words, 1)}
        self.word_vectors = nn.Embedding(1 + len(self.words), word_dimension)
        self.ngram_vectors = nn.EmbeddingBag(buckets, ngram_dimension, mode="mean")
        self.shape_vectors = nn.Embedding(1 + len(_SHAPES), _SHAPE_DIMENSION)
        self.dropout = nn.Dropout(dropout)
        dimension = word_dimension + ngram_dimension + _SHAPE_DIMENSION
        inner = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(dimension, hidden, layers, batch_first=True, bidirectional=True, dropout=inner)
        self.emissions = nn.Linear(2 * hidden, len(LABELS))
        self.tagger = ChainTagger(len(LABELS), forbid=_forbidden_pairs(), forbid_start=map(inside, CLASSES))

    @classmethod
    def from_pretrained(cls, path: Path | str | None = None) -> Self:
        """A trained finder: the embedded one, or one from a file of ``train_finder``."""
        if path is not None:
            return cls.load(Path(path))
        embedded = Path(str(files("phrasechain.phrases") / "finder.safetensors"))
        if not embedded.exists():
            raise DataError(
                f"{embedded}: not in this installation; reinstall phrasechain, give the phrases yourself, "
                "or name the file of a finder that you have trained"
            )
        return cls.load(embedded)

    @torch.no_grad()
    def begin_with(self, vectors: WordVectors) -> None:
        """Initialise the word vectors with given ones, reduced to the finder's dimension by PCA."""
        rows = [row for row, word in enumerate(vectors.words) if word in self._places]
        given = torch.from_numpy(vectors.vectors)
        given = given - given.mean(0)
        axes = torch.linalg.svd(given, full_matrices=False).Vh[: self.shape["word_dimension"]]
        reduced = given @ axes.T  # (W, up to the word dimension)
        self.word_vectors.weight.normal_(std=_SPREAD)
        places = [self._places[vectors.words[row]] for row in rows]
        self.word_vectors.weight[places, : len(axes)] = _SPREAD * reduced[rows] / reduced.std()

    # ---- inference ----

    @torch.inference_mode()
    def find(self, text: str) -> list[FoundPhrase]:
        """The visual phrases of a text, in order."""
        tokens = tokenise(text)
        [labels] = self.label([[token.text for token in tokens]])
        return [_found(text, tokens, first, end, name) for first, end, name in phrases_of(labels) if name != NOT_VISUAL]

    @torch.inference_mode()
    def label(self, captions: Captions) -> list[list[int]]:
        """The best labels of the tokens of each caption (Viterbi)."""
        lengths = [len(caption) for caption in captions]
        if not any(lengths):
            return [[] for _ in captions]
        full = [caption for caption in captions if caption]
        rows = iter(self(full).viterbi()[0].tolist())
        return [next(rows)[:length] if length else [] for length in lengths]

    @torch.inference_mode()
    def categorise(self, text: str, spans: Sequence[Span]) -> list[FoundPhrase]:
        """Given phrases, each with its category.

        It is that of the first phrase that the finder finds in the span, or else the class of largest marginals there.
        So a part of a phrase ("hat" of "a red hat") and a longer one ("a man in a red hat") get the category of what
        they name; constraining the chain to the spans does worse on both.
        """
        if not spans:
            return []
        tokens = tokenise(text)
        crf = self([[token.text for token in tokens]])
        seen = [phrase for phrase in phrases_of(crf.viterbi()[0][0].tolist()) if phrase[2] != NOT_VISUAL]
        marginals = crf.marginals[0]  # (L, K)
        return [
            _found(text, tokens, span.first_token, span.end_token, _category(span, seen, marginals)) for span in spans
        ]

    # ---- scores ----

    def forward(self, captions: Captions) -> ChainCRF:
        """The chain CRF over the labels of B captions, none of which is empty."""
        emissions, lengths = self._emissions(captions)
        crf: ChainCRF = self.tagger(emissions, lengths, validate=False)
        return crf

    def _emissions(self, captions: Captions) -> tuple[Tensor, Tensor]:
        """(B, L, K) and the lengths (B,)."""
        tokens = self._features(captions)
        words = tokens.words
        if self.training and self.word_dropout:
            words = words.masked_fill(torch.rand(words.shape) < self.word_dropout, 0)
        ngrams = embedding(tokens.kinds, self.ngram_vectors(tokens.buckets, tokens.starts))
        vectors = torch.cat([self.word_vectors(words), ngrams, self.shape_vectors(tokens.shapes)], -1)  # (B, L, D)
        return self.emissions(self.dropout(self._states(self.dropout(vectors), tokens.lengths))), tokens.lengths

    def _states(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """(B, L, 2 H), by packed sequences."""
        states: Tensor
        if bool((lengths == vectors.shape[1]).all()):
            states, _ = self.lstm(vectors)
            return states
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return states

    def _features(self, captions: Captions) -> TokenFeatures:
        L, kinds = longest(captions), {"": 0}  # the empty token pads
        rows = [[kinds.setdefault(token, len(kinds)) for token in caption] for caption in captions]
        known = [_features(token, self.shape["buckets"]) for token in kinds]
        places = torch.tensor([self._places.get(word, 0) for word, _, _ in known])  # (U,)
        shapes = torch.tensor([shape for _, shape, _ in known])
        where = torch.tensor([row + [0] * (L - len(row)) for row in rows])  # (B, L)
        bags = [buckets for _, _, buckets in known]
        return TokenFeatures(
            words=places[where],
            shapes=shapes[where],
            kinds=where,
            buckets=torch.tensor([bucket for bag in bags for bucket in bag]),
            starts=torch.tensor([0, *accumulate(map(len, bags))][:-1]),
            lengths=torch.tensor([len(row) for row in rows]),
        )

    # ---- files ----

    def save(self, path: Path) -> None:
        """Write the weights in float16 with the vocabulary and the sizes, atomically."""
        about = {"format": FINDER_FORMAT, "labels": LABELS, "shape": self.shape, "words": self.words}
        tensors = {name: weight.detach().half().contiguous() for name, weight in self.named_parameters()}
        # One key alone: the library writes several in a random order, and the file's hash would change with it.
        write_atomically(path, save(tensors, {"finder": json.dumps(about, sort_keys=True)}))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote, for inference."""
        file = read_tensors(path, _WHAT, largest=_LARGEST)
        with file_errors(path, _WHAT):
            about = json.loads(file.metadata.get("finder", "{}"))
            _require_format(about)
            with EmptyParameters():
                finder = cls(_checked_words(about["words"]), **_checked_sizes(about["shape"]))
            assign_weights(finder, file.tensors, "shape", parameters_only=True)
        return finder.eval()


def phrases_of(labels: Iterable[int]) -> list[tuple[int, int, str]]:
    """The first token, the end and the class of each phrase in BIO labels.

    >>> phrases_of([1, 2, 0, 3, 3])
    [(0, 2, 'people'), (3, 4, 'clothing'), (4, 5, 'clothing')]
    """
    found: list[tuple[int, int, str]] = []
    for place, label in enumerate(labels):
        if label % 2:
            found.append((place, place + 1, CLASSES[label // 2]))
        elif label:
            first, _, name = found[-1]
            found[-1] = first, place + 1, name
    return found


def _forbidden_pairs() -> list[tuple[int, int]]:
    return [
        (before, inside(name))
        for name in CLASSES
        for before in range(len(LABELS))
        if before not in (begin(name), inside(name))
    ]


def _category(span: Span, seen: Sequence[tuple[int, int, str]], marginals: Tensor) -> str:
    for first, end, name in seen:
        if first < span.end_token and end > span.first_token:
            return name
    of_class = marginals[span.first_token : span.end_token, 1:].sum(0).view(len(CLASSES), 2).sum(1)
    return CATEGORIES[int(of_class[: len(CATEGORIES)].argmax())]


def _found(text: str, tokens: Sequence[Token], first: int, end: int, name: str) -> FoundPhrase:
    start, stop = tokens[first].start, tokens[end - 1].end
    return FoundPhrase(text[start:stop], start, stop, name, first, end)


@lru_cache(maxsize=1 << 16)
def _features(token: str, buckets: int) -> tuple[str, int, tuple[int, ...]]:
    """The word, the shape and the n-grams of a token."""
    simple = plain(token)
    word = simple.lower()
    shape = next((place for place, pattern in enumerate(_SHAPES, 1) if pattern.fullmatch(simple)), 0)
    return word, shape, ngram_buckets(word, buckets)


def _checked_words(words: Any) -> list[str]:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DataError(f"broken {_WHAT}: its vocabulary is no list of words")
    if len(set(words)) < len(words):
        raise DataError(f"broken {_WHAT}: a word stands twice in its vocabulary")
    return words


def _checked_sizes(shape: Any) -> dict[str, int]:
    """The sizes that a file claims."""
    sizes = {name: shape[name] for name in _MOST}
    for name, most in _MOST.items():
        if type(sizes[name]) is not int or not 1 <= sizes[name] <= most:
            raise DataError(f"broken {_WHAT}: its {name} must be a number from 1 to {most:,}")
    return sizes


def _require_format(about: Any) -> None:
    found = shorten(str(about.get("format", "no format at all")), 60)
    if found != FINDER_FORMAT or tuple(about["labels"]) != LABELS:
        raise DataError(f"not a {_WHAT} of this version ({found}, not {FINDER_FORMAT})")
