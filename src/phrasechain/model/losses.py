"""What a model is trained on, as sums and counts, so that many processes can add theirs up before they divide.

The grounding loss is KL(q ‖ p) of the targets q and the chain p, or of each phrase by itself for independent models. A
hard target is a q with all its mass on one region, and KL is then −log p of it. A phrase that the photo does not show
has all its mass on the label ∅, where the model has one. A phrase without a target that is still in the chain is summed
out exactly; ``trained_phrases`` says which phrases are.

Axes: B captions, T phrases in a chain, P phrases, K regions, Q positive pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot, smooth_l1_loss

from phrasechain.chain import ChainCRF
from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import require_name
from phrasechain.model.batch import Batch, keep_phrases
from phrasechain.model.decode import refine
from phrasechain.model.presence import with_absent_label, with_absent_mask
from phrasechain.model.scores import Scores
from phrasechain.model.targets import Targets, hard_targets, positive_pairs, soft_targets

UNLABELLED = ("skip", "marginalise", "best")
DIVIDE = ("labelled", "all", "captions")
REGRESS = ("all", "best")
OFFSETS = ("mean", "sum")


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Sums and what to divide them by; the loss is grounding / count + gamma · boxes / pairs."""

    grounding: Tensor  # the sum of KL(q ‖ p)
    boxes: Tensor  # the sum over positive pairs of the mean, or sum, of the SmoothL1 of their four offsets
    count: Tensor  # how many phrases ``grounding`` is of, or captions
    pairs: Tensor  # how many positive pairs


def training_loss(
    member_scores: Callable[[Batch], Sequence[Scores]],
    batch: Batch,
    targets: Targets,
    *,
    kind: str = "soft",
    unlabelled: str = "skip",
    divide: str = "labelled",
    regress: str = "all",
    offsets: str = "mean",
    least_side: float = 0.0,
) -> LossTerms:
    """Score the phrases that are trained, and take the loss of the scores.

    Args:
        member_scores: from a batch to the scores that learn, such as ``GroundingModel.member_scores``: the model's own
            first, then those of its members. Each learns from the same targets as if it were alone.
        kind: of targets: ``soft``, ``hard``, or ``refined``, see ``TARGETS``.
        unlabelled: what becomes of phrases without a region of IoU ≥ 0.5, see ``trained_phrases``.
        divide: by the ``labelled`` phrases, by ``all`` phrases with a known box, dropped ones too, or by the
            ``captions`` with a labelled phrase. Absent phrases do not count: what is mixed in takes no weight from the
            others.
        regress: offsets of ``all`` positive pairs, or of each phrase's ``best`` region alone.
        offsets: a pair's four losses count as their ``mean`` or their ``sum``.
        least_side: see ``positive_pairs``.
    """
    require_name("targets", kind, TARGETS)
    require_name("choice of regressed regions", regress, REGRESS)
    require_name("way to count offsets", offsets, OFFSETS)
    trained, learnt = trained_phrases(batch, targets, unlabelled)
    scores = member_scores(trained)
    q = TARGETS[kind](scores[0], trained, learnt)  # (P, K)
    grounding = torch.stack([_divergence(each, q, trained, learnt) for each in scores]).sum()
    boxes, pairs = _regression([each.offsets for each in scores], trained, learnt, regress, least_side)
    count = _count(targets, trained, learnt, divide)
    return LossTerms(grounding, boxes / 4 if offsets == "mean" else boxes, count, pairs)


def loss_counts(
    batch: Batch, targets: Targets, *, unlabelled: str = "skip", divide: str = "labelled", regress: str = "all"
) -> Tensor:
    """What ``training_loss`` will divide by, before anything is scored: count, pairs; and the phrases trained: (3,)."""
    trained, learnt = trained_phrases(batch, targets, unlabelled)
    pairs = len(positive_pairs(trained, learnt, best_only=regress == "best").phrase)
    return torch.tensor([int(_count(targets, trained, learnt, divide)), pairs, len(trained.phrase_caption)])


def trained_phrases(batch: Batch, targets: Targets, unlabelled: str) -> tuple[Batch, Targets]:
    """The batch as the loss wants it, where some phrases have no region of IoU ≥ 0.5 or no known box.

    - ``skip``: they leave the chain before anything is computed; their neighbours become neighbours, and the context M
      between those reaches over them.
    - ``marginalise``: they stay in the chain, and the loss sums them out.
    - ``best``: the best region of a phrase with a known box counts as right however small its IoU; phrases without a
      known box leave the chain.

    Where no phrase is left the first one stays, so that a process of many always has something to run.
    """
    require_name("treatment of unlabelled phrases", unlabelled, UNLABELLED)
    if unlabelled == "best":
        best = _hard(targets.iou) * (targets.has_box & ~targets.labelled)[:, None]  # (P, K)
        targets = replace(targets, iou=torch.maximum(targets.iou, best))
    keep = targets.has_target
    if unlabelled == "marginalise" or bool(keep.all()):
        return batch, targets
    if not bool(keep.any()):
        keep = torch.arange(len(keep), device=keep.device) == 0
    return keep_phrases(batch, keep), targets[keep]


def _count(targets: Targets, trained: Batch, learnt: Targets, divide: str) -> Tensor:
    require_name("division of the loss", divide, DIVIDE)
    if divide == "captions":
        return trained.to_chains(learnt.labelled).any(1).sum()
    return (learnt.labelled if divide == "labelled" else targets.has_box).sum()


def _hard(iou: Tensor) -> Tensor:
    return one_hot(hard_targets(iou), iou.shape[1]).to(iou.dtype)


@torch.no_grad()
def _refined(scores: Scores, batch: Batch, targets: Targets) -> Tensor:
    """Soft targets of labelled phrases by the larger of two overlaps: the region's and that of its refined box."""
    after = iou_xyxy(refine(scores, batch), targets.gold[:, None]) * targets.labelled[:, None]  # (P, K)
    return soft_targets(torch.maximum(targets.iou, after))


#: From scores, their batch and its targets to q (P, K); rows of unlabelled phrases mean nothing.
TARGETS: dict[str, Callable[[Scores, Batch, Targets], Tensor]] = {
    "soft": lambda scores, batch, targets: soft_targets(targets.iou),
    "hard": lambda scores, batch, targets: _hard(targets.iou),
    "refined": _refined,
}


def _divergence(scores: Scores, q: Tensor, batch: Batch, targets: Targets) -> Tensor:
    """The sum of KL(q ‖ p) over the chains, or over the phrases of independent models.

    Scores without the label ∅ learn nothing from absent phrases.
    """
    has_target, mask = targets.labelled, batch.label_mask
    if scores.presence is not None:
        absent = targets.absent.to(q)[:, None]
        q, has_target = torch.cat([q * (1 - absent), absent], -1), targets.has_target  # (P, K + 1)
        scores, mask = with_absent_label(scores, batch), with_absent_mask(mask)
    if scores.transitions is None:
        return _independent_kl(scores.emissions, q, mask[batch.phrase_caption], has_target).sum()
    return _chain_kl(scores, q, batch, mask, has_target).sum()


def _independent_kl(emissions: Tensor, q: Tensor, mask: Tensor, has_target: Tensor) -> Tensor:
    """KL(q ‖ softmax of the emissions) of each phrase, 0 where it has no target: (P,)."""
    log_p = emissions.masked_fill(~mask, torch.finfo(emissions.dtype).min).log_softmax(-1)
    return torch.where(has_target, (torch.xlogy(q, q) - q * log_p).sum(-1), 0.0)


def _chain_kl(scores: Scores, q: Tensor, batch: Batch, labels: Tensor, has_target: Tensor) -> Tensor:
    """KL(q ‖ p) of each caption over its phrases with a target, 0 where there are none: (B,), in no particular order.

    ``labels`` (B, K) are those that there are. Captions with a phrase without a target are computed separately: summing
    it out takes longer than all the rest.
    """
    assert scores.transitions is not None
    emissions, target, has_target = (batch.to_chains(each) for each in (scores.emissions, q, has_target))  # (B, T, …)
    transitions, lengths = scores.transitions, batch.lengths
    complete = has_target.sum(1) == lengths  # (B,)
    if bool(complete.all()):
        return ChainCRF(emissions, transitions, lengths, labels, validate=False, skips=scores.skips).kl(target)
    parts = []
    for rows in (complete, ~complete):
        if bool(rows.any()):
            skips = None if scores.skips is None else scores.skips[rows]
            crf = ChainCRF(emissions[rows], transitions[rows], lengths[rows], labels[rows], validate=False, skips=skips)
            parts.append(crf.kl(target[rows], None if rows is complete else has_target[rows]))
    return torch.cat(parts)


def _regression(
    offsets: Sequence[Tensor | None], batch: Batch, targets: Targets, regress: str, least_side: float
) -> tuple[Tensor, Tensor]:
    """The sum over positive pairs of the SmoothL1 of four offsets, of each member that has some; and of pairs."""
    given = [each for each in offsets if each is not None]
    if not given:
        return targets.gold.new_zeros(()), batch.lengths.new_zeros(())
    pairs = positive_pairs(batch, targets, best_only=regress == "best", least_side=least_side)
    losses = [smooth_l1_loss(each[pairs.phrase, pairs.region], pairs.offsets, reduction="sum") for each in given]
    return torch.stack(losses).sum(), batch.lengths.new_tensor(len(pairs.phrase))
