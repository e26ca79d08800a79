"""The words of each phrase by themselves, and what is made of them.

Token vectors are those of the caption: an encoder such as ELMo has let the words around a phrase into them.

Axes: B captions, L tokens, e numbers of a token vector, P phrases, W words of the longest phrase, H states.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from phrasechain.model.batch import Batch


def phrase_words(tokens: Tensor, batch: Batch, most: int | None = None) -> tuple[Tensor, Tensor]:
    """The last ``most`` words of each phrase, zeros past its end, and their number: (B, L, e) to (P, W, e) and (P,)."""
    first, end = batch.token_spans.unbind(1)
    if most is not None:
        first = torch.maximum(first, end - most)
    places = first[:, None] + torch.arange(int((end - first).max()), device=first.device)  # (P, W)
    words = tokens[batch.phrase_caption[:, None], places.clamp(max=tokens.shape[1] - 1)]  # (P, W, e)
    return words * (places < end[:, None])[..., None], end - first


def phrase_means(tokens: Tensor, batch: Batch) -> Tensor:
    """The mean of each phrase's word vectors: (B, L, e) to (P, e)."""
    words, counts = phrase_words(tokens, batch)
    return words.sum(1) / counts[:, None]


def last_states(lstm: nn.LSTM, words: Tensor, counts: Tensor) -> Tensor:
    """The state after each phrase's last word, [forward ; backward] of both directions: (P, W, e) to (P, H or 2 H)."""
    packed = pack_padded_sequence(words, counts.cpu(), batch_first=True, enforce_sorted=False)
    _, (states, _) = lstm(packed)  # (1 or 2, P, H)
    return torch.cat(list(states), -1)
