"""QRC Net (Chen, Kovvuri & Nevatia, "Query-Guided Regression Network with Context Policy", ICCV 2017).

A BiLSTM reads the phrase alone; its last states and the regions' features, each batch-normalised, give scores and
offsets by ``ConcatScores``. The loss is the cross-entropy of the region of highest IoU, of phrases that have one of
0.5 or more, plus SmoothL1 of the offsets of all such regions. A phrase takes the refined box of its best region.

The context policy rewards a region with 1 if it is one of the phrase's positives, with 0.2 if it is one of another
phrase of the caption, and with 0 otherwise. ``policy`` says what is made of that:

- ``reinforce`` (the paper): the expected reward J = E_{k ~ p} R_k of regions drawn by the scores' softmax p is raised
  by REINFORCE, ∇J ≈ mean over draws of (R_k − b) ∇ log p_k, where b is a predicted reward.
- ``supervised`` (the released code): the gradient of the supervised loss once more, for the last layer alone, times
  the mean predicted reward and 0.01.

b = sigmoid of a linear layer on [the mean of the ten best regions ; the phrase], learns by ½ (b − R̄)² from the mean
reward R̄ of the draws (of the ten best in ``supervised``), and passes no gradient on.

Decided: ten draws a phrase, as many as the best regions that are looked at; all terms count as they are. The weights of
a batch norm are the network's, its statistics those of the phrases and regions of a process's part of the step.

Axes: P phrases, B captions, T phrases of a chain, K regions, N regions of all images, n draws, D features, H states.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from phrasechain.baselines.base import Baseline
from phrasechain.baselines.losses import box_loss, labelled_counts, log_softmax
from phrasechain.baselines.pairs import ConcatScores, region_rows, region_vectors
from phrasechain.baselines.words import last_states, phrase_words
from phrasechain.core.errors import DataError, unknown_name
from phrasechain.model.batch import Batch
from phrasechain.model.losses import LossTerms, trained_phrases
from phrasechain.model.scores import SPATIAL, Scores
from phrasechain.model.targets import POSITIVE, Targets, hard_targets
from phrasechain.text.base import TextEncoder

OTHERS_REWARD = 0.2
BEST = 10  # regions that the predicted reward looks at, and draws of a phrase
SUPERVISED_RATE = 0.01
POLICIES = ("reinforce", "supervised")


class QRCNet(Baseline):
    """Regression guided by the phrase, with a context policy.

    Args:
        encoder: gives the token vectors.
        region_dimension: D.
        lstm: H of each direction (500 in the paper).
        hidden: of the layer on both vectors (500).
        policy: ``reinforce`` or ``supervised``.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        region_dimension: int,
        *,
        lstm: int = 500,
        hidden: int = 500,
        policy: str = "reinforce",
    ) -> None:
        super().__init__(encoder)
        if policy not in POLICIES:
            raise DataError(unknown_name("context policy", policy, POLICIES))
        self.policy = policy
        regions = region_dimension + SPATIAL
        self.lstm = nn.LSTM(encoder.dimension, lstm, batch_first=True, bidirectional=True)
        self.text_norm, self.region_norm = nn.BatchNorm1d(2 * lstm), nn.BatchNorm1d(regions)
        self.pairs = ConcatScores(2 * lstm, regions, hidden)
        self.reward = nn.Linear(regions + 2 * lstm, 1)

    def forward(self, batch: Batch) -> Scores:
        emissions, offsets = self.pairs(self.phrase_vectors(batch), self.region_rows(batch), batch)
        return Scores(emissions, offsets, None)

    def phrase_vectors(self, batch: Batch) -> Tensor:
        """(P, 2 H)."""
        words, counts = phrase_words(batch.token_vectors(self.encoder), batch)
        return _normalised(self.text_norm, last_states(self.lstm, words, counts))

    def region_rows(self, batch: Batch) -> Tensor:
        """(N, D + 5)."""
        return _normalised(self.region_norm, region_rows(batch))

    def loss_counts(self, batch: Batch, targets: Targets) -> Tensor:
        return labelled_counts(batch, targets)

    def loss(self, batch: Batch, targets: Targets) -> LossTerms:
        count, pairs, _ = self.loss_counts(batch, targets).unbind()
        batch, targets = trained_phrases(batch, targets, "skip")
        phrases, regions = self.phrase_vectors(batch), self.region_rows(batch)
        hidden = self.pairs.hidden(phrases, regions, batch)  # (P, K, h)
        emissions, offsets = self.pairs.split(self.pairs.heads(hidden))
        log_p = log_softmax(emissions, batch)
        labels = hard_targets(targets.iou).masked_fill(~targets.labelled, -100)  # (P,)
        grounding = nll_loss(log_p, labels, reduction="sum")
        boxes = box_loss(offsets, batch, targets)
        reward = rewards(batch, targets)  # (P, K)
        expected = self.predicted_reward(log_p, phrases, regions, batch)  # (P,)
        if self.policy == "reinforce":
            draws = torch.multinomial(log_p.exp(), BEST, replacement=True)  # (P, n)
            policy = reinforce(log_p, draws, reward, expected.detach())
        else:
            draws = log_p.topk(min(BEST, log_p.shape[1])).indices
            again, moved = self.pairs.split(self.pairs.heads(hidden.detach()))
            share = SUPERVISED_RATE * expected.detach().mean()
            policy = share * nll_loss(log_softmax(again, batch), labels, reduction="none")
            boxes = boxes + _gradient_only(share * box_loss(moved, batch, targets))
        error = (expected - reward.gather(1, draws).mean(1)).square() / 2  # (P,)
        extra = torch.where(targets.labelled, _gradient_only(policy) + error, 0.0)
        return LossTerms(grounding + extra.sum(), boxes, count, pairs)

    def predicted_reward(self, log_p: Tensor, phrases: Tensor, regions: Tensor, batch: Batch) -> Tensor:
        """b of each phrase, from the mean of its ten best regions: (P,)."""
        seen = region_vectors(regions.detach(), batch)  # (I, K, D + 5)
        best = log_p.detach().topk(min(BEST, log_p.shape[1])).indices  # (P, n)
        mask = batch.region_mask[batch.phrase_image].gather(1, best)  # an image may have fewer regions
        rows = seen[batch.phrase_image[:, None], best] * mask[..., None]  # (P, n, D + 5)
        mean = rows.sum(1) / mask.sum(1, keepdim=True)
        predicted: Tensor = self.reward(torch.cat([mean, phrases.detach()], -1))[:, 0]
        return predicted.sigmoid()


def rewards(batch: Batch, targets: Targets) -> Tensor:
    """R of each phrase and region: 1 for its positives, 0.2 for those of another phrase of the caption: (P, K)."""
    positive = targets.iou >= POSITIVE  # (P, K)
    anyone = batch.to_chains(positive).any(1)[batch.phrase_caption]  # (P, K)
    return torch.where(positive, 1.0, OTHERS_REWARD * anyone)


def reinforce(log_p: Tensor, draws: Tensor, reward: Tensor, baseline: Tensor) -> Tensor:
    """−mean over draws of (R_k − b) log p_k, (P,), whose gradient is −∇J in expectation.

    Of log p (P, K), draws (P, n) from p, rewards R (P, K) and the baseline b (P,).

    A baseline that does not depend on the draws leaves the expectation as it is and makes the variance smaller.
    """
    advantage = reward.gather(1, draws) - baseline[:, None]  # (P, n)
    return -(advantage * log_p.gather(1, draws)).mean(1)


def _gradient_only(values: Tensor) -> Tensor:
    """0, with the gradient of the values: what is shown as the loss stays the supervised one."""
    return values - values.detach()


def _normalised(norm: nn.BatchNorm1d, rows: Tensor) -> Tensor:
    """Batch norm; one row alone has no statistics and is taken by the running ones, as at inference."""
    alone = norm.training and len(rows) == 1
    if not alone:
        return norm(rows)  # type: ignore[no-any-return]
    return nn.functional.batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
