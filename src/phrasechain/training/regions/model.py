"""The region network in training: the network, a head for words, embeddings of phrases, and its losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phrasechain.core.boxes import iou_xyxy
from phrasechain.regions.network import DenseProposals, FeatureMaps, ProposalHead, RegionNetwork, RegionOutputs
from phrasechain.regions.nms import best_boxes
from phrasechain.training.regions.losses import (
    NEAR,
    Supervision,
    phrase_loss,
    proposal_losses,
    quality_losses,
    word_loss,
)
from phrasechain.training.regions.vocabulary import RegionTargets

#: How much each loss counts.
LOSS_WEIGHTS = {"score": 1.0, "extent": 2.0, "quality": 1.0, "refine": 1.0, "words": 0.1, "phrases": 1.0}
_CANDIDATES, _PROPOSALS, _OVERLAP = 500, 64, 0.6
_JITTER = 0.1  # of a named box's sides, for boxes that are almost right
_RARE = -5.0  # a word's logit before anything is learnt
_DROPOUT = 0.2  # of the features, so that words are known by more than one of them
_NOWHERE = -1e4  # the score of a box that is none, or that does not compete
_NOTHING = -4.0  # an anchor's score before anything is learnt: most stand for nothing


@dataclass(frozen=True, slots=True)
class RegionTargetBatch:
    """The targets of B photos as tensors, of G boxes each, V words, P phrases in all."""

    named: Tensor  # (B, G, 4), zeros where there are fewer
    words: Tensor  # (B, G, V) in {0, 1}
    phrase_image: Tensor  # (P,)
    phrase_box: Tensor  # (P,)
    phrase_words: Tensor  # the words of all phrases, one after the other
    phrase_starts: Tensor  # (P,) where each phrase's words begin
    supervision: Supervision
    unknown: Tensor | None  # (B, G, V) bool: neither shown nor known to be absent; None if all targets are complete


def stack_targets(
    targets: Sequence[RegionTargets], vocabulary_size: int, partial_weight: float = 1.0
) -> RegionTargetBatch:
    """Pad all to the photo with most boxes; phrases without a known word are left out.

    ``partial_weight`` is the weight of photos with partial targets; that of others is 1.
    """
    named = torch.zeros(len(targets), max(1, *(len(target.boxes) for target in targets)), 4)
    words = torch.zeros(*named.shape[:2], vocabulary_size)
    phrases: list[tuple[int, int, tuple[int, ...]]] = []
    for image, target in enumerate(targets):
        named[image, : len(target.boxes)] = target.boxes
        for box, known in enumerate(target.words):
            words[image, box, list(known)] = 1
        phrases += [(image, box, known) for box, known in target.phrases if known]
    is_partial = torch.tensor([target.absent is not None for target in targets])
    lengths = torch.tensor([len(known) for _, _, known in phrases], dtype=torch.int64)
    return RegionTargetBatch(
        named=named,
        words=words,
        phrase_image=torch.tensor([image for image, _, _ in phrases], dtype=torch.int64),
        phrase_box=torch.tensor([box for _, box, _ in phrases], dtype=torch.int64),
        phrase_words=torch.tensor([word for _, _, known in phrases for word in known], dtype=torch.int64),
        phrase_starts=lengths.cumsum(0) - lengths,
        supervision=Supervision(torch.where(is_partial, partial_weight, 1.0), is_partial),
        unknown=_unknown_words(targets, words) if bool(is_partial.any()) else None,
    )


def _unknown_words(targets: Sequence[RegionTargets], words: Tensor) -> Tensor:
    """Which words of a box are neither shown nor known to be absent: bool, as words (B, G, V)."""
    unknown = torch.zeros_like(words, dtype=torch.bool)
    for image, target in enumerate(targets):
        for box, absent in enumerate(target.absent or ()):
            unknown[image, box] = words[image, box] == 0
            unknown[image, box, list(absent)] = False
    return unknown


class RegionTrainingModel(nn.Module):
    """A network that is asked for boxes, for the words of a box and for the box of a phrase."""

    def __init__(self, network: RegionNetwork, vocabulary_size: int, unmarked_rivals: bool = False) -> None:
        """With ``unmarked_rivals``, boxes far from all named ones compete for phrases of partial targets, too.

        That is right where a class is marked wherever it is.
        """
        super().__init__()
        self.network, self.unmarked_rivals = network, unmarked_rivals
        self.words = nn.Linear(network.dimension, vocabulary_size)
        self.phrase = nn.EmbeddingBag(vocabulary_size, network.dimension, mode="mean")
        for head in network.proposal_heads:
            assert isinstance(head, ProposalHead)
            head.say.load_state_dict(_quiet(head.say))
            head.say.state_dict()["bias"][::5] = _NOTHING
        network.region_head.judge.load_state_dict(_quiet(network.region_head.judge))
        nn.init.constant_(self.words.bias, _RARE)
        nn.init.normal_(self.phrase.weight, std=0.5)

    def parts(self) -> tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
        """The weights that learn: of words and phrases, of the network's heads, and of its trunk."""
        trunk = [weight for weight in self.network.trunk.parameters() if weight.requires_grad]
        heads = [weight for name, weight in self.network.named_parameters() if not name.startswith("trunk.")]
        return [*self.words.parameters(), *self.phrase.parameters()], heads, trunk

    def forward(self, trunk_maps: Sequence[Tensor], targets: RegionTargetBatch) -> dict[str, Tensor]:
        """The losses by name, from the trunk's maps of B photos. Under autocast too, losses are in float32."""
        maps, found = self.network.from_trunk(*trunk_maps)
        dense = DenseProposals(*(each.float() for each in found))
        score, extent = proposal_losses(
            dense.score, dense.boxes, self.network.anchors, targets.named, targets.supervision
        )
        boxes = self._boxes(dense.score.detach(), dense.boxes.detach(), targets.named)  # (B, K, 4)
        return {"score": score, "extent": extent} | self._region_losses(maps, boxes, targets)

    def _boxes(self, score: Tensor, boxes: Tensor, named: Tensor) -> Tensor:
        """What the region head learns from: proposals, the named boxes and boxes a little beside them."""
        proposals = best_boxes(score, boxes, _CANDIDATES, _OVERLAP, _PROPOSALS).boxes
        sides = (named[..., 2:] - named[..., :2]).repeat(1, 1, 2)
        beside = named + torch.randn_like(named) * _JITTER * sides
        return torch.cat((proposals, named, beside.clamp(0, 1)), 1)

    def _region_losses(self, maps: FeatureMaps, boxes: Tensor, targets: RegionTargetBatch) -> dict[str, Tensor]:
        named, image, weight = targets.named, targets.phrase_image, targets.supervision.weight
        described = RegionOutputs(*(each.float() for each in self.network.region_head(maps, boxes)))
        features = F.dropout(described.features, _DROPOUT, self.training)  # (B, K, D)
        quality, refine = quality_losses(described.quality, described.boxes, boxes, named, targets.supervision)
        phrases = self.phrase(targets.phrase_words, targets.phrase_starts)  # (P, D)
        scores = (features[image] @ phrases[:, :, None])[..., 0].float()  # (P, K)
        scores = torch.where(self._rivals(boxes, targets)[image], scores, _NOWHERE)
        gold = named[image, targets.phrase_box]
        return {
            "quality": quality,
            "refine": refine,
            "words": word_loss(self.words(features).float(), boxes, named, targets.words, targets.unknown, weight),
            "phrases": phrase_loss(scores, boxes[image], gold, weight[image]),
        }

    def _rivals(self, boxes: Tensor, targets: RegionTargetBatch) -> Tensor:
        """The boxes (B, K) that compete for a phrase: with partial targets those near a named one."""
        is_box = (boxes[..., 2:] > boxes[..., :2]).all(-1)
        if self.unmarked_rivals or targets.unknown is None:
            return is_box
        is_near = (iou_xyxy(boxes[:, :, None], targets.named[:, None]) >= NEAR).any(-1)
        return is_box & (is_near | ~targets.supervision.is_partial[:, None])


def _quiet(layer: nn.Module) -> dict[str, Tensor]:
    """Weights for a layer that says next to nothing at first."""
    return {
        name: torch.randn_like(weight) * (0.01 if name == "weight" else 0)
        for name, weight in layer.state_dict().items()
    }
