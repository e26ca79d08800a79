"""What the training of a phrase finder can be told."""

from __future__ import annotations

from dataclasses import dataclass

from phrasechain.core.settings import setting
from phrasechain.phrases.finder import MOST


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The sizes of the tagger, no larger than a file of weights may have them."""

    word_dimension: int = setting(64, "numbers of a word's vector", 1, MOST["word_dimension"])
    buckets: int = setting(8192, "vectors that character n-grams share", 1, MOST["buckets"])
    ngram_dimension: int = setting(32, "numbers of an n-gram's vector", 1, MOST["ngram_dimension"])
    hidden: int = setting(160, "numbers of a BiLSTM state, in each direction", 1, MOST["hidden"])
    layers: int = setting(1, "layers of the BiLSTM", 1, MOST["layers"])
    dropout: float = setting(0.3, "after the embeddings and the BiLSTM", 0, 0.99)
    word_dropout: float = setting(0.03, "share of words taken for unknown, so that n-grams learn", 0, 0.99)


@dataclass(frozen=True, slots=True)
class DataSettings:
    """What is learnt from."""

    rare_word: int = setting(3, "words that occur less often are known by their character n-grams alone", 1)
    unlike: float = setting(0.2, "share of captions that are changed to be unlike captions", 0, 0.99)
    paragraphs: float = setting(0.06, "share of batches whose captions are joined by fours", 0, 0.99)
    limit: int = setting(0, "only the first captions of the file; 0: all", 0)


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How it is trained."""

    epochs: int = setting(1, "passes over the captions", 1)
    batch: int = setting(64, "captions of a step", 1, 1 << 20)
    rate: float = setting(3e-3, "learning rate, at its peak", 0)
    weight_decay: float = setting(0.01, "of AdamW", 0)
    clip: float = setting(5.0, "bound of the gradient's 2-norm; 0: none", 0)
    ema: float = setting(0.999, "largest decay of the EMA of the weights, which is the result; 0: none", 0, 0.999999)
    save_every: int = setting(500, "steps between checkpoints; each epoch ends with one too", 1)
    seed: int = setting(0, "of the weights, the order and the ways of writing", 0, (1 << 32) - 1)


@dataclass(frozen=True, slots=True)
class FinderSettings:
    """All that a run depends on, besides the files."""

    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    train: TrainSettings = TrainSettings()
