"""The encoder ``elmo`` (Peters et al., 2018): contextual word vectors from a bidirectional character language model.

A character CNN with highway layers embeds the bytes of each word; LSTM layers with a projected state, one stack per
direction, read the words. ``elmo_files.py`` reads the official weights.

Axes: B captions, N tokens of the longest with its begin and end marks, W distinct words, F filters, C the size of an
LSTM's cell, H of its projected state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phrasechain.core.errors import require_name
from phrasechain.core.tensors import EmptyParameters, assign_weights
from phrasechain.text.base import Captions, TextEncoder, longest
from phrasechain.text.elmo_files import CHARACTERS, read_options, read_weights

LAYERS = ("last", "mean")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}
_BEGIN, _END, _WORD_BEGIN, _WORD_END, _PADDING = range(CHARACTERS - 5, CHARACTERS)  # 1 to 256 are the bytes

State = list[tuple[Tensor, Tensor]]  # per layer: states (2, B, H) and cells (2, B, C)


@lru_cache(maxsize=1 << 16)
def character_ids(word: str, length: int) -> list[int]:
    """The UTF-8 bytes of a word between begin and end marks, padded or cut to ``length``.

    >>> character_ids("dé", 8)
    [259, 101, 196, 170, 260, 261, 261, 261]
    """
    return _bordered([byte + 1 for byte in word.encode("utf-8", "ignore")[: length - 2]], length)


def _bordered(characters: list[int], length: int) -> list[int]:
    ids = [_WORD_BEGIN, *characters, _WORD_END]
    return ids + [_PADDING] * (length - len(ids))


class CharacterEncoder(nn.Module):
    """Words as character ids, (W, length), to (W, H): convolutions, max-pooling, highway layers, projection."""

    def __init__(
        self, dimension: int, filters: Sequence[tuple[int, int]], highways: int, activation: str, projected: int
    ) -> None:
        super().__init__()
        require_name("activation", activation, ACTIVATIONS)
        size = sum(count for _, count in filters)  # F
        self.activation = ACTIVATIONS[activation]
        self.embedding = nn.Embedding(CHARACTERS, dimension)
        self.convolutions = nn.ModuleList(nn.Conv1d(dimension, count, width) for width, count in filters)
        self.highways = nn.ModuleList(nn.Linear(size, 2 * size) for _ in range(highways))  # relu part, then the gate
        self.projection = nn.Linear(size, projected)

    def forward(self, ids: Tensor) -> Tensor:
        characters = self.embedding(ids).transpose(1, 2)  # (W, dimension, length)
        best = [self.activation(layer(characters).amax(-1)) for layer in self.convolutions]
        words = torch.cat(best, -1)  # (W, F)
        for layer in self.highways:
            new, gate = layer(words).chunk(2, -1)
            words = torch.lerp(words, F.relu(new), torch.sigmoid(gate))
        projected: Tensor = self.projection(words)
        return projected  # (W, H)


class ProjectedLstm(nn.Module):
    """One LSTM layer with projection (LSTMP), both directions at once; cells and states are clipped.

    Gates are in the order input, forget, new, output, as in torch.
    """

    def __init__(self, size: int, cell: int, cell_clip: float | None, state_clip: float | None) -> None:
        super().__init__()
        self.cell_clip, self.state_clip = cell_clip, state_clip
        self.input_weight = nn.Parameter(torch.empty(2, 4 * cell, size))
        self.state_weight = nn.Parameter(torch.empty(2, 4 * cell, size))
        self.bias = nn.Parameter(torch.zeros(2, 4 * cell))
        self.projection = nn.Parameter(torch.empty(2, size, cell))
        for weight in (self.input_weight, self.state_weight, self.projection):
            nn.init.uniform_(weight, -(weight.shape[-1] ** -0.5), weight.shape[-1] ** -0.5)

    def forward(self, inputs: Tensor, running: Sequence[int], state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """From (2, N, B, H), each direction in the order in which it reads, to (2, N + 1, B, H) and cells (2, B, C).

        Captions are sorted by length: the first ``running[n]`` have a token at step n, the others keep their states.
        Step 0 of the result is the initial state.
        """
        _, N, B, H = inputs.shape
        given = torch.baddbmm(self.bias[:, None], inputs.reshape(2, N * B, H), self.input_weight.transpose(1, 2))
        given = given.view(2, N, B, -1)  # (2, N, B, 4 C)
        states, cells = state
        steps = [states]
        for n, count in enumerate(running):
            gates = torch.baddbmm(given[:, n, :count], states[:, :count], self.state_weight.transpose(1, 2))
            enter, forget, new, leave = gates.chunk(4, -1)
            cell = _clip(enter.sigmoid() * new.tanh() + forget.sigmoid() * cells[:, :count], self.cell_clip)
            output = torch.bmm(leave.sigmoid() * cell.tanh(), self.projection.transpose(1, 2))
            cells = torch.cat([cell, cells[:, count:]], 1)
            states = torch.cat([_clip(output, self.state_clip), states[:, count:]], 1)
            steps.append(states)
        return torch.stack(steps, 1), cells


def _clip(values: Tensor, bound: float | None) -> Tensor:
    return values if bound is None else values.clamp(-bound, bound)


class ElmoEncoder(TextEncoder):
    """ELMo: (B, L, 2 H), forward then backward. :meth:`from_files` reads the official weights.

    Args:
        characters, filters, highways, activation: of the character CNN; a filter is its width and its count.
        longest_word: bytes of a word that are read, its marks included.
        state, cell, depth: H, C and the number of LSTM layers.
        cell_clip, state_clip: bounds of cells and states, or None.
        skip: add a layer's input to its output, from the second layer on.
        layers: ``last``, the top layer, or ``mean`` of all layers and the words' own vectors (twice, side by side).
        stateful: start each caption from the final state of the same row of the batch before, as the authors' code
            does: outputs depend on earlier batches. ``reset`` clears the state.
        lowercase: read words in lower case, as the authors' code does; the official weights are cased.
        frozen: train no weights.
    """

    def __init__(
        self,
        *,
        characters: int,
        filters: Sequence[Sequence[int]],
        highways: int,
        activation: str,
        longest_word: int,
        state: int,
        cell: int,
        depth: int,
        cell_clip: float | None,
        state_clip: float | None,
        skip: bool,
        layers: str = "last",
        stateful: bool = False,
        lowercase: bool = False,
        frozen: bool = True,
    ) -> None:
        super().__init__()
        require_name("choice of ELMo layers", layers, LAYERS)
        pairs = [(width, count) for width, count in filters]
        self._settings: dict[str, Any] = {
            "characters": characters, "filters": [list(pair) for pair in pairs], "highways": highways,
            "activation": activation, "longest_word": longest_word, "state": state, "cell": cell, "depth": depth,
            "cell_clip": cell_clip, "state_clip": state_clip, "skip": skip, "layers": layers, "stateful": stateful,
            "lowercase": lowercase, "frozen": frozen,
        }  # fmt: skip
        self.dimension = 2 * state
        self.longest_word, self.skip, self.layers, self.stateful = longest_word, skip, layers, stateful
        self._lowercase, self._cell = lowercase, cell
        self.characters = CharacterEncoder(characters, pairs, highways, activation, state)
        self.lstms = nn.ModuleList(ProjectedLstm(state, cell, cell_clip, state_clip) for _ in range(depth))
        self.requires_grad_(not frozen)
        self._state: State | None = None

    @classmethod
    def from_files(cls, options: Path | str, weights: Path | str, layers: str = "last", **settings: Any) -> Self:
        """From an official ``options.json`` and ``weights.hdf5``; ``settings``: stateful, lowercase, frozen."""
        sizes = read_options(Path(options))
        state = read_weights(Path(weights), sizes)
        with EmptyParameters():
            encoder = cls(**sizes, layers=layers, **settings)
        assign_weights(encoder, state, "options")
        return encoder

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self._settings)

    def reset(self) -> None:
        """Clear the state that earlier batches left."""
        self._state = None

    def forward(self, captions: Captions) -> Tensor:
        L = longest(captions)
        if self._lowercase:
            captions = [[word.lower() for word in caption] for caption in captions]
        if not L:
            return self.characters.projection.weight.new_zeros(len(captions), L, self.dimension)
        order = sorted(range(len(captions)), key=lambda b: -len(captions[b]))  # long captions first: see ``running``
        words = self._embed([captions[b] for b in order])  # (N, B, H)
        sizes = [len(captions[b]) + 2 for b in order]
        running = [sum(size > n for size in sizes) for n in range(L + 2)]
        lengths = torch.tensor(sizes, device=words.device)
        turned = _turned(lengths, L + 2)
        inputs = torch.stack([words, words.gather(0, turned.expand_as(words))])  # (2, N, B, H) as each direction reads
        rows = torch.tensor(order, device=words.device)
        result = self._read(inputs, running, rows)
        result = torch.cat([result[0], result[1].gather(0, turned.expand_as(result[1]))], -1)[1:-1]  # (L, B, 2 H)
        inside = torch.arange(L, device=words.device)[:, None] < lengths - 2
        result = torch.where(inside[..., None], result, 0.0).transpose(0, 1)
        return torch.empty_like(result).index_copy(0, rows, result).float()  # (B, L, 2 H)

    def _embed(self, captions: Captions) -> Tensor:
        """The words' vectors with begin and end marks, each distinct word embedded once: (N, B, H)."""
        L, device = longest(captions), self.characters.projection.weight.device
        places: dict[str, int] = {}  # of distinct words, after the two marks
        index = [[places.setdefault(word, len(places) + 2) for word in caption] for caption in captions]
        index = [[0, *row, 1] + [1] * (L - len(row)) for row in index]
        marks = [_bordered([mark], self.longest_word) for mark in (_BEGIN, _END)]
        ids = torch.tensor([*marks, *(character_ids(word, self.longest_word) for word in places)], device=device)
        return F.embedding(torch.tensor(index, device=device).t(), self.characters(ids))

    def _read(self, inputs: Tensor, running: Sequence[int], rows: Tensor) -> Tensor:
        """Run the layers over (2, N, B, H); the top one, or the mean of all, in the same order of tokens."""
        before = self._states_of(inputs, rows)
        after: State = []
        outputs = [inputs]
        for place, (lstm, state) in enumerate(zip(self.lstms, before, strict=True)):
            steps, cells = lstm(outputs[-1], running, state)
            after.append((steps[:, -1].detach(), cells.detach()))
            outputs.append(steps[:, 1:] + outputs[-1] if self.skip and place else steps[:, 1:])
        if self.stateful:
            self._keep(after, rows)
        return torch.stack(outputs).mean(0) if self.layers == "mean" else outputs[-1]

    def _states_of(self, inputs: Tensor, rows: Tensor) -> State:
        """The initial states: zeros, or the final ones of the same rows."""
        _, _, B, H = inputs.shape
        zeros = [(inputs.new_zeros(2, B, H), inputs.new_zeros(2, B, self._cell)) for _ in self.lstms]
        if not self.stateful:
            return zeros
        kept = self._state or zeros
        self._state = [
            (_grown(state, no_state), _grown(cell, no_cell))
            for (state, cell), (no_state, no_cell) in zip(kept, zeros, strict=True)
        ]
        return [(state[:, rows], cell[:, rows]) for state, cell in self._state]

    def _keep(self, after: State, rows: Tensor) -> None:
        """Put the states back into their rows; rows beyond this batch keep theirs."""
        assert self._state is not None
        self._state = [
            (old_state.index_copy(1, rows, state), old_cell.index_copy(1, rows, cell))
            for (old_state, old_cell), (state, cell) in zip(self._state, after, strict=True)
        ]


def _grown(kept: Tensor, zeros: Tensor) -> Tensor:
    """States with rows of zeros for a batch larger than any before: (2, R, C) and (2, B, C) to (2, max, C)."""
    return torch.cat([kept.to(zeros), zeros[:, kept.shape[1] :]], 1)


def _turned(lengths: Tensor, N: int) -> Tensor:
    """The places of each caption's tokens in reverse, with padding left in place: (N, B, 1)."""
    place = torch.arange(N, device=lengths.device)[:, None]
    return torch.where(place < lengths, lengths - 1 - place, place)[..., None]
