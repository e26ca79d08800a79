"""Vocabularies and n-grams."""

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from phrasechain.text.vocabulary import build_vocabulary, ngram_buckets, ngrams

CAPTIONS = [["The", "dog", "the", "cat"], ["a", "dog"], ["A", "dog", "runs"]]


def test_frequent_words_first_then_the_alphabet() -> None:
    assert build_vocabulary(CAPTIONS) == ("dog", "a", "the", "cat", "runs")
    assert build_vocabulary(CAPTIONS, least=2) == ("dog", "a", "the")
    assert build_vocabulary(CAPTIONS, lowercase=False) == ("dog", "A", "The", "a", "cat", "runs", "the")


@given(st.text(max_size=12))
def test_ngrams_are_all_parts_of_three_to_five_characters(word: str) -> None:
    text = f"<{word}>"
    parts = {text[i:j] for i in range(len(text)) for j in range(i, len(text) + 1) if 3 <= j - i <= 5}
    assert set(ngrams(word)) == (parts or {text})


def test_buckets_are_the_same_everywhere() -> None:
    assert ngram_buckets("a", 1000) == (crc32(b"<a>") % 1000,)
    assert ngram_buckets("dog", 100) == tuple(
        crc32(part) % 100 for part in (b"<do", b"dog", b"og>", b"<dog", b"dog>", b"<dog>")
    )
    assert crc32(b"<a>") == 1_874_297_515


def test_odd_words_have_buckets_too() -> None:
    for word in ("", "\ud800", "x" * 1_000_000, "狗", "🐕"):
        buckets = ngram_buckets(word, 7)
        assert 1 <= len(buckets) <= 200
        assert set(buckets) <= set(range(7))
