"""Losses against every sequence of regions of small chains, in float64, and batches against ones that were collated."""

import itertools
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import make_caption, make_example
from phrasechain.core.boxes import encode_offsets_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Caption, Phrase, Regions
from phrasechain.model.batch import Batch, collate_annotated, keep_phrases
from phrasechain.model.losses import (
    DIVIDE,
    REGRESS,
    UNLABELLED,
    LossTerms,
    loss_counts,
    trained_phrases,
    training_loss,
)
from phrasechain.model.scores import Scores
from phrasechain.model.targets import Targets, make_targets, soft_targets
from tiny_batches import terms_of, tiny_example


def make_scores(
    batch: Batch, seed: int = 0, chain: bool = True, context: bool = True, second_order: bool = False
) -> Scores:
    """Random scores, NaN wherever nothing may be looked at."""
    torch.manual_seed(seed)
    P, K = len(batch.spans), batch.boxes.shape[1]
    mask = batch.region_mask[batch.phrase_image]
    emissions = torch.randn(P, K).double().masked_fill(~mask, torch.nan).requires_grad_()
    steps = batch.steps - 1 if context else 1
    transitions = torch.randn(len(batch.lengths), steps, K, K).double()
    labels = batch.label_mask
    transitions.masked_fill_(~(labels[:, None, :, None] & labels[:, None, None, :]), torch.nan)
    skips = transitions.detach()[:, 1:].transpose(-1, -2) if second_order else None
    offsets = torch.randn(P, K, 4).requires_grad_()
    return Scores(emissions, offsets, transitions.requires_grad_() if chain else None, skips)


def marginal_kl(scores: Scores, batch: Batch, labelled: Tensor, q: Tensor, caption: int) -> float:
    """KL(q_S ‖ p_S) over the labelled phrases S of one caption, by its definition."""
    phrases = (batch.phrase_caption == caption).nonzero()[:, 0].tolist()
    labels = batch.label_mask[caption].nonzero()[:, 0].tolist()
    emissions = scores.emissions.detach()
    transitions = None if scores.transitions is None else scores.transitions[caption].detach()
    paths = list(itertools.product(labels, repeat=len(phrases)))
    weights = []
    for path in paths:
        score = sum(float(emissions[p, k]) for p, k in zip(phrases, path, strict=True))
        if transitions is not None:
            score += sum(float(transitions[t % len(transitions), path[t], path[t + 1]]) for t in range(len(path) - 1))
        if scores.skips is not None:
            skips = scores.skips[caption].detach()
            score += sum(float(skips[t, path[t], path[t + 2]]) for t in range(len(path) - 2))
        weights.append(math.exp(score))
    targets = [place for place, p in enumerate(phrases) if labelled[p]]
    p_of: dict[tuple[int, ...], float] = {}
    for path, weight in zip(paths, weights, strict=True):
        key = tuple(path[place] for place in targets)
        p_of[key] = p_of.get(key, 0.0) + weight / sum(weights)
    total = 0.0
    for key, p in p_of.items():
        goal = math.prod(float(q[phrases[place], k]) for place, k in zip(targets, key, strict=True))
        total += goal * math.log(goal / p) if goal else 0.0
    return total if targets else 0.0


def hard(iou: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(iou.argmax(1), iou.shape[1]).double()


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize(("chain", "context"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_the_grounding_loss_by_enumeration(kind: str, chain: bool, context: bool, share: float) -> None:
    batch, targets = tiny_example(5, captions=8, regions=(2, 4), unlabelled=share / 2, unknown=share / 2)
    labelled = targets.labelled
    assert bool(labelled.all()) == (share == 0)
    assert bool(labelled.any())
    scores = make_scores(batch, 3, chain, context)
    terms = terms_of(scores, batch, targets, kind=kind)
    q = soft_targets(targets.iou.double()) if kind == "soft" else hard(targets.iou)
    expected = sum(marginal_kl(scores, batch, labelled, q, caption) for caption in range(len(batch.lengths)))
    assert terms.grounding.item() == pytest.approx(expected, rel=1e-6)
    assert terms.count.item() == int(labelled.sum())
    terms.grounding.backward()
    assert scores.emissions.grad is not None
    assert scores.emissions.grad.isfinite().all()  # that of what is NaN is 0


def test_the_loss_of_a_second_order_chain_by_enumeration() -> None:
    batch, targets = tiny_example(5, captions=8, regions=(2, 4))
    assert batch.lengths.max() >= 3
    scores = make_scores(batch, 3, second_order=True)
    q = soft_targets(targets.iou.double())
    expected = sum(marginal_kl(scores, batch, targets.labelled, q, caption) for caption in range(len(batch.lengths)))
    assert terms_of(scores, batch, targets).grounding.item() == pytest.approx(expected, rel=1e-6)


def test_boxes_are_the_mean_smooth_l1_of_four_offsets_per_positive_pair() -> None:
    caption = make_caption(0, ("a dog", "1", ("animals",), ((10.0, 10.0, 50.0, 50.0),)), ("a cat", "2", ("x",), None))
    boxes = np.array([[10, 10, 50, 30], [10, 10, 50, 50], [60, 60, 70, 70]], np.float32)  # IoU 0.5, 1 and 0
    store = {"x": Regions("x", 100, 80, boxes, np.zeros((3, 2), np.float16))}
    batch, phrases = collate_annotated([(make_example("x", caption), caption)], store, "all")
    targets = make_targets(batch, phrases)
    offsets = torch.zeros(2, 3, 4)
    offsets[0, 1] = torch.tensor([0.5, 2.0, 0.0, 0.0])
    offsets[0, 2] = offsets[1] = 100.0  # not positive: not trained
    scores = replace(make_scores(batch), offsets=offsets)
    first = (0.5 * 0.5**2 + 0.5 * math.log(2) ** 2) / 4  # the region is 10 too high and half as tall
    second = (0.5 * 0.5**2 + 1.5) / 4
    terms = terms_of(scores, batch, targets)
    assert (terms.boxes.item(), terms.pairs.item()) == (pytest.approx(first + second), 2)
    assert terms_of(scores, batch, targets, offsets="sum").boxes.item() == pytest.approx(4 * (first + second))
    terms = terms_of(scores, batch, targets, regress="best")
    assert (terms.boxes.item(), terms.pairs.item()) == (pytest.approx(second), 1)
    terms = terms_of(scores, batch, targets, least_side=0.5)  # every side of 40 counts as 50 by 40
    first = 0.5 * (10 / 40) ** 2 / 4
    assert terms.boxes.item() == pytest.approx(first + second)
    terms = terms_of(replace(scores, offsets=None), batch, targets)
    assert (terms.boxes.item(), terms.pairs.item()) == (0, 0)


def same(first: Batch, second: Batch) -> bool:
    pairs = [(getattr(first, field.name), getattr(second, field.name)) for field in fields(Batch)]
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dropped_phrases_leave_what_collating_without_them_gives(seed: int) -> None:
    whole, targets = tiny_example(seed, captions=9, unknown=0.5)
    kept = keep_phrases(whole, targets.has_box)
    assert 0 < len(kept.spans) < len(whole.spans)
    store = {image: _regions_of(whole, row) for row, image in enumerate(whole.images)}
    items = []
    for caption in range(len(whole.lengths)):
        rows = (whole.phrase_caption == caption) & targets.has_box
        image = whole.images[int(whole.caption_image[caption])]
        made = _caption_of(whole, targets, caption, rows)
        items.append((make_example(image, made), made))
    expected, phrases = collate_annotated(items, store, "gold")
    assert kept.images == whole.images
    images = torch.tensor([whole.images.index(image) for image in expected.images])
    expected = replace(expected, caption_image=images[expected.caption_image])
    of_images = ("images", "sizes", "boxes", "features", "spatial", "region_mask")
    shared = {name: getattr(whole, name) for name in of_images}
    assert same(kept, replace(expected, **shared))
    both, mine = make_targets(replace(expected, **shared), phrases), targets[targets.has_box]
    assert all(torch.equal(getattr(mine, name), getattr(both, name)) for name in ("has_box", "gold", "iou"))


def _regions_of(batch: Batch, row: int) -> Regions:
    """The regions of an image with the batch's padding, so that overlaps have the same shape."""
    return Regions(batch.images[row], 100, 80, batch.boxes[row].numpy(), batch.features[row].numpy())


def _caption_of(batch: Batch, targets: Targets, caption: int, rows: Tensor) -> Caption:
    tokens = batch.tokens[caption]
    phrases = []
    for row in rows.nonzero()[:, 0].tolist():
        (first, end), (start, stop) = batch.token_spans[row].tolist(), batch.spans[row].tolist()
        box = tuple(targets.gold[row].tolist())
        phrases.append(Phrase(" ".join(tokens[first:end]), start, stop, first, end, "1", ("other",), (box,)))
    return Caption(batch.captions[caption], " ".join(tokens), tokens, tuple(phrases))


def test_what_is_trained_of_a_batch() -> None:
    batch, targets = tiny_example(6, captions=12, unlabelled=0.3, unknown=0.3)
    labelled = targets.labelled
    assert not labelled.all()
    assert (targets.has_box & ~labelled).any()
    assert trained_phrases(batch, targets, "marginalise") == (batch, targets)
    trained, skipped = trained_phrases(batch, targets, "skip")
    assert torch.equal(trained.spans, batch.spans[labelled])
    assert torch.equal(skipped.gold, targets.gold[labelled])
    assert skipped.labelled.all()
    assert trained_phrases(trained, skipped, "skip") == (trained, skipped)
    trained, best = trained_phrases(batch, targets, "best")
    assert torch.equal(trained.spans, batch.spans[targets.has_box])
    assert torch.equal(best.gold, targets.gold[targets.has_box])
    assert best.labelled.all()
    q = soft_targets(best.iou)
    lifted = ~labelled[targets.has_box]
    assert torch.equal(q[lifted].double(), hard(targets.iou[targets.has_box])[lifted])
    assert torch.equal(q[~lifted], soft_targets(targets.iou[labelled]))


def test_a_batch_without_any_target_keeps_one_phrase_that_costs_nothing() -> None:
    batch, targets = tiny_example(7, unknown=1.0)
    for chain in (True, False):
        found: list[Scores] = []

        def scored(trained: Batch, chain: bool = chain, found: list[Scores] = found) -> list[Scores]:
            assert (len(trained.spans), len(trained.lengths), trained.steps) == (1, 1, 1)
            found.append(make_scores(trained, chain=chain))
            return found

        terms = training_loss(scored, batch, targets, unlabelled="skip")
        assert [terms.grounding.item(), terms.count.item(), terms.boxes.item(), terms.pairs.item()] == [0, 0, 0, 0]
        (terms.grounding + terms.boxes).backward()
        assert found[0].emissions.grad is not None
        assert (found[0].emissions.grad == 0).all()


def test_the_whole_batch_is_counted_where_the_loss_is_divided_by_all() -> None:
    batch, targets = tiny_example(6, captions=12, unlabelled=0.3, unknown=0.3)
    seen: list[Batch] = []

    def scored(trained: Batch) -> list[Scores]:
        seen.append(trained)
        return [make_scores(trained)]

    labelled: LossTerms = training_loss(scored, batch, targets, unlabelled="skip", divide="labelled")
    every = training_loss(scored, batch, targets, unlabelled="skip", divide="all")
    assert labelled.count.item() == int(targets.labelled.sum()) == len(seen[0].spans)
    assert every.count.item() == int(targets.has_box.sum())
    assert torch.equal(labelled.grounding, every.grounding)
    captions = training_loss(scored, batch, targets, unlabelled="skip", divide="captions")
    summed_out = training_loss(scored, batch, targets, unlabelled="marginalise", divide="captions")
    with_one = len(set(batch.phrase_caption[targets.labelled].tolist()))
    assert captions.count.item() == summed_out.count.item() == with_one < len(batch.lengths)


@pytest.mark.parametrize("unlabelled", UNLABELLED)
@pytest.mark.parametrize("divide", DIVIDE)
@pytest.mark.parametrize("regress", REGRESS)
def test_what_the_loss_will_be_divided_by_is_known_before(unlabelled: str, divide: str, regress: str) -> None:
    both = tiny_example(6, captions=12, unlabelled=0.3, unknown=0.3)
    options = {"unlabelled": unlabelled, "divide": divide, "regress": regress}
    seen: list[int] = []

    def scored(trained: Batch) -> list[Scores]:
        seen.append(len(trained.spans))
        return [make_scores(trained)]

    terms = training_loss(scored, *both, **options)  # type: ignore[arg-type]
    assert loss_counts(*both, **options).tolist() == [int(terms.count), int(terms.pairs), *seen]


def test_unknown_names_are_refused() -> None:
    batch, targets = tiny_example(0)
    scores = make_scores(batch)
    with pytest.raises(DataError, match="no targets named 'sfot'; there are: soft, hard"):
        terms_of(scores, batch, targets, kind="sfot")
    with pytest.raises(DataError, match="no choice of regressed regions named 'worst'"):
        terms_of(scores, batch, targets, regress="worst")
    with pytest.raises(DataError, match="no treatment of unlabelled phrases named 'drop'"):
        trained_phrases(batch, targets, "drop")
    with pytest.raises(DataError, match="no division of the loss named 'none'"):
        loss_counts(batch, targets, divide="none")
    with pytest.raises(DataError, match="no way to count offsets named 'median'"):
        terms_of(scores, batch, targets, offsets="median")


def test_refined_targets_count_regions_that_are_moved_close_enough() -> None:
    """A region of IoU 0.4 whose offsets move it onto the box becomes right; one that is moved away stays so."""
    caption = make_caption(0, ("a dog", "1", ("animals",), ((0.0, 0.0, 40.0, 40.0),)))
    boxes = np.array([[0, 0, 40, 16], [0, 0, 40, 30], [50, 50, 60, 60]], np.float32)
    regions = {"i": Regions("i", 100, 80, boxes, np.zeros((3, 1), np.float16))}
    batch, phrases = collate_annotated([(make_example("i", caption, width=100, height=80), caption)], regions)
    targets = make_targets(batch, phrases)
    offsets = torch.zeros(1, 3, 4)
    offsets[0, 0] = torch.tensor([0.0, 12 / 16, 0.0, math.log(40 / 16)])  # onto the box
    offsets[0, 1, 0] = 2.0  # far away
    scores = Scores(torch.tensor([[0.5, -1.0, 0.0]], requires_grad=True), offsets.requires_grad_(), None)
    q = torch.tensor([[1.0, 0.75, 0.0]]) / 1.75
    expected = (torch.xlogy(q, q) - q * scores.emissions.log_softmax(-1)).sum()
    torch.testing.assert_close(terms_of(scores, batch, targets, kind="refined").grounding, expected)
    refined, soft = (terms_of(scores, batch, targets, kind=name) for name in ("refined", "soft"))
    assert int(refined.pairs) == int(soft.pairs) == 1  # offsets are learnt from what overlaps without them
    assert not torch.equal(soft.grounding, refined.grounding)
    refined.grounding.backward()  # type: ignore[no-untyped-call]
    assert offsets.grad is None
    bag = Scores(torch.tensor([[0.0, 2.0, 1.0]]), None, None)  # another opinion, without boxes of its own to move
    both = terms_of([scores, bag], batch, targets, kind="refined").grounding
    torch.testing.assert_close(both - expected, (torch.xlogy(q, q) - q * bag.emissions.log_softmax(-1)).sum())


def test_a_phrase_that_only_moved_regions_meet_stays_unlabelled() -> None:
    """What the loss is divided by is known before the scores are, so nothing may be added that it does not count."""
    batch, targets = tiny_example(4, unlabelled=0.6)
    assert 0 < int(targets.labelled.sum()) < len(targets.labelled)
    mask = batch.region_mask[batch.phrase_image]  # (P, K)
    boxes = batch.boxes[batch.phrase_image]
    offsets = encode_offsets_xyxy(targets.gold[:, None].expand_as(boxes)[mask], boxes[mask])  # onto the box
    scores = make_scores(batch, chain=False)
    moved = replace(scores, offsets=torch.zeros(*mask.shape, 4).index_put((mask,), offsets))
    expected = 0.0
    for phrase in targets.labelled.nonzero()[:, 0].tolist():
        log_p = scores.emissions[phrase, mask[phrase]].detach().log_softmax(-1)
        expected += float(-math.log(len(log_p)) - log_p.mean())  # q is the same for all of them
    assert terms_of(moved, batch, targets, kind="refined").grounding.item() == pytest.approx(expected, rel=1e-5)
