"""BAN (Kim, Jun & Zhang, "Bilinear Attention Networks", NeurIPS 2018), as it grounds phrases.

A GRU reads the caption; q is its state at the phrase's last word and r a region's features, without their place:

    v' = ReLU(W_v r + b_v),        q' = ReLU(W_q q + b_q),        logit = Σ_m h_m v'_m q'_m + b,

one bilinear attention map, with weight norm on W_v, W_q and h (one length each), dropout 0.2 before the
two layers and 0.5 on v'. The loss is the binary cross-entropy with the multi-hot target IoU ≥ 0.5 with *any* of the
phrase's boxes. Boxes are not regressed; a phrase takes the region of highest logit.

Decided: the cross-entropies of all regions and phrases are added up and divided by the captions, as in the released
code; a phrase with a known box that no region meets learns from its zeros, one without a known box does not learn.

Axes: B captions, L tokens, P phrases, I images, K regions, D features, M numbers of v'.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from phrasechain.baselines.base import Baseline
from phrasechain.baselines.pairs import inner_products
from phrasechain.baselines.targets import any_box_targets
from phrasechain.model.batch import Batch
from phrasechain.model.losses import LossTerms
from phrasechain.model.scores import Scores
from phrasechain.model.targets import POSITIVE, Targets
from phrasechain.text.base import TextEncoder

_WHOLE = -1  # one length for all of a matrix, not one for each row


class BAN(Baseline):
    """Bilinear attention between phrases and regions.

    Args:
        encoder: gives the token vectors.
        region_dimension: D.
        hidden: states of the GRU (1,280 in the paper).
        joint: M (3,840 in the paper).
    """

    targets = staticmethod(any_box_targets)

    def __init__(self, encoder: TextEncoder, region_dimension: int, *, hidden: int = 1280, joint: int = 3840) -> None:
        super().__init__(encoder)
        self.gru = nn.GRU(encoder.dimension, hidden, batch_first=True)
        self.region = _projection(region_dimension, joint)
        self.phrase = _projection(hidden, joint)
        self.map = weight_norm(nn.Linear(joint, 1), dim=_WHOLE)
        self.dropout = nn.Dropout(0.5)

    def forward(self, batch: Batch) -> Scores:
        q = self.phrase(self.phrase_states(batch))  # (P, M)
        v = self.dropout(self.region(batch.features.float()))  # (I, K, M)
        logits = inner_products(q * self.map.weight, v, batch) + self.map.bias  # (P, K)
        return Scores(logits, None, None)

    def phrase_states(self, batch: Batch) -> Tensor:
        """The state of the GRU at each phrase's last word: (P, H)."""
        tokens = batch.token_vectors(self.encoder)  # (B, L, e)
        counts = torch.tensor([len(caption) for caption in batch.tokens])
        packed = pack_padded_sequence(tokens, counts, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)  # (B, L, H)
        return states[batch.phrase_caption, batch.token_spans[:, 1] - 1]

    def loss_counts(self, batch: Batch, targets: Targets) -> Tensor:
        captions = batch.to_chains(targets.has_box).any(1).sum()
        return torch.stack([captions, captions.new_zeros(()), targets.has_box.sum()])

    def loss(self, batch: Batch, targets: Targets) -> LossTerms:
        logits = self(batch).emissions
        target = (targets.iou >= POSITIVE).to(logits.dtype)
        learnt = batch.region_mask[batch.phrase_image] & targets.has_box[:, None]  # (P, K)
        losses = binary_cross_entropy_with_logits(logits, target, reduction="none")
        count, pairs, _ = self.loss_counts(batch, targets).unbind()
        return LossTerms(torch.where(learnt, losses, 0.0).sum(), losses.new_zeros(()), count, pairs)


def _projection(inputs: int, outputs: int) -> nn.Sequential:
    """Dropout 0.2, a weight-normed linear layer, ReLU."""
    return nn.Sequential(nn.Dropout(0.2), weight_norm(nn.Linear(inputs, outputs), dim=_WHOLE), nn.ReLU())
