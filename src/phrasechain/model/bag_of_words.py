"""A phrase as a bag of words: a weighted mean of its word vectors, without order or context."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BagOfWords(nn.Module):
    """Σ_l a_l e_l over the tokens l of a phrase, with a = softmax over them of w·e_l: "dog" counts more than "the".

    w starts at 0, with equal weights.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.attention = nn.Linear(dimension, 1, bias=False)
        nn.init.zeros_(self.attention.weight)

    def forward(self, tokens: Tensor, token_spans: Tensor, phrase_caption: Tensor) -> Tensor:
        """Token vectors (B, L, D), spans (P, 2) and captions (P,) of phrases to (P, D)."""
        first, end = token_spans.unbind(1)
        places = first[:, None] + torch.arange(int((end - first).max()), device=first.device)  # (P, W)
        is_word = places < end[:, None]
        words = tokens[phrase_caption[:, None], places.clamp(max=tokens.shape[1] - 1)]
        words = words.masked_fill(~is_word[..., None], 0.0)  # (P, W, D)
        weights: Tensor = self.attention(words)[..., 0].masked_fill(~is_word, -torch.inf).softmax(-1)
        return (weights[:, None] @ words)[:, 0]
