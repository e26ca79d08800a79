"""The grounding model: a caption's phrases and an image's regions in, scores of the chain out."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from phrasechain.data.batch import Batch
from phrasechain.errors import DataError, unknown_name
from phrasechain.scores import BagScores, PairScores, RegionInput, Scores
from phrasechain.text.base import TextEncoder
from phrasechain.text.bilstm import PhraseEncoder
from phrasechain.transitions import TRANSITIONS

INITS = ("xavier", "default")


class GroundingModel(nn.Module):
    """Emissions and offsets of every phrase and region, and for a chain the transitions between neighbouring phrases.

    Args:
        encoder: a text encoder, token embeddings of captions: one of ``text.encoders.ENCODERS``, built.
        region_dimension: D of the store's features, without the five spatial numbers.
        lstm: hidden units of each direction; phrase vectors have twice as many.
        rank, joint: sizes of the low-rank bilinear pooling.
        activation: after it, ``relu`` or ``none``.
        chain: whether neighbouring phrases are linked; without, each phrase is grounded by itself (HL and SL).
        transition: a name of ``TRANSITIONS``.
        context: what transitions see of the caption: ``none``, ``M``, ``M+LR`` or ``M+LR+G``.
        transition_hidden: hidden units of the transition.
        box_regression: whether there are offsets.
        dropout: after the embeddings, the LSTM and the fusion.
        packed: whether the LSTM stops at each caption's end, or runs over the padding as the authors' code does.
        init: ``xavier`` or torch's ``default``; the text encoder keeps its own.
        normalise: of the region features, see ``RegionInput``.
        objectness: whether a region's vector tells how sure its detector is.
        bag: how much a second opinion counts, that of the phrase's words without their order; 0: there is none.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        region_dimension: int,
        *,
        lstm: int = 512,
        rank: int = 1024,
        joint: int = 1024,
        activation: str = "relu",
        chain: bool = True,
        transition: str = "paper",
        context: str = "M",
        transition_hidden: int = 16,
        box_regression: bool = True,
        dropout: float = 0.2,
        packed: bool = True,
        init: str = "xavier",
        normalise: str = "none",
        objectness: bool = False,
        bag: float = 0.0,
    ) -> None:
        super().__init__()
        if transition not in TRANSITIONS:
            raise DataError(unknown_name("transition", transition, TRANSITIONS))
        if init not in INITS:
            raise DataError(unknown_name("initialisation", init, INITS))
        self.region_input = RegionInput(region_dimension, normalise, objectness)
        self.text = PhraseEncoder(encoder, lstm, context=context if chain else "none", dropout=dropout, packed=packed)
        d, regions = self.text.dimension, self.region_input.dimension
        self.pairs = PairScores(
            d, regions, rank=rank, joint=joint, activation=activation, dropout=dropout, box_regression=box_regression
        )
        kind = TRANSITIONS[transition]
        self.transition = kind(regions, d, self.text.context_dimension, transition_hidden) if chain else None
        self.bag_weight = bag
        self.bag = BagScores(encoder.dimension, regions) if bag else None
        if init == "xavier":
            for part in (self.text.lstm, self.pairs, self.transition, self.bag and self.bag.ask):
                xavier_(part)

    def forward(self, batch: Batch) -> Scores:
        """The scores of a batch."""
        scores, *others = self.opinions(batch)
        emissions = sum((self.bag_weight * other.emissions for other in others), scores.emissions)
        return replace(scores, emissions=emissions)

    def opinions(self, batch: Batch) -> list[Scores]:
        """The scores that learn each by itself: those of the phrases in their caption, and those of their words."""
        regions = self.region_input(batch)  # (N, D + 5), or 6 with objectness
        states = self.text.read(batch.tokens)
        phrases, context = self.text.phrases(states, batch)  # (P, d), (B, T-1, c)
        emissions, offsets = self.pairs(phrases, regions, batch)
        opinions = [Scores(emissions, offsets, self._transitions(regions, phrases, context, batch))]
        if self.bag is not None:
            opinions.append(Scores(self.bag(states.tokens, regions, batch), None, None))
        return opinions

    def _transitions(self, regions: Tensor, phrases: Tensor, context: Tensor | None, batch: Batch) -> Tensor | None:
        found: Tensor | None = None
        if self.transition is not None:
            found = self.transition(regions, phrases, context, batch)
        return found


def xavier_(part: nn.Module | None) -> None:
    """Weights uniform in ±√(6 / (inputs + outputs)), each gate of an LSTM by itself; biases 0."""
    for name, values in part.named_parameters() if part is not None else ():
        if values.dim() < 2:
            nn.init.zeros_(values)
        else:
            for matrix in values.detach().chunk(4) if "weight_ih" in name or "weight_hh" in name else (values,):
                nn.init.xavier_uniform_(matrix)
