"""Phrase-Region CCA: costs by their definitions, joint choices, and what it learns from captions with planted cues."""

import numpy as np
import pytest
import torch

from baseline_cases import encoder
from builders import make_example
from phrasechain.baselines.cca import PhraseRegionCCA
from phrasechain.baselines.relations import KINDS
from phrasechain.core.schema import Caption, Phrase, Regions
from phrasechain.model.batch import Batch, collate_annotated
from phrasechain.model.targets import make_targets
from tiny_batches import tiny_example

SIDE = 20.0


def make_caption(words: list[tuple[str, str, tuple[float, ...]]]) -> Caption:
    """ "a man with a dog …": texts, categories and boxes, "with" between them."""
    tokens: list[str] = []
    phrases = []
    for text, category, box in words:
        tokens += ["with"] if tokens else []
        first, start = len(tokens), len(" ".join([*tokens, ""]))
        tokens += text.split()
        phrases.append(Phrase(text, start, start + len(text), first, len(tokens), None, (category,), (box,)))  # type: ignore[arg-type]
    return Caption(0, " ".join(tokens), tuple(tokens), tuple(phrases))


def planted(count: int, seed: int = 0) -> list[tuple[Batch, list[Phrase]]]:
    """A man, and a ball right below him: features tell a man from a ball, but not which of three balls is his."""
    rng = np.random.default_rng(seed)
    batches = []
    for number in range(count):
        xs = rng.permutation([0.0, 30.0, 60.0])
        men = [(x, 0.0, x + SIDE, SIDE) for x in xs[:1]]
        balls = [(x, 40.0, x + SIDE, 40.0 + SIDE) for x in xs]
        features = np.array([[1.0, 0.0, 0.0], *[[0.0, 1.0, 0.0]] * 3]) + 0.05 * rng.normal(size=(4, 3))
        boxes = np.array([*men, *balls], np.float32)
        order = rng.permutation(4)
        caption = make_caption([("a man", "people", men[0]), ("the ball", "other", balls[0])])
        store = {f"i{number}": Regions(f"i{number}", 100, 80, boxes[order], features[order].astype(np.float16))}
        batches.append(collate_annotated([(make_example(f"i{number}", caption), caption)], store, "all"))
    return batches


def accuracy(system: PhraseRegionCCA, batches: list[tuple[Batch, list[Phrase]]]) -> float:
    right = [
        system.decode(system(batch), batch).region == make_targets(batch, phrases).iou.argmax(1)
        for batch, phrases in batches
    ]
    return float(torch.cat(right).float().mean())


def test_a_relation_tells_which_of_three_balls_is_meant() -> None:
    torch.manual_seed(0)
    system = PhraseRegionCCA(encoder(8), 3)
    batches = planted(100)
    system.fit(batches[:70])
    assert float(system.group_weights[2]) > 0
    assert bool(system.pair_weight[KINDS.index("with")].any())
    joint = accuracy(system, batches[70:])
    system.group_weights.zero_()
    alone = accuracy(system, batches[70:])
    assert joint > 0.95
    assert alone < 0.85  # each man, and a ball at random


def test_costs_are_the_weighed_cues() -> None:
    batch, _ = tiny_example(1)
    torch.manual_seed(0)
    system = PhraseRegionCCA(encoder(), 4)
    system.cue_weights.copy_(torch.tensor([2.0, 0.5, 0.25]))
    system.position_weight.normal_()
    costs = system.unary_costs(batch)
    p, category = system.phrase_vectors(batch), system.categories(system.phrase_vectors(batch))
    for number, image in enumerate(batch.phrase_image.tolist()):
        for k in batch.region_mask[image].nonzero()[:, 0].tolist():
            projection = system.projection
            cosine = torch.cosine_similarity(
                projection.phrase(p[number]), projection.region(batch.features[image, k].float()), dim=0
            )
            x0, y0, x1, y1 = batch.boxes[image, k].tolist()
            assert costs[number, k, :2].tolist() == pytest.approx(
                [1 - float(cosine), 1 - (x1 - x0) * (y1 - y0) / 8000], abs=1e-5
            )
            place = [
                1 - (x0 + x1) / 100,
                1 - (y0 + y1) / 80,
                (x1 - x0) * (y1 - y0) / 8000,
                np.log((x1 - x0) / (y1 - y0)),
            ]
            logit = np.dot([*place, *np.square(place)], system.position_weight[category[number]].tolist())
            assert float(costs[number, k, 2]) == pytest.approx(np.log1p(np.exp(-logit)), rel=1e-4)
    torch.testing.assert_close(system(batch).emissions, -(costs @ torch.tensor([2.0, 0.5, 0.25])))


def test_the_joint_choice_is_the_best_of_all_pairs() -> None:
    """Two phrases: elimination and the program against all pairs of their candidates."""
    torch.manual_seed(0)
    system = PhraseRegionCCA(encoder(8), 3)
    batches = planted(60, seed=3)
    system.fit(batches[:40])
    for batch, _ in batches[40:]:
        (link,) = system.links(batch)
        emissions = system(batch).emissions
        candidates = {row: system.candidates(emissions, batch, row) for row in (0, 1)}
        total = -emissions[0, candidates[0]][:, None] - emissions[1, candidates[1]]
        total = total + system.pair_costs(emissions, batch, link, candidates)
        i, j = divmod(int(total.argmin()), total.shape[1])
        wanted = [int(candidates[0][i]), int(candidates[1][j])]
        assert system.decode(system(batch), batch).region.tolist() == wanted


def test_candidates_are_thirty_at_most_and_none_nearly_the_same() -> None:
    boxes = np.array([(x, 0, x + 40, 40) for x in np.linspace(0, 60, 90)], np.float32)
    caption = make_caption([("a man", "people", tuple(boxes[0].tolist()))])
    features = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float16)
    batch, _ = collate_annotated(
        [(make_example("i", caption), caption)], {"i": Regions("i", 100, 80, boxes, features)}, "all"
    )
    torch.manual_seed(0)
    system = PhraseRegionCCA(encoder(), 3)
    emissions = system(batch).emissions
    found = system.candidates(emissions, batch, 0)
    assert len(found) <= 30
    assert int(found[0]) == int(emissions[0].argmax())
    assert emissions[0, found].tolist() == sorted(emissions[0, found].tolist(), reverse=True)
    x = batch.boxes[0, found, 0].sort().values
    assert float(x.diff().min()) * 1.0 >= 40 * (1 - 0.8) / (1 + 0.8) - 1e-3  # IoU (40 − d)/(40 + d) ≤ 0.8


def test_it_has_nothing_to_learn_by_gradients_and_counts_its_errors() -> None:
    batch, targets = tiny_example(2, unknown=0.3)
    torch.manual_seed(0)
    system = PhraseRegionCCA(encoder(), 4)
    assert not [name for name, weight in system.named_parameters() if weight.requires_grad]
    terms = system.loss(batch, targets)
    emissions = system(batch).emissions.masked_fill(~batch.region_mask[batch.phrase_image], -9.0)
    wrong = sum(
        float(targets.iou[row, int(emissions[row].argmax())]) < 0.5 for row in targets.has_box.nonzero()[:, 0].tolist()
    )
    assert (float(terms.grounding), int(terms.count)) == (wrong, int(targets.has_box.sum()))
