"""Structured Matching: the loss's bound and subgradient, the matching it takes, and what it learns beforehand."""

import numpy as np
import pytest
import torch
from torch import Tensor

from baseline_cases import WORDS, encoder
from builders import make_caption, make_example
from phrasechain.baselines.relations import possessive_links
from phrasechain.baselines.structured_matching import StructuredMatching, gold_regions
from phrasechain.core.schema import Phrase, Regions
from phrasechain.model.batch import Batch, collate_annotated
from phrasechain.model.scores import Scores
from phrasechain.model.targets import Targets, make_targets
from phrasechain.text.words import WordEncoder
from tiny_batches import tiny_example


def make_system(dimension: int = 4) -> StructuredMatching:
    torch.manual_seed(0)
    system = StructuredMatching(encoder(), dimension, joint=3)
    system.relation_weight.normal_()
    return system


class Given(StructuredMatching):
    """With scores that are given, people where they are said to be."""

    emissions: Tensor
    people: list[bool]

    def forward(self, batch: Batch) -> Scores:
        return Scores(self.emissions[: len(batch.spans)], None, None)

    def links(self, batch: Batch) -> dict[int, list[tuple[int, int]]]:
        return possessive_links(batch, self.people)


def given(scores: Tensor, people: list[bool], dimension: int = 2) -> Given:
    system = Given(encoder(), dimension)
    system.emissions, system.people = scores, people
    torch.manual_seed(1)
    system.relation_weight.normal_()
    return system


def one_caption(*boxes: tuple[float, float, float, float], texts: tuple[str, ...]) -> tuple[Batch, Targets]:
    """Phrases with these boxes, and four regions in a row of which neighbours hardly overlap."""
    caption = make_caption(
        0, *((text, str(n), ("other",), (box,)) for n, (text, box) in enumerate(zip(texts, boxes, strict=True)))
    )
    regions = np.array([(x, 0, x + 20, 20) for x in (0, 20, 40, 60)], np.float32)
    features = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float16)
    store = {"i": Regions("i", 100, 80, regions, features)}
    batch, phrases = collate_annotated([(make_example("i", caption), caption)], store, "all")
    return batch, make_targets(batch, phrases)


FIRST, SECOND, THIRD = (0.0, 0.0, 20.0, 20.0), (20.0, 0.0, 40.0, 20.0), (40.0, 0.0, 60.0, 20.0)


def test_two_phrases_with_one_gold_region_cannot_drive_the_loss_below_nought() -> None:
    batch, targets = one_caption(FIRST, FIRST, SECOND, texts=("a man", "a dog", "the ball"))
    gold = gold_regions(batch, targets).tolist()
    assert sorted(gold) == [-1, 0, 1]  # one of the two goes without
    scores = torch.zeros(3, 4, requires_grad=True)
    shared = torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    best_matching = 2.0  # of `shared`: what a gold that is no matching, with score 3, would exceed
    assert float(shared.sum()) > best_matching
    optimiser = torch.optim.SGD([scores], lr=1.0)
    for _ in range(30):
        loss = given(scores, [False] * 3).loss(batch, targets).grounding
        assert loss.item() >= -1e-9
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_no_scores_make_it_negative(seed: int) -> None:
    batch, targets = tiny_example(seed, captions=8, most_phrases=4, unlabelled=0.2, regions=(3, 5))
    torch.manual_seed(seed)
    emissions = 3 * torch.randn(len(batch.spans), batch.boxes.shape[1])
    system = make_system()
    terms = system.loss(batch, targets)
    assert terms.grounding.item() >= -1e-6
    found = given(emissions, [True] * len(batch.spans), 4).loss(batch, targets)
    assert found.grounding.item() >= -1e-6
    assert int(found.count) == int(system.loss_counts(batch, targets)[0])


def test_it_is_nought_where_gold_wins_and_the_gap_elsewhere() -> None:
    batch, targets = one_caption(FIRST, THIRD, texts=("a man", "a dog"))
    right = torch.tensor([[2.0, 0, 0, 0], [0, 0, 2.0, 0]])
    assert given(right, [False] * 2).loss(batch, targets).grounding.item() == 0.0
    wrong = torch.tensor([[1.0, 3.0, 0, 0], [0, 4.0, 1.0, 0]])  # the best: 1 + 4 against 1 + 1
    assert given(wrong, [False] * 2).loss(batch, targets).grounding.item() == pytest.approx(3.0)


@pytest.mark.parametrize("related", [False, True])
def test_the_subgradient_by_finite_differences(related: bool) -> None:
    batch, targets = one_caption(FIRST, THIRD, SECOND, texts=("a man", "his shirt", "the ball"))
    people = [related, False, False]
    torch.manual_seed(2)
    scores = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    system = given(scores, people)
    assert bool(system.links(batch)) == related
    system.loss(batch, targets).grounding.backward()
    step = 1e-4
    for t in range(3):
        for k in range(4):
            change = torch.zeros_like(scores)
            change[t, k] = step
            up, down = (given(scores.detach() + sign * change, people).loss(batch, targets) for sign in (1, -1))
            slope = (up.grounding - down.grounding).item() / (2 * step)
            assert scores.grad is not None
            assert float(scores.grad[t, k]) == pytest.approx(slope, abs=1e-6)


def test_gradients_reach_the_projections_alone() -> None:
    batch, targets = tiny_example(1)
    system = make_system()
    system.loss(batch, targets).grounding.backward()
    assert system.projection.region.weight.grad is not None
    assert {name for name, weight in system.named_parameters() if weight.requires_grad} == {
        f"projection.{view}.{part}" for view in ("phrase", "region") for part in ("weight", "bias")
    }


def test_words_are_taken_as_they_are() -> None:
    batch, _ = tiny_example(1)
    system = StructuredMatching(WordEncoder(WORDS, 6, buckets=8, word_dropout=0.9), 4).train()
    assert torch.equal(system.phrase_vectors(batch), system.eval().phrase_vectors(batch))
    assert system.train().training


def test_scores_are_cosines() -> None:
    batch, _ = tiny_example(2)
    system = make_system()
    found = system(batch).emissions
    p, image = system.projection.phrase(system.phrase_vectors(batch)), batch.phrase_image
    for number in range(len(p)):
        r = system.projection.region(batch.features[image[number]].float())
        wanted = torch.cosine_similarity(p[number], r, dim=-1)
        torch.testing.assert_close(found[number], wanted)


def test_decoding_takes_no_region_twice_and_a_relation_can_turn_it() -> None:
    batch, _ = one_caption(FIRST, THIRD, SECOND, texts=("a man", "his shirt", "the ball"))
    scores = torch.tensor([[5.0, 0, 0, 0], [6.0, 4.0, 3.99, 0], [0, 0, 0, 1.0]])
    system = given(scores, [True, False, False])
    system.relation_weight.zero_()
    plain = system.decode(Scores(scores, None, None), batch)
    assert plain.region.tolist() == [0, 1, 3]
    torch.testing.assert_close(plain.boxes, batch.boxes[0, plain.region])
    features = batch.features[0].float()
    system.relation_weight[1] = 100 * (features[2] - features[1])  # region 2 goes well with anything
    assert system.decode(Scores(scores, None, None), batch).region.tolist() == [0, 2, 3]


def test_possessives_link_to_the_nearest_people_before() -> None:
    texts = ("a man", "a woman", "Her ball", "his dog", "the dog", "their shirt")
    batch, _ = one_caption(*[FIRST] * 6, texts=texts)
    assert possessive_links(batch, [True, True, False, False, True, False]) == {0: [(1, 2), (1, 3), (4, 5)]}
    assert possessive_links(batch, [False] * 6) == {}


def learnable(count: int = 60) -> list[tuple[Batch, list[Phrase]]]:
    """Captions whose words are in the features of their regions, and shirts that lie near their man in features too."""
    rng = np.random.default_rng(0)
    nouns = {"a man": 0, "a dog": 1, "the ball": 2, "his shirt": 3}
    batches = []
    for number in range(count):
        texts = [text for text in nouns if rng.random() < 0.8] or ["a man"]
        boxes = [(25.0 * place, 0.0, 25.0 * place + 20, 20.0) for place in range(4)]
        order = rng.permutation(4)
        features = np.zeros((4, 6))
        for place, noun in enumerate(order):
            features[place, noun] = 1.0
        features += 0.1 * rng.normal(size=features.shape)
        where = {noun: place for place, noun in enumerate(order.tolist())}
        kinds = {"a man": "people", "his shirt": "clothing"}
        caption = make_caption(
            0, *((text, text, (kinds.get(text, "other"),), (boxes[where[nouns[text]]],)) for text in texts)
        )
        image = f"i{number}"
        store = {image: Regions(image, 100, 80, np.array(boxes, np.float32), features.astype(np.float16))}
        batches.append(collate_annotated([(make_example(image, caption), caption)], store, "all"))
    return batches


def test_what_is_fit_beforehand_grounds_words_that_features_show() -> None:
    torch.manual_seed(0)
    system = StructuredMatching(encoder(8), 6)
    batches = learnable()
    system.fit(batches[:40])
    right = total = linked = 0
    for batch, phrases in batches[40:]:
        decoded = system.decode(system(batch), batch)
        right += int((decoded.region == make_targets(batch, phrases).iou.argmax(1)).sum())
        total += len(phrases)
        linked += sum(map(len, system.links(batch).values()))
        texts = [phrase.text for phrase in phrases]
        assert bool(system.links(batch)) == ("a man" in texts and "his shirt" in texts)
    assert right / total > 0.9
    assert linked > 5
    man, shirt = torch.eye(6)[0], torch.eye(6)[3]
    w, c = system.relation_weight, system.relation_bias
    assert float(w[0] @ man + w[1] @ shirt + c) > float(w[0] @ shirt + w[1] @ man + c)
