"""The bag of words of a phrase against a loop over phrases in float64."""

import numpy as np
import torch

from phrasechain.model.bag_of_words import BagOfWords

TOKENS = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
SPANS = torch.tensor([[0, 2], [4, 5], [1, 4]])
CAPTIONS = torch.tensor([0, 1, 1])


def test_words_count_by_their_attention_within_the_phrase() -> None:
    bag = BagOfWords(3)
    torch.nn.init.normal_(bag.attention.weight, generator=torch.Generator().manual_seed(1))
    weight = bag.attention.weight[0].detach().double().numpy()
    found = bag(TOKENS, SPANS, CAPTIONS).detach().numpy()
    for row, (first, end), caption in zip(found, SPANS.tolist(), CAPTIONS.tolist(), strict=True):
        words = TOKENS[caption, first:end].double().numpy()
        shares = np.exp(words @ weight)
        np.testing.assert_allclose(row, (shares / shares.sum()) @ words, rtol=1e-5)


def test_at_first_all_words_count_the_same() -> None:
    found = BagOfWords(3)(TOKENS, SPANS, CAPTIONS)
    torch.testing.assert_close(found[2], TOKENS[1, 1:4].mean(0))


def test_neither_order_nor_neighbours_matter() -> None:
    bag = BagOfWords(3)
    torch.nn.init.normal_(bag.attention.weight)
    other = TOKENS.clone()
    other[1, [1, 2, 3]] = TOKENS[1, [3, 1, 2]]
    other[1, 0] = other[0, 2] = torch.nan  # before the last phrase, and behind the first
    found, expected = bag(other, SPANS, CAPTIONS), bag(TOKENS, SPANS, CAPTIONS)
    torch.testing.assert_close(found[[0, 2]], expected[[0, 2]])
