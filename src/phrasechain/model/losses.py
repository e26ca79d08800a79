"""What a model is trained on, as sums and counts, so that many processes can add theirs up before they divide.

The grounding loss is KL(q ‖ p) of the targets q and the chain p, or of each phrase by itself for independent models. A
hard target is a q with all its mass on one region, and KL is then −log p of it. A phrase without a target that is still
in the chain is summed out exactly; ``training_batch`` says which phrases are.

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
from phrasechain.core.errors import DataError, unknown_name
from phrasechain.model.batch import Batch, hard_targets, positive_pairs, soft_targets
from phrasechain.model.decode import refine
from phrasechain.model.scores import Scores

UNLABELLED = ("skip", "marginalise", "best")
DIVIDE = ("labelled", "all", "captions")
REGRESS = ("all", "best")
OFFSETS = ("mean", "sum")


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Sums and what to divide them by; the loss is grounding / count + gamma · boxes / pairs."""

    grounding: Tensor  # the sum of KL(q ‖ p)
    count: Tensor  # how many phrases it is of, or captions
    boxes: Tensor  # the sum over positive pairs of the mean, or sum, of the SmoothL1 of their four offsets
    pairs: Tensor  # how many positive pairs


def training_loss(
    model: Callable[[Batch], Scores],
    batch: Batch,
    *,
    targets: str = "soft",
    unlabelled: str = "skip",
    divide: str = "labelled",
    regress: str = "all",
    offsets: str = "mean",
    least_side: float = 0.0,
) -> LossTerms:
    """Run the model on the phrases of the batch that are trained, and take its loss.

    Args:
        targets: ``soft``, ``hard``, or ``refined``, see ``TARGETS``.
        unlabelled: what becomes of phrases without a region of IoU ≥ 0.5, see ``training_batch``.
        divide: by the ``labelled`` phrases, by ``all`` phrases with a known box, dropped ones too, or by the
            ``captions`` with a labelled phrase.
        regress: offsets of ``all`` positive pairs, or of each phrase's ``best`` region alone.
        offsets: a pair's four losses count as their ``mean`` or their ``sum``.
        least_side: see ``data.batch.positive_pairs``.
    """
    trained = training_batch(batch, unlabelled)
    terms = loss_terms(
        model(trained), trained, targets=targets, divide=divide, regress=regress, offsets=offsets, least_side=least_side
    )
    return replace(terms, count=divisor(batch, trained, divide))


def loss_terms(
    scores: Scores,
    batch: Batch,
    others: Sequence[Scores] = (),
    *,
    targets: str = "soft",
    divide: str = "labelled",
    regress: str = "all",
    offsets: str = "mean",
    least_side: float = 0.0,
) -> LossTerms:
    """The loss of scores; unlabelled phrases that are in the batch are summed out of their chains.

    ``others`` are further opinions of a model: each learns from the same targets as if it were alone.
    """
    if targets not in TARGETS:
        raise DataError(unknown_name("targets", targets, TARGETS))
    q = TARGETS[targets](scores, batch)  # (P, K)
    grounding = torch.stack([_divergence(each, q, batch) for each in (scores, *others)]).sum()
    if offsets not in OFFSETS:
        raise DataError(unknown_name("way to count offsets", offsets, OFFSETS))
    boxes, pairs = _regression([each.offsets for each in (scores, *others)], batch, regress, least_side)
    return LossTerms(grounding, divisor(batch, batch, divide), boxes / 4 if offsets == "mean" else boxes, pairs)


def divisor(batch: Batch, trained: Batch, divide: str) -> Tensor:
    """What the grounding loss is divided by: phrases or captions of a batch, or of those of its that are trained."""
    if divide not in DIVIDE:
        raise DataError(unknown_name("division of the loss", divide, DIVIDE))
    if divide == "captions":
        return trained.to_chains(trained.labelled).any(1).sum()
    return (trained.labelled if divide == "labelled" else batch.has_box).sum()


def _hard(iou: Tensor) -> Tensor:
    return one_hot(hard_targets(iou), iou.shape[1]).to(iou.dtype)


@torch.no_grad()
def _refined(scores: Scores, batch: Batch) -> Tensor:
    """Soft targets of labelled phrases by the larger of two overlaps: the region's and that of its refined box."""
    after = iou_xyxy(refine(scores, batch), batch.gold[:, None]) * batch.labelled[:, None]  # (P, K)
    return soft_targets(torch.maximum(batch.iou, after))


#: From scores and a batch to q (P, K); rows of unlabelled phrases mean nothing.
TARGETS: dict[str, Callable[[Scores, Batch], Tensor]] = {
    "soft": lambda scores, batch: soft_targets(batch.iou),
    "hard": lambda scores, batch: _hard(batch.iou),
    "refined": _refined,
}


def _divergence(scores: Scores, q: Tensor, batch: Batch) -> Tensor:
    """The sum of KL(q ‖ p) over the chains, or over the phrases of independent models."""
    if scores.transitions is None:
        return _independent_kl(scores.emissions, q, batch).sum()
    return _chain_kl(scores, q, batch).sum()


def _independent_kl(emissions: Tensor, q: Tensor, batch: Batch) -> Tensor:
    """KL(q ‖ softmax of the emissions) of each phrase, 0 where it has no target: (P,)."""
    mask = batch.region_mask[batch.phrase_image]  # (P, K)
    log_p = emissions.masked_fill(~mask, torch.finfo(emissions.dtype).min).log_softmax(-1)
    return torch.where(batch.labelled, (torch.xlogy(q, q) - q * log_p).sum(-1), 0.0)


def _chain_kl(scores: Scores, q: Tensor, batch: Batch) -> Tensor:
    """KL(q ‖ p) of each caption over its labelled phrases, 0 where there are none: (B,), in no particular order.

    Captions with an unlabelled phrase go apart: summing it out takes longer than all the rest.
    """
    assert scores.transitions is not None
    emissions, target, labelled = (batch.to_chains(each) for each in (scores.emissions, q, batch.labelled))  # (B, T, …)
    transitions, lengths, labels = scores.transitions, batch.lengths, batch.label_mask
    complete = labelled.sum(1) == lengths  # (B,)
    if bool(complete.all()):
        return ChainCRF(emissions, transitions, lengths, labels, validate=False).kl(target)
    parts = []
    for rows in (complete, ~complete):
        if bool(rows.any()):
            crf = ChainCRF(emissions[rows], transitions[rows], lengths[rows], labels[rows], validate=False)
            parts.append(crf.kl(target[rows], None if rows is complete else labelled[rows]))
    return torch.cat(parts)


def _regression(
    opinions: Sequence[Tensor | None], batch: Batch, regress: str, least_side: float
) -> tuple[Tensor, Tensor]:
    """The sum over positive pairs of the SmoothL1 of four offsets, of each opinion that has some; and of pairs."""
    if regress not in REGRESS:
        raise DataError(unknown_name("choice of regressed regions", regress, REGRESS))
    given = [offsets for offsets in opinions if offsets is not None]
    if not given:
        return batch.gold.new_zeros(()), batch.lengths.new_zeros(())
    pairs = positive_pairs(batch, best_only=regress == "best", least_side=least_side)
    losses = [smooth_l1_loss(each[pairs.phrase, pairs.region], pairs.offsets, reduction="sum") for each in given]
    return torch.stack(losses).sum(), batch.lengths.new_tensor(len(pairs.phrase))


def training_batch(batch: Batch, unlabelled: str) -> Batch:
    """The batch as the loss wants it, where some phrases have no region of IoU ≥ 0.5 or no known box.

    - ``skip``: they leave the chain before anything is computed; their neighbours become neighbours, and the context M
      between those reaches over them.
    - ``marginalise``: they stay in the chain, and the loss sums them out.
    - ``best``: the best region of a phrase with a known box counts as right however small its IoU; phrases without a
      known box leave the chain.
    """
    if unlabelled not in UNLABELLED:
        raise DataError(unknown_name("treatment of unlabelled phrases", unlabelled, UNLABELLED))
    if unlabelled == "marginalise":
        return batch
    if unlabelled == "best":
        best = _hard(batch.iou) * (batch.has_box & ~batch.labelled)[:, None]  # (P, K)
        batch = replace(batch, iou=torch.maximum(batch.iou, best))
    return keep_phrases(batch, batch.labelled)


def keep_phrases(batch: Batch, keep: Tensor) -> Batch:
    """The batch with the phrases of ``keep`` (P,) bool alone, and without the captions that lose all of theirs.

    Images stay. Where nothing is kept the first phrase is, so that a process of many always has something to run.
    """
    if bool(keep.all()):
        return batch
    if not bool(keep.any()):
        keep = torch.arange(len(keep), device=keep.device) == 0
    lengths = torch.zeros_like(batch.lengths).index_add(0, batch.phrase_caption, keep.long())  # (B,)
    captions = lengths.nonzero()[:, 0]
    lengths = lengths[captions]
    places = captions.tolist()
    starts = lengths.cumsum(0) - lengths
    phrase_caption = torch.repeat_interleave(torch.arange(len(captions), device=keep.device), lengths)
    return replace(
        batch,
        captions=tuple(batch.captions[place] for place in places),
        tokens=tuple(batch.tokens[place] for place in places),
        caption_image=batch.caption_image[captions],
        lengths=lengths,
        steps=int(lengths.max()),
        phrase_caption=phrase_caption,
        phrase_step=torch.arange(len(phrase_caption), device=keep.device) - starts[phrase_caption],
        **{name: getattr(batch, name)[keep] for name in _PER_PHRASE},
    )


_PER_PHRASE = ("token_spans", "spans", "has_box", "gold", "iou", "any_iou")
