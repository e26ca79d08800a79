"""The phrase encoder: a BiLSTM over token vectors, phrase vectors and the context of transitions (paper, section 4.2).

    (→h, ←h) = BiLSTM(Embed(c_1 … c_L))        p^t = [→h at the last token of phrase t ; ←h at its first]

The context of the transition from phrase t-1 to t is made of some of

    M  [→h before phrase t starts ; ←h after phrase t-1 ends]: the words between them
    L  p^{t-1}
    R  p^t
    G  [→h at the caption's last token ; ←h at its first]

The same parts make the context of phrases t-2 and t, in a second-order chain. The formula of M also holds for phrases
that touch, where it is [→h at the last token of t-1 ; ←h at the first token of t], and for phrases that overlap. Before
a caption's first token and after its last the state is the initial one, zeros.

Axes: B captions, L tokens, H states of one direction, P phrases, T phrases of the longest chain, E edges.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from phrasechain.core.errors import require_name
from phrasechain.model.batch import Batch
from phrasechain.model.edges import Edges
from phrasechain.model.lstm import read_both_ways
from phrasechain.text.base import Captions, TextEncoder

#: The parts of a context, each of 2 H values, in their order.
CONTEXTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "M": ("M",),
    "M+LR": ("M", "L", "R"),
    "M+LR+G": ("M", "L", "R", "G"),
}


class TokenStates(NamedTuple):
    """The states of both directions at each token. Row L is the initial state: after the last token and, as -1, before
    the first."""

    forward: Tensor  # (B, L + 1, H)
    backward: Tensor  # (B, L + 1, H)
    last: Tensor  # (B,) int64: the index of each caption's last token
    tokens: Tensor  # (B, L, D): the LSTM's input


class PhraseEncoder(nn.Module):
    """Captions → token vectors → dropout → BiLSTM → dropout → phrase vectors and contexts.

    Args:
        encoder: gives the token vectors.
        hidden: H; a phrase vector has ``dimension`` 2 H, a context ``context_dimension``.
        context: the context of transitions, one of ``CONTEXTS``.
        dropout: of the token vectors and of the states.
        packed: stop at each caption's end, so that nothing depends on the rest of the batch. The authors' code runs
            over the padding: its backward states start there, G has the forward state at the padding's end, and so has,
            by a negative index, what comes before the first token.
    """

    def __init__(
        self, encoder: TextEncoder, hidden: int, *, context: str = "M", dropout: float = 0.0, packed: bool = True
    ) -> None:
        super().__init__()
        require_name("context", context, CONTEXTS)
        self.encoder, self.context, self.packed = encoder, context, packed
        self.dimension = 2 * hidden
        self.context_dimension = len(CONTEXTS[context]) * self.dimension
        self.dropout = nn.Dropout(dropout)
        self.lstm = self.make_lstm()

    def make_lstm(self) -> nn.LSTM:
        """A new LSTM for these token vectors."""
        return nn.LSTM(self.encoder.dimension, self.dimension // 2, batch_first=True, bidirectional=True)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Phrase vectors (P, 2 H), and contexts (B, T-1, c) or None."""
        states = self.states(batch.token_vectors(self.encoder), batch.tokens, self.lstm)
        return self.phrases(states, batch)

    def phrases(self, states: TokenStates, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The same, from the states at the tokens of the batch's captions."""
        phrases = phrase_vectors(states, batch.token_spans, batch.phrase_caption)
        return phrases, self.contexts(states, batch, Edges.of(batch))

    def contexts(self, states: TokenStates, batch: Batch, edges: Edges) -> Tensor | None:
        """The context of each edge, in chains, or None."""
        return context_vectors(states, self.context, batch, edges) if CONTEXTS[self.context] else None

    def read(self, captions: Captions) -> TokenStates:
        """The states at the tokens of captions, none of which is empty."""
        return self.states(self.encoder(captions), captions, self.lstm)

    def states(self, vectors: Tensor, captions: Captions, lstm: nn.LSTM) -> TokenStates:
        """The same by a given LSTM, from the token vectors (B, L, D)."""
        tokens, counts = self.dropout(vectors), [len(caption) for caption in captions]
        L = tokens.shape[1]
        states = read_both_ways(lstm, tokens, counts if self.packed else [L] * len(counts))
        if not self.packed:
            counts, states = [L] * len(counts), torch.cat([states[:, :-1], states[:, -2:-1]], 1)
        forward, backward = self.dropout(states).chunk(2, -1)
        return TokenStates(forward, backward, torch.tensor(counts, device=tokens.device) - 1, tokens)


def phrase_vectors(states: TokenStates, token_spans: Tensor, phrase_caption: Tensor) -> Tensor:
    """p = [→h at the phrase's last token ; ←h at its first]: spans (P, 2) and captions (P,) to (P, 2 H)."""
    first, end = token_spans.unbind(1)
    return torch.cat([states.forward[phrase_caption, end - 1], states.backward[phrase_caption, first]], -1)


def context_vectors(states: TokenStates, context: str, batch: Batch, edges: Edges) -> Tensor:
    """The context of each edge: (B, T - distance, parts · 2 H), zeros past each chain's end."""
    left, right, caption, spans = edges.left, edges.right, edges.caption, batch.token_spans
    makers = {
        "M": lambda: _between(states, caption, spans[left, 1], spans[right, 0]),
        "L": lambda: phrase_vectors(states, spans[left], caption),
        "R": lambda: phrase_vectors(states, spans[right], caption),
        "G": lambda: _whole_caption(states)[caption],
    }
    values = torch.cat([makers[part]() for part in CONTEXTS[context]], -1)  # (E, parts · 2 H)
    return edges.to_chains(values, batch)


def _between(states: TokenStates, caption: Tensor, end: Tensor, start: Tensor) -> Tensor:
    """M of phrases that end and start there: (E,) each to (E, 2 H)."""
    return torch.cat([states.forward[caption, start - 1], states.backward[caption, end]], -1)


def _whole_caption(states: TokenStates) -> Tensor:
    """G of each caption: (B, 2 H)."""
    caption = torch.arange(len(states.last), device=states.last.device)
    return torch.cat([states.forward[caption, states.last], states.backward[:, 0]], -1)
