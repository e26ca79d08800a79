"""The grounding model: from the phrases of captions and the regions of images to the scores of the chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from inspect import signature

import torch
from torch import Tensor, nn

from phrasechain.core.errors import DataError, require_name
from phrasechain.model.batch import Batch
from phrasechain.model.edges import Edges
from phrasechain.model.phrase_encoder import PhraseEncoder, TokenStates
from phrasechain.model.presence import PresenceScores, PresenceTransitions
from phrasechain.model.rivals import with_rivals
from phrasechain.model.scores import BagOfWordsScores, PairScores, RegionInput, Scores
from phrasechain.model.system import GroundingSystem
from phrasechain.model.transitions import TRANSITIONS, GeometricTransition, PaperTransition, pair_features_xyxy
from phrasechain.text.base import TextEncoder

INITS = ("xavier", "default", "paper")


class GroundingModel(GroundingSystem):
    """Emissions and offsets of every phrase and region and, for a chain, transitions between neighbouring phrases.

    Args:
        encoder: a text encoder, built from ``text.encoders.ENCODERS``.
        region_dimension: D of the store's features, without the five spatial ones.
        lstm: hidden units of each direction; phrase vectors have twice as many.
        rank, joint: sizes of the low-rank bilinear pooling.
        activation: after the pooling, ``relu`` or ``none``.
        chain: whether there are transitions; without, each phrase is grounded by itself (HL and SL).
        transition: a name of ``TRANSITIONS``.
        second_order: whether phrases with one between them are linked as well (``ChainCRF``'s skips), by a transition
            of the same kind with weights of its own.
        context: what transitions see of the caption: ``none``, ``M``, ``M+LR`` or ``M+LR+G``.
        transition_hidden: hidden units of the transition.
        box_regression: whether there are offsets.
        dropout: after the embeddings, the LSTM and the fusion.
        packed: whether the LSTM stops at each caption's end, or runs over the padding as the authors' code does.
        init: ``xavier``, torch's ``default``, or ``paper``: Xavier's, with one bound for the whole first layer of the
            transition, on [r_k ; r_k' ; ctx], instead of one for each part. The text encoder keeps its own.
        normalise: of the region features, see ``RegionInput``.
        bag_of_words: weight of the emissions of a bag-of-words scorer, which are added; 0: there is none.
        ensemble: networks on the same word vectors, each with its own LSTM, pooling and transition, whose scores are
            averaged.
        absent: whether there is a label ∅ for what the photo does not show, see ``presence``.
        rivals: how strongly phrases of one category are kept from taking the same region, see ``rivals``; not in
            training.
    """

    text: PhraseEncoder

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
        second_order: bool = False,
        context: str = "M",
        transition_hidden: int = 16,
        box_regression: bool = True,
        dropout: float = 0.2,
        packed: bool = True,
        init: str = "xavier",
        normalise: str = "none",
        bag_of_words: float = 0.0,
        ensemble: int = 1,
        absent: bool = False,
        rivals: float = 0.0,
    ) -> None:
        super().__init__()
        require_name("transition", transition, TRANSITIONS)
        require_name("initialisation", init, INITS)
        self.region_input = RegionInput(region_dimension, normalise)
        self.text = PhraseEncoder(encoder, lstm, context=context if chain else "none", dropout=dropout, packed=packed)
        d, regions = self.text.dimension, self.region_input.dimension
        kind = TRANSITIONS[transition]

        def make_pairs() -> PairScores:
            return PairScores(
                d,
                regions,
                rank=rank,
                joint=joint,
                activation=activation,
                dropout=dropout,
                box_regression=box_regression,
                matches=absent,
            )

        def make_transition(wanted: bool = True) -> nn.Module | None:
            return kind(regions, d, self.text.context_dimension, transition_hidden) if chain and wanted else None

        def make_presence() -> Presence | None:
            return Presence(d, self.text.context_dimension, chain) if absent else None

        self.pairs, self.transition, self.presence = make_pairs(), make_transition(), make_presence()
        self.skip = make_transition(second_order)
        if self.skip is not None and "edges" not in signature(self.skip.forward).parameters:
            raise DataError(f"the transition {transition!r} scores neighbours alone; leave model.second_order false")
        self.bag_weight, self.rivals = bag_of_words, rivals
        self.bag = BagOfWordsScores(encoder.dimension, regions) if bag_of_words else None
        self.others = nn.ModuleList(
            Member(
                self.text.make_lstm(), make_pairs(), make_transition(), make_presence(), make_transition(second_order)
            )
            for _ in range(ensemble - 1)
        )
        if init != "default":
            bag = self.bag and self.bag.ask
            for part in (self.text.lstm, self.pairs, self.transition, self.presence, self.skip, bag, self.others):
                xavier_(part)
        if init == "paper":
            for part in self.modules():
                if isinstance(part, PaperTransition):
                    part.xavier_as_one_layer_()

    def forward(self, batch: Batch) -> Scores:
        """The scores of a batch: the mean of the ensemble's, plus the weighted emissions of the bag of words.

        The links between rivals are added to that.
        """
        ensemble = self.member_scores(batch)
        bag = ensemble.pop() if self.bag is not None else None
        scores = average(ensemble)
        if bag is not None:
            scores = replace(scores, emissions=scores.emissions + self.bag_weight * bag.emissions)
        return with_rivals(scores, batch, self.rivals)

    def member_scores(self, batch: Batch) -> list[Scores]:
        """The scores that have a loss each: those of the ensemble's members, then those of the bag of words."""
        regions = self.region_input(batch)  # (N, D + 5)
        vectors = batch.token_vectors(self.text.encoder)  # (B, L, e)
        shared = self._shared(batch)
        found, tokens = [], vectors
        for lstm, pairs, transition, presence, skip in self._members():
            states = self.text.states(vectors, batch.tokens, lstm)
            phrases, context = self.text.phrases(states, batch)  # (P, d), (B, T-1, c)
            emissions, offsets, matches = pairs(phrases, regions, batch)
            transitions = None if transition is None else transition(regions, phrases, context, batch, **shared)
            absent = () if presence is None else presence(phrases, context, emissions, matches, batch)
            skips = None if skip is None else self._skips(skip, regions, phrases, states, batch, shared)
            found.append(Scores(emissions, offsets, transitions, skips, *absent))
            tokens = states.tokens
        if self.bag is not None:
            found.append(Scores(self.bag(tokens, regions, batch), None, None))
        return found

    def _skips(
        self,
        skip: nn.Module,
        regions: Tensor,
        phrases: Tensor,
        states: TokenStates,
        batch: Batch,
        shared: dict[str, Tensor],
    ) -> Tensor | None:
        """The scores of phrases with one between them, (B, T-2, K, K), if any caption has three phrases."""
        if batch.steps < 3:
            return None
        edges = Edges.of(batch, distance=2)
        skips: Tensor = skip(regions, phrases, self.text.contexts(states, batch, edges), batch, edges=edges, **shared)
        return skips

    def _shared(self, batch: Batch) -> dict[str, Tensor]:
        """What several transitions see of how regions lie to each other, computed once."""
        if not (self.others or self.skip) or not isinstance(self.transition, GeometricTransition):
            return {}
        return {"geometry": pair_features_xyxy(batch.boxes, batch.sizes)}

    def _members(self) -> Iterator[tuple[nn.LSTM, PairScores, nn.Module | None, Presence | None, nn.Module | None]]:
        yield self.text.lstm, self.pairs, self.transition, self.presence, self.skip
        for other in self.others:
            assert isinstance(other, Member)
            yield other.lstm, other.pairs, other.transition, other.presence, other.skip


class Member(nn.Module):
    """What one more member of the ensemble has for itself."""

    def __init__(
        self,
        lstm: nn.LSTM,
        pairs: PairScores,
        transition: nn.Module | None,
        presence: Presence | None,
        skip: nn.Module | None,
    ) -> None:
        super().__init__()
        self.lstm, self.pairs, self.transition, self.presence, self.skip = lstm, pairs, transition, presence, skip


class Presence(nn.Module):
    """The scores of the label ∅: of phrases and, in a chain, of edges."""

    def __init__(self, text_dimension: int, context_dimension: int, chain: bool) -> None:
        super().__init__()
        self.phrases = PresenceScores(text_dimension)
        self.edges = PresenceTransitions(text_dimension, context_dimension) if chain else None

    def forward(
        self, phrases: Tensor, context: Tensor | None, emissions: Tensor, matches: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (P,) and, in a chain, transitions (B, T-1, 3)."""
        edges = None if self.edges is None else self.edges(phrases, context, batch)
        return self.phrases(phrases, emissions, matches, batch), edges


def average(members: Sequence[Scores]) -> Scores:
    """The mean of the scores of an ensemble, whose members all have the same parts."""

    def mean(*parts: Tensor | None) -> Tensor | None:
        return None if parts[0] is None else torch.stack(parts).mean(0)  # type: ignore[arg-type]

    if len(members) == 1:
        return members[0]
    emissions, *others = (mean(*(getattr(each, part.name) for each in members)) for part in fields(Scores))
    assert emissions is not None
    return Scores(emissions, *others)


def xavier_(part: nn.Module | None) -> None:
    """Xavier's uniform initialisation, ±√(6 / (inputs + outputs)), of each gate of an LSTM by itself; biases 0."""
    for name, values in part.named_parameters() if part is not None else ():
        if values.dim() < 2:
            nn.init.zeros_(values)
        else:
            for matrix in values.detach().chunk(4) if "weight_ih" in name or "weight_hh" in name else (values,):
                nn.init.xavier_uniform_(matrix)
