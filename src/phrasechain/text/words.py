"""The encoder ``words``: one vector per word, without context."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor, nn

from phrasechain.core.errors import DataError
from phrasechain.text.base import Captions, TextEncoder, longest
from phrasechain.text.tokens import plain
from phrasechain.text.vectors import WordVectors
from phrasechain.text.vocabulary import ngram_buckets

SPREAD = 0.5  # standard deviation of GloVe's values, so that learned and given vectors are alike
_TYPICAL_NGRAMS = 9  # of a word


class WordEncoder(TextEncoder):
    """Word embeddings; a word outside the vocabulary is the mean of the vectors of its character n-grams (fastText).

    A token that is not in the vocabulary is looked up in its plain form: ``ｄｏｇ`` is ``dog``.

    Args:
        words: the vocabulary, each word once.
        dimension: D.
        buckets: rows that n-grams share by their hash.
        lowercase: look words up in lower case; the vocabulary must be in lower case too.
        word_dropout: the share of known words that count as unknown in training, so that the buckets learn.
        frozen: do not train the vocabulary's vectors; the buckets always learn.
    """

    def __init__(
        self,
        words: Sequence[str],
        dimension: int,
        *,
        buckets: int = 10_000,
        lowercase: bool = True,
        word_dropout: float = 0.0,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        if dimension < 1 or buckets < 1 or not 0 <= word_dropout < 1:
            raise DataError("words: the dimension and the buckets are at least 1, word dropout is from 0 to below 1")
        self.words = tuple(words)
        self._places = {word: place for place, word in enumerate(self.words, 1)}
        if len(self._places) < len(self.words):
            raise DataError("words: a word stands twice in the vocabulary")
        if lowercase and any(word != word.lower() for word in self.words):
            raise DataError("words: the vocabulary is not in lower case; convert it, or set lowercase to false")
        self.dimension, self.buckets = dimension, buckets
        self.lowercase, self.word_dropout, self.frozen = lowercase, word_dropout, frozen
        self.word_vectors = nn.Embedding(1 + len(self.words), dimension, padding_idx=0)  # 0: padding, unknown words
        self.ngram_vectors = nn.EmbeddingBag(buckets, dimension, mode="mean")
        self.word_vectors.weight.requires_grad_(not frozen)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all vectors; those of n-grams are larger, so that the mean of a few is as large as a word's vector."""
        self.word_vectors.weight[1:].normal_(std=SPREAD)
        self.ngram_vectors.weight.normal_(std=SPREAD * _TYPICAL_NGRAMS**0.5)

    @classmethod
    def from_vectors(
        cls, words: Sequence[str], vectors: WordVectors, *, lowercase: bool = True, **options: Any
    ) -> Self:
        """An encoder initialised with given vectors; words that only the vectors have join the vocabulary."""
        own = [word for word in vectors.words if not lowercase or word == word.lower()]
        if words and not set(own).intersection(words):
            raise DataError("no word of the captions has a vector: the vectors are of another language or case")
        encoder = cls(tuple(dict.fromkeys([*words, *own])), vectors.dimension, lowercase=lowercase, **options)
        encoder.load_vectors(vectors)
        return encoder

    @torch.no_grad()
    def load_vectors(self, vectors: WordVectors) -> None:
        """Copy the vectors of words in the vocabulary; the other words keep theirs."""
        rows = [row for row, word in enumerate(vectors.words) if word in self._places]
        places = [self._places[vectors.words[row]] for row in rows]
        self.word_vectors.weight[places] = torch.from_numpy(vectors.vectors[rows]).to(self.word_vectors.weight)

    @property
    def settings(self) -> dict[str, Any]:
        names = ("dimension", "buckets", "lowercase", "word_dropout", "frozen")
        return {"words": list(self.words)} | {name: getattr(self, name) for name in names}

    def forward(self, captions: Captions) -> Tensor:
        """(B, L, D), by two look-ups: the vocabulary for every token, and n-grams for unknown ones."""
        B, L = len(captions), longest(captions)
        ids, unknown = self._look_up(captions, L)
        bags = [ngram_buckets(word, self.buckets) for word in unknown.values()]
        device = self.word_vectors.weight.device
        flat = torch.tensor([bucket for bag in bags for bucket in bag], dtype=torch.int64, device=device)
        starts = torch.tensor([0, *accumulate(map(len, bags))][: len(bags)], dtype=torch.int64, device=device)
        places = torch.tensor(list(unknown), dtype=torch.int64, device=device)
        known: Tensor = self.word_vectors(torch.tensor(ids, dtype=torch.int64, device=device))  # (B·L, D)
        return known.index_add(0, places, self.ngram_vectors(flat, starts)).view(B, L, self.dimension)

    def _look_up(self, captions: Captions, L: int) -> tuple[list[int], dict[int, str]]:
        """The word ids of all B·L tokens, 0 for unknown ones and padding, and the unknown words by their place."""
        ids: list[int] = []
        unknown: dict[int, str] = {}
        dropped = self._dropped(len(captions) * L)
        for caption in captions:
            for token in caption:
                word = self._word(token)
                place = 0 if dropped and dropped[len(ids)] else self._places.get(word, 0)
                if not place:
                    unknown[len(ids)] = word
                ids.append(place)
            ids.extend([0] * (L - len(caption)))
        return ids, unknown

    def _word(self, token: str) -> str:
        word = self._cased(token)
        return word if word in self._places else self._cased(plain(token))

    def _cased(self, token: str) -> str:
        return token.lower() if self.lowercase else token

    def _dropped(self, count: int) -> list[bool] | None:
        if not self.training or not self.word_dropout:
            return None
        dropped: list[bool] = (torch.rand(count) < self.word_dropout).tolist()
        return dropped
