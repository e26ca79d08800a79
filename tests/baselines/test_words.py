"""The words of phrases against slices of their captions."""

import torch
from torch import nn

from phrasechain.baselines.words import last_states, phrase_means, phrase_words
from tiny_batches import tiny_batch


def test_words_means_and_last_states_by_slices() -> None:
    batch = tiny_batch(4, captions=6)
    tokens = torch.randn(len(batch.tokens), max(map(len, batch.tokens)), 5)
    lstm, both = nn.LSTM(5, 3, batch_first=True), nn.LSTM(5, 3, batch_first=True, bidirectional=True)
    means = phrase_means(tokens, batch)
    words, counts = phrase_words(tokens, batch)
    states, pairs = last_states(lstm, words, counts), last_states(both, words, counts)
    for number, (caption, span) in enumerate(
        zip(batch.phrase_caption.tolist(), batch.token_spans.tolist(), strict=True)
    ):
        own = tokens[caption, span[0] : span[1]]
        torch.testing.assert_close(means[number], own.mean(0))
        torch.testing.assert_close(states[number], lstm(own)[0][-1])
        there, back = both(own)[0].chunk(2, -1)
        torch.testing.assert_close(pairs[number], torch.cat([there[-1], back[0]]))


def test_the_last_words_of_a_long_phrase_are_kept() -> None:
    batch = tiny_batch(4, captions=6)
    tokens = torch.randn(len(batch.tokens), max(map(len, batch.tokens)), 2)
    words, counts = phrase_words(tokens, batch, 2)
    assert int(counts.max()) == 2
    number = int((batch.token_spans[:, 1] - batch.token_spans[:, 0]).argmax())
    end = int(batch.token_spans[number, 1])
    assert int(batch.token_spans[number, 0]) < end - 2
    torch.testing.assert_close(words[number], tokens[batch.phrase_caption[number], end - 2 : end])
