"""The encoder ``words``: known words have their vector, unknown ones the mean of their n-grams."""

import json
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phrasechain.core.errors import DataError
from phrasechain.text.vectors import WordVectors
from phrasechain.text.vocabulary import ngram_buckets
from phrasechain.text.words import SPREAD, WordEncoder

WORDS = ("a", "dog", "runs")


def slow_vector(encoder: WordEncoder, token: str) -> torch.Tensor:
    words = [form.lower() if encoder.lowercase else form for form in (token, unicodedata.normalize("NFKC", token))]
    for word in words:
        if word in encoder.words:
            return encoder.word_vectors.weight[1 + encoder.words.index(word)]
    rows = [encoder.ngram_vectors.weight[bucket] for bucket in ngram_buckets(word, encoder.buckets)]
    return torch.stack(rows).mean(0)


@given(
    st.lists(
        st.lists(
            st.sampled_from(["a", "A", "dog", "runs", "Frisbee", "?", "ü", "", "ｄｏｇ", "Ｄog", "Ｆｒｉｓｂｅｅ"]),
            max_size=5,
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_every_token_has_its_vector(captions: list[list[str]], lowercase: bool) -> None:
    torch.manual_seed(1)
    encoder = WordEncoder(WORDS, 4, buckets=50, lowercase=lowercase)
    result = encoder(captions)
    L = max(map(len, captions), default=0)
    assert result.shape == (len(captions), L, 4)
    assert result.dtype == torch.float32
    for row, caption in zip(result, captions, strict=True):
        assert not row[len(caption) :].any()
        for vector, token in zip(row, caption, strict=False):
            torch.testing.assert_close(vector, slow_vector(encoder, token))


def test_a_word_of_the_vocabulary_is_found_as_it_is_written() -> None:
    encoder = WordEncoder(("dog", "ｄｏｇ", "'s", "“"), 4)
    with torch.no_grad():
        found = encoder([["dog", "ｄｏｇ", "𝐝𝐨𝐠", "’s", "“"]])[0]
    assert torch.equal(found, encoder.word_vectors.weight[[1, 2, 1, 3, 4]].detach())


def test_gradients_go_to_the_words_and_ngrams_that_were_used() -> None:
    encoder = WordEncoder(WORDS, 3, buckets=1000)
    encoder([["dog", "cats"], ["dog"]]).sum().backward()
    words, ngrams = encoder.word_vectors.weight.grad, encoder.ngram_vectors.weight.grad
    assert words is not None
    assert ngrams is not None
    torch.testing.assert_close(words, torch.tensor([[0.0], [0.0], [2.0], [0.0]]).expand(-1, 3))
    buckets = ngram_buckets("cats", 1000)
    expected = torch.zeros(1000, 3).index_add(0, torch.tensor(buckets), torch.ones(len(buckets), 3) / len(buckets))
    torch.testing.assert_close(ngrams, expected)


def test_a_batch_without_unknown_words_still_gives_their_vectors_a_gradient() -> None:
    """So that all weights take part in every step, with one process or with many."""
    encoder = WordEncoder(WORDS, 3)
    encoder([["dog"]]).sum().backward()
    assert encoder.ngram_vectors.weight.grad is not None
    assert not encoder.ngram_vectors.weight.grad.any()


def test_word_dropout_takes_known_words_for_unknown_in_training_only() -> None:
    torch.manual_seed(0)
    encoder = WordEncoder(WORDS, 3, word_dropout=0.3)
    captions = [["dog"] * 50] * 40
    known = encoder.word_vectors.weight[2]
    ngrams = encoder.ngram_vectors.weight[list(ngram_buckets("dog", encoder.buckets))].mean(0)
    rows = encoder(captions).flatten(0, 1)
    as_known, as_ngrams = ((rows - each).abs().amax(1) < 1e-6 for each in (known, ngrams))
    assert (as_known ^ as_ngrams).all()
    assert 0.25 < as_ngrams.float().mean() < 0.35
    torch.manual_seed(5)
    first = encoder(captions)
    torch.manual_seed(5)
    assert torch.equal(first, encoder(captions))
    assert torch.equal(encoder.eval()(captions).flatten(0, 1), known.expand(2000, 3))


def test_known_and_unknown_words_begin_alike() -> None:
    torch.manual_seed(0)
    encoder = WordEncoder([f"word{n}" for n in range(300)], 50)
    known = encoder([[f"word{n}" for n in range(300)]])
    unknown = encoder([[f"sample{n}" for n in range(300)]])
    assert 0.9 < (known.std() / SPREAD).item() < 1.1
    assert 0.6 < (unknown.std() / SPREAD).item() < 1.4


VECTORS = WordVectors(("dog", "Paris", "cat"), np.arange(6, dtype=np.float32).reshape(3, 2))


def test_given_vectors_and_their_other_words() -> None:
    encoder = WordEncoder.from_vectors(WORDS, VECTORS)
    assert encoder.words == ("a", "dog", "runs", "cat")
    torch.testing.assert_close(encoder([["Dog", "cat"]])[0], torch.tensor([[0.0, 1.0], [4.0, 5.0]]))
    assert encoder([["a"]]).abs().sum() > 0
    cased = WordEncoder.from_vectors(WORDS, VECTORS, lowercase=False, frozen=True, word_dropout=0.5, buckets=9)
    assert cased.words == ("a", "dog", "runs", "Paris", "cat")
    torch.testing.assert_close(cased.eval()([["Paris"]])[0], torch.tensor([[2.0, 3.0]]))
    assert [weight.requires_grad for weight in cased.parameters()] == [False, True]


def test_vectors_of_another_language_are_refused() -> None:
    with pytest.raises(DataError, match="no word of the captions has a vector"):
        WordEncoder.from_vectors(["chien"], VECTORS)


def test_it_is_its_settings_and_its_state() -> None:
    encoder = WordEncoder(WORDS, 5, buckets=20, lowercase=False, word_dropout=0.25, frozen=True)
    again = WordEncoder(**json.loads(json.dumps(encoder.settings)))
    again.load_state_dict(encoder.state_dict())
    assert again.settings == encoder.settings
    captions = [["a", "dog", "Unseen"]]
    assert torch.equal(again.eval()(captions), encoder.eval()(captions))


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["dog", "dog"], {}, "stands twice"),
        (["Dog"], {}, "not in lower case"),
        (["dog"], {"buckets": 0}, "at least 1"),
        (["dog"], {"word_dropout": 1.0}, "word dropout"),
    ],
)
def test_values_that_cannot_be(words: list[str], options: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        WordEncoder(words, 3, **options)
