"""Links between rivals against sums over every sequence of regions, and which phrases are rivals."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from builders import make_caption, make_example
from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.schema import Phrase, Regions
from phrasechain.model.batch import Batch, collate_annotated, keep_phrases
from phrasechain.model.decode import decode, marginals
from phrasechain.model.rivals import rival_pairs, with_rivals
from phrasechain.model.scores import Scores

BOXES = np.array([[0, 0, 40, 40], [2, 2, 42, 40], [50, 10, 90, 70]], np.float32)
MAN, WOMAN, CAP = ("a man", "people"), ("a woman", "people"), ("a red cap", "clothing")


def make_batch(*captions: tuple[tuple[str, str], ...]) -> Batch:
    made = [
        make_caption(number, *((text, None, (category,), None) for text, category in phrases))
        for number, phrases in enumerate(captions)
    ]
    store = {"x": Regions("x", 100, 80, BOXES, np.zeros((3, 2), np.float16))}
    return collate_annotated([(make_example("x", each), each) for each in made], store, "all")[0]


def make_scores(batch: Batch) -> Scores:
    torch.manual_seed(0)
    P, B, T = len(batch.spans), len(batch.lengths), batch.steps
    return Scores(torch.randn(P, 3).double(), None, torch.randn(B, T - 1, 3, 3).double())


@pytest.mark.parametrize(
    "phrases", [(MAN, WOMAN), (MAN, CAP, WOMAN), (MAN, CAP), (MAN, WOMAN, CAP, ("a dog", "animals"))]
)
def test_marginals_by_enumeration(phrases: tuple[tuple[str, str], ...]) -> None:
    batch = make_batch(phrases)
    scores, count = make_scores(batch), len(phrases)
    assert scores.transitions is not None
    overlap = iou_xyxy(batch.boxes[0][:, None], batch.boxes[0][None])
    expected, total = torch.zeros(count, 3).double(), 0.0
    for path in itertools.product(range(3), repeat=count):
        score = sum(float(scores.emissions[t, k]) for t, k in enumerate(path))
        score += sum(float(scores.transitions[0, t, path[t], path[t + 1]]) for t in range(count - 1))
        for one, other in itertools.combinations(range(count), 2):
            if other - one <= 2 and phrases[one][1] == phrases[other][1]:
                score -= 4 / (1 + math.exp(-12 * (float(overlap[path[one], path[other]]) - 0.5)))
        total += math.exp(score)
        for t, k in enumerate(path):
            expected[t, k] += math.exp(score)
    linked = with_rivals(scores, batch, 4.0)
    torch.testing.assert_close(marginals(linked, batch), expected / total, atol=1e-6, rtol=1e-5)


def test_two_people_get_two_boxes() -> None:
    batch = make_batch((MAN, CAP, WOMAN))
    emissions = torch.tensor([[3.0, 0.0, 2.5], [0.0, 0.0, 0.0], [3.0, 0.0, 2.6]])
    scores = Scores(emissions, None, torch.zeros(1, 2, 3, 3))
    assert decode(scores, batch).region.tolist()[::2] == [0, 0]
    assert decode(with_rivals(scores, batch, 4.0), batch).region.tolist()[::2] == [0, 2]
    assert decode(with_rivals(scores, batch, 4.0), batch, "independent").region.tolist()[::2] == [0, 0]


def test_rivals_that_are_far_apart_expect_each_other() -> None:
    batch = make_batch((MAN, CAP, ("a ball", "other"), WOMAN))
    scores = make_scores(batch)
    linked = with_rivals(scores, batch, 4.0)
    assert linked.skips is None
    assert torch.equal(linked.transitions, scores.transitions)  # type: ignore[arg-type]
    assert torch.equal(linked.emissions[1:3], scores.emissions[1:3])
    overlap = iou_xyxy(batch.boxes[0][:, None], batch.boxes[0][None]).double()
    link = -4 * torch.sigmoid(12 * (overlap - 0.5))
    for mine, other in ((0, 3), (3, 0)):
        expected = scores.emissions[mine] + link @ scores.emissions[other].softmax(-1)
        torch.testing.assert_close(linked.emissions[mine], expected, atol=1e-5, rtol=1e-5)


def test_who_is_a_rival() -> None:
    batch = make_batch((MAN, WOMAN, ("the woman", "people"), CAP), (CAP, MAN), (MAN,))
    assert rival_pairs(batch, 1).tolist() == [0]
    assert rival_pairs(batch, 2).tolist() == [0]
    assert rival_pairs(keep_phrases(batch, torch.tensor([1, 0, 1, 1, 1, 1, 1]) > 0), 1).tolist() == [0]
    assert rival_pairs(make_batch((MAN,)), 2).tolist() == []


def test_without_rivals_nothing_changes() -> None:
    batch = make_batch((MAN, CAP), (CAP, MAN))
    scores = make_scores(batch)
    assert with_rivals(scores, batch, 4.0) is scores
    rivals = make_batch((MAN, WOMAN))
    assert with_rivals(make_scores(rivals), rivals, 0.0).skips is None
    independent = replace(make_scores(rivals), transitions=None)
    assert with_rivals(independent, rivals, 4.0) is independent


def test_presence_leaves_the_links_to_the_regions() -> None:
    """A phrase that is surely not there has no rival."""
    batch = make_batch((MAN, CAP, WOMAN))
    presence = torch.tensor([12.0, 12.0, -12.0]).double()
    scores = replace(make_scores(batch), presence=presence, presence_transitions=torch.zeros(1, 2, 3).double())
    found, plain = (decode(with_rivals(scores, batch, each), batch, "smoothing") for each in (4.0, 0.0))
    torch.testing.assert_close(found.probabilities[:2], plain.probabilities[:2], atol=1e-3, rtol=1e-3)
    assert found.presence is not None
    assert found.presence[2] < 0.01


def test_bits_of_categories() -> None:
    caption = make_caption(0, ("a", None, ("people", "animals"), None), ("b", None, ("animals",), None))
    many = [Phrase("x", 0, 1, 0, 1, None, (f"c{number}",), None) for number in range(80)]
    store = {"x": Regions("x", 100, 80, BOXES, np.zeros((3, 2), np.float16))}
    first, second = collate_annotated([(make_example("x", caption), caption)], store, "all")[0].categories.tolist()
    assert first & second
    crowded = replace(caption, phrases=tuple(many))
    bits = collate_annotated([(make_example("x", crowded), crowded)], store, "all")[0].categories
    assert len(set(bits.tolist())) == 63
    assert bits[-1] == 0
