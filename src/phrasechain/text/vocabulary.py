"""A vocabulary from captions, and character n-grams for words outside of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from zlib import crc32

SHORTEST, LONGEST = 3, 5  # characters of an n-gram
_MOST_CHARACTERS = 64  # of a word; a longer one would have very many n-grams


def build_vocabulary(captions: Iterable[Sequence[str]], least: int = 1, lowercase: bool = True) -> tuple[str, ...]:
    """The words that occur at least ``least`` times, by frequency, then alphabetically.

    >>> build_vocabulary([["A", "dog", "chases", "a", "cat"], ["a", "dog"]], least=2)
    ('a', 'dog')
    """
    counts = Counter(word.lower() if lowercase else word for caption in captions for word in caption)
    return tuple(sorted((word for word, n in counts.items() if n >= least), key=lambda word: (-counts[word], word)))


def ngrams(word: str) -> list[str]:
    """The n-grams of 3 to 5 characters of ``<word>``; all of it where that is shorter.

    >>> ngrams("dog")
    ['<do', 'dog', 'og>', '<dog', 'dog>', '<dog>']
    """
    text = f"<{word[:_MOST_CHARACTERS]}>"
    parts = [text[at : at + size] for size in range(SHORTEST, LONGEST + 1) for at in range(len(text) - size + 1)]
    return parts or [text]


@lru_cache(maxsize=1 << 16)
def ngram_buckets(word: str, buckets: int) -> tuple[int, ...]:
    """The bucket of each n-gram: its CRC-32 modulo ``buckets``, the same on every machine."""
    return tuple(crc32(part.encode("utf-8", "replace")) % buckets for part in ngrams(word))
