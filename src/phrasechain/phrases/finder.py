"""The phrase finder: detects the noun phrases of a caption and their categories.

A BiLSTM-CRF tagger with BIO labels for nine classes, the eight categories and ``notvisual``, whose phrases are detected
and then dropped:

    token → [word embedding ; mean of its character n-gram embeddings ; word-shape embedding] → BiLSTM → ChainCRF

I-X may only follow B-X or I-X. Words are lower-cased; hashed character n-grams cover unknown words, and the word shape
encodes capitals, digits and punctuation.

Axes: B captions, L tokens, U distinct tokens of the batch, K labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
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
from phrasechain.core.errors import DataError, located
from phrasechain.core.files import write_atomically
from phrasechain.core.json_lines import parse_settings
from phrasechain.core.schema import CATEGORIES, NOT_VISUAL
from phrasechain.core.tensors import EmptyParameters, assign_weights, file_errors, read_tensors
from phrasechain.phrases.labels import label_parts
from phrasechain.text.base import Captions, longest
from phrasechain.text.tokens import Span, Token, plain, tokenise
from phrasechain.text.vectors import WordVectors
from phrasechain.text.vocabulary import ngram_buckets

FINDER_FORMAT = "phrasechain finder 1"
_WHAT = "phrase finder"
CLASSES = (*CATEGORIES, NOT_VISUAL)
LABELS = ("O", *(f"{mark}-{name}" for name in CLASSES for mark in "BI"))
_LARGEST = 1 << 26  # bytes of a file of weights; the embedded one has 4 million at most
#: The largest sizes of a finder: a file that claims more is refused before memory is taken.
MOST = {"word_dimension": 1024, "buckets": 1 << 20, "ngram_dimension": 1024, "hidden": 1024, "layers": 4}
_SHAPES = tuple(
    map(re.compile, (r"[^\w]+", r"\d+", r".*\d.*", r"[A-Z]", r"[A-Z][^a-z]*", r"[A-Z][^A-Z]*", r".*[A-Z].*"))
)
_SHAPE_DIMENSION = 8
_SHORT = 2  # letters of a word that says nothing of the language
_SPREAD = 0.5  # standard deviation of the initial word embeddings


def begin(name: str) -> int:
    """The B label of a class: the first token of a phrase."""
    return 1 + 2 * CLASSES.index(name)


def inside(name: str) -> int:
    """The I label of a class: the other tokens of a phrase."""
    return begin(name) + 1


@dataclass(frozen=True, slots=True)
class FoundPhrase:
    """A phrase of a text, ``text[start:end]`` in code points, and its token span."""

    text: str
    start: int
    end: int
    category: str
    first_token: int
    end_token: int


class TokenIds(NamedTuple):
    """A batch of captions as indices into the embedding tables."""

    words: Tensor  # (B, L) int64: indices into the vocabulary, 0 for unknown words
    shapes: Tensor  # (B, L) int64
    types: Tensor  # (B, L) int64: which of the U distinct tokens it is
    buckets: Tensor  # hashed n-grams of the distinct tokens, concatenated
    offsets: Tensor  # (U,) where those of each begin in ``buckets``
    lengths: Tensor  # (B,)


class PhraseFinder(nn.Module):
    """Detects the noun phrases of a text.

    Args:
        words: the vocabulary, lower-cased, without duplicates.
        word_dimension, ngram_dimension: embedding sizes of words and of character n-grams.
        buckets: hash buckets of the n-gram embeddings.
        hidden, layers: LSTM units per direction, and layers.
        dropout: of token embeddings and LSTM states.
        word_dropout: the probability that a training word is replaced by the unknown word.

    Example:
        >>> finder = PhraseFinder(["a", "dog"])  # with random weights; from_pretrained() is trained
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
        self._word_index = {word: index for index, word in enumerate(self.words, 1)}
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
        """A trained finder: the embedded one, or a file that ``train-finder`` wrote."""
        if path is not None:
            return cls.load(Path(path))
        embedded = Path(str(files("phrasechain.phrases") / "finder.safetensors"))
        if not embedded.exists():
            raise DataError(
                f"{embedded}: missing from this installation; reinstall phrasechain, give the phrases yourself, "
                "or give the file of a finder that you trained"
            )
        return cls.load(embedded)

    @torch.no_grad()
    def begin_with(self, vectors: WordVectors) -> None:
        """Initialise the word embeddings with pretrained vectors, reduced to the finder's dimension by PCA."""
        rows = [row for row, word in enumerate(vectors.words) if word in self._word_index]
        given = torch.from_numpy(vectors.vectors)
        given = given - given.mean(0)
        axes = torch.linalg.svd(given, full_matrices=False).Vh[: self.shape["word_dimension"]]
        reduced = given @ axes.T  # (W, up to the word dimension)
        self.word_vectors.weight.normal_(std=_SPREAD)
        indices = [self._word_index[vectors.words[row]] for row in rows]
        self.word_vectors.weight[indices, : len(axes)] = _SPREAD * reduced[rows] / reduced.std()

    # ---- inference ----

    @torch.inference_mode()
    def find(self, text: str) -> list[FoundPhrase]:
        """The phrases of a text in order, those that name nothing visible left out.

        The text is a caption, or a list of labels ("dog, red car, tree", or one on each line).
        """
        tokens = tokenise(text)
        words = [token.text for token in tokens]
        found = self._find_labels(words, label_parts(text, tokens))
        if found is None:
            [labels] = self.label([words])
            found = phrases_of(labels)
        return [_found(text, tokens, first, end, name) for first, end, name in found if name != NOT_VISUAL]

    def _find_labels(self, words: Sequence[str], parts: Sequence[tuple[int, int]]) -> list[tuple[int, int, str]] | None:
        """The labels of a list, if each of its parts is one phrase from end to end; else ``None``."""
        labels = self.label([words[first:end] for first, end in parts]) if parts else []
        found = []
        for (first, end), each in zip(parts, labels, strict=True):
            phrases = phrases_of(each)
            if len(phrases) != 1 or phrases[0][:2] != (0, end - first):
                return None
            found.append((first, end, phrases[0][2]))
        return found or None

    def knows_a_word(self, text: str) -> bool:
        """Whether the text has a word of the vocabulary, those of one or two letters left aside: other languages share
        them."""
        words = (plain(token.text).lower() for token in tokenise(text))
        return any(len(word) > _SHORT and word in self._word_index for word in words)

    @torch.inference_mode()
    def label(self, captions: Captions) -> list[list[int]]:
        """The Viterbi labels of the tokens of each caption."""
        lengths = [len(caption) for caption in captions]
        if not any(lengths):
            return [[] for _ in captions]
        full = [caption for caption in captions if caption]
        rows = iter(self(full).viterbi()[0].tolist())
        return [next(rows)[:length] if length else [] for length in lengths]

    @torch.inference_mode()
    def categorise(self, text: str, spans: Sequence[Span]) -> list[FoundPhrase]:
        """Given spans as phrases, each with its category.

        The category is that of the first phrase that the finder detects in the span, or, if it detects none, the one
        with the largest sum of marginals there. So a part of a phrase ("hat" of "a red hat") and a longer one ("a man
        in a red hat") get the category of their head; decoding constrained to the spans does worse on both.
        """
        if not spans:
            return []
        tokens = tokenise(text)
        crf = self([[token.text for token in tokens]])
        detected = [phrase for phrase in phrases_of(crf.viterbi()[0][0].tolist()) if phrase[2] != NOT_VISUAL]
        marginals = crf.marginals[0]  # (L, K)
        return [
            _found(text, tokens, span.first_token, span.end_token, _category(span, detected, marginals))
            for span in spans
        ]

    # ---- the network ----

    def forward(self, captions: Captions) -> ChainCRF:
        """The chain CRF of B tokenised captions, none of them empty."""
        emissions, lengths = self._emissions(captions)
        crf: ChainCRF = self.tagger(emissions, lengths, validate=False)
        return crf

    def _emissions(self, captions: Captions) -> tuple[Tensor, Tensor]:
        """(B, L, K) and the lengths (B,)."""
        ids = self._token_ids(captions)
        words = ids.words
        if self.training and self.word_dropout:
            words = words.masked_fill(torch.rand(words.shape) < self.word_dropout, 0)
        ngrams = embedding(ids.types, self.ngram_vectors(ids.buckets, ids.offsets))
        vectors = torch.cat([self.word_vectors(words), ngrams, self.shape_vectors(ids.shapes)], -1)  # (B, L, D)
        return self.emissions(self.dropout(self._states(self.dropout(vectors), ids.lengths))), ids.lengths

    def _states(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """The BiLSTM states (B, L, 2 H), without reading the padding."""
        states: Tensor
        if bool((lengths == vectors.shape[1]).all()):
            states, _ = self.lstm(vectors)
            return states
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return states

    def _token_ids(self, captions: Captions) -> TokenIds:
        L, types = longest(captions), {"": 0}  # the empty token is padding
        rows = [[types.setdefault(token, len(types)) for token in caption] for caption in captions]
        features = [_features(token, self.shape["buckets"]) for token in types]
        words = torch.tensor([self._word_index.get(word, 0) for word, _, _ in features])  # (U,)
        shapes = torch.tensor([shape for _, shape, _ in features])
        ids = torch.tensor([row + [0] * (L - len(row)) for row in rows])  # (B, L)
        ngrams = [buckets for _, _, buckets in features]
        return TokenIds(
            words=words[ids],
            shapes=shapes[ids],
            types=ids,
            buckets=torch.tensor([bucket for buckets in ngrams for bucket in buckets]),
            offsets=torch.tensor([0, *accumulate(map(len, ngrams))][:-1]),
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
            with located(f"broken {_WHAT}"):
                about = parse_settings(file.metadata.get("finder", "{}").encode("utf-8", "replace"))
            _require_format(about)
            words, sizes = _checked_words(about.get("words")), _checked_sizes(about.get("shape"))
            with EmptyParameters():
                finder = cls(words, **sizes)
            assign_weights(finder, file.tensors, "shape", parameters_only=True)
        return finder.eval()


def phrases_of(labels: Iterable[int]) -> list[tuple[int, int, str]]:
    """Decode BIO labels: the first token, the end and the class of each phrase.

    >>> phrases_of([1, 2, 0, 3, 3])
    [(0, 2, 'people'), (3, 4, 'clothing'), (4, 5, 'clothing')]
    """
    phrases: list[tuple[int, int, str]] = []
    for token, label in enumerate(labels):
        if label % 2:
            phrases.append((token, token + 1, CLASSES[label // 2]))
        elif label:
            first, _, name = phrases[-1]
            phrases[-1] = first, token + 1, name
    return phrases


def _forbidden_pairs() -> list[tuple[int, int]]:
    return [
        (before, inside(name))
        for name in CLASSES
        for before in range(len(LABELS))
        if before not in (begin(name), inside(name))
    ]


def _category(span: Span, detected: Sequence[tuple[int, int, str]], marginals: Tensor) -> str:
    for first, end, name in detected:
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
    sizes: dict[str, Any] = {name: shape.get(name) if isinstance(shape, dict) else None for name in MOST}
    for name, most in MOST.items():
        if type(sizes[name]) is not int or not 1 <= sizes[name] <= most:
            raise DataError(f"broken {_WHAT}: its {name} must be a number from 1 to {most:,}")
    return sizes


def _require_format(about: Mapping[str, Any]) -> None:
    found = shorten(str(about.get("format", "no format at all")), 60)
    if found != FINDER_FORMAT or about.get("labels") != list(LABELS):
        raise DataError(f"not a {_WHAT} of this version ({found}, not {FINDER_FORMAT})")
