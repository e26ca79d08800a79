"""DDPN (Yu et al., "Rethinking Diversified and Discriminative Proposal Generation for Visual Grounding", IJCAI 2018).

An LSTM reads the phrase alone. Its last state, after dropout 0.3 and divided by its Euclidean norm, stands beside the
region's features, divided by theirs, and the five numbers of its place; see ``ConcatScores`` for what follows. The loss
is KL(q ‖ softmax of the scores) to the soft label q = IoU·1[IoU ≥ 0.5], normalised, of the phrases that have one, plus
SmoothL1 of the offsets of all such regions divided by (0.1, 0.1, 0.2, 0.2). A phrase takes the refined box of its best
region.

Decided: of a longer phrase the last 15 words count, where the noun is, as in the released code. Features are normalised
as the paper says (the released code relies on its features). SmoothL1 is summed over the four offsets and averaged over
the pairs, and phrases without a positive region are left out of both losses.

Axes: P phrases, K regions, D features, H states.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from phrasechain.baselines.base import Baseline
from phrasechain.baselines.losses import box_loss, labelled_counts, log_softmax
from phrasechain.baselines.pairs import ConcatScores, region_rows
from phrasechain.baselines.words import last_states, phrase_words
from phrasechain.model.batch import Batch
from phrasechain.model.losses import LossTerms, trained_phrases
from phrasechain.model.scores import SPATIAL, Scores
from phrasechain.model.targets import Targets, soft_targets
from phrasechain.text.base import TextEncoder

MOST_WORDS = 15
OFFSET_SCALE = (0.1, 0.1, 0.2, 0.2)


class DDPN(Baseline):
    """Soft labels and box regression over concatenated vectors.

    Args:
        encoder: gives the token vectors.
        region_dimension: D.
        lstm: H (1,024 in the paper).
        hidden: of the layer on both vectors (512 in the paper).
    """

    scale: Tensor

    def __init__(self, encoder: TextEncoder, region_dimension: int, *, lstm: int = 1024, hidden: int = 512) -> None:
        super().__init__(encoder)
        self.lstm = nn.LSTM(encoder.dimension, lstm, batch_first=True)
        self.dropout = nn.Dropout(0.3)
        self.pairs = ConcatScores(lstm, region_dimension + SPATIAL, hidden)
        self.register_buffer("scale", torch.tensor(OFFSET_SCALE), persistent=False)

    def forward(self, batch: Batch) -> Scores:
        scores, offsets = self.pairs(self.phrase_vectors(batch), region_rows(batch, normalise=True), batch)
        return Scores(scores, offsets * self.scale, None)

    def phrase_vectors(self, batch: Batch) -> Tensor:
        """The normalised last state of each phrase: (P, H)."""
        words, counts = phrase_words(batch.token_vectors(self.encoder), batch, MOST_WORDS)
        return normalize(self.dropout(last_states(self.lstm, words, counts)), dim=-1)

    def loss_counts(self, batch: Batch, targets: Targets) -> Tensor:
        return labelled_counts(batch, targets)

    def loss(self, batch: Batch, targets: Targets) -> LossTerms:
        count, pairs, _ = self.loss_counts(batch, targets).unbind()
        batch, targets = trained_phrases(batch, targets, "skip")
        scores = self(batch)
        assert scores.offsets is not None
        q = soft_targets(targets.iou)  # (P, K), zeros where there is no positive region
        kl = (torch.xlogy(q, q) - q * log_softmax(scores.emissions, batch)).sum()
        return LossTerms(kl, box_loss(scores.offsets, batch, targets, self.scale), count, pairs)
