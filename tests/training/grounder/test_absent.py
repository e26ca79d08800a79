"""Captions with absent phrases: what stands where, what has a target, and how often."""

import numpy as np

from builders import make_caption, make_example
from phrasechain.core.schema import Caption
from phrasechain.model.batch import Item
from phrasechain.training.grounder.absent import AbsentPhrases, list_caption, replace_phrase

BOX = ((1.0, 2.0, 30.0, 40.0),)
DOG = make_caption(0, ("a dog", "1", ("animals",), BOX), ("the ball", "2", ("other",), BOX))
BUS = make_caption(0, ("a red bus", "1", ("vehicles",), BOX), ("a ball", "2", ("other",), BOX))
EXAMPLES = [make_example("dog", DOG), make_example("bus", BUS)]


def consistent(caption: Caption) -> bool:
    """Every phrase is what its spans say."""
    return all(
        caption.text[each.start : each.end] == each.text == " ".join(caption.tokens[each.first_token : each.end_token])
        for each in caption.phrases
    ) and caption.text == " ".join(caption.tokens)


def test_another_phrase_in_the_place_of_one() -> None:
    changed = replace_phrase(DOG, 0, ("a", "red", "bus"))
    assert changed.text == "a red bus and the ball"
    assert consistent(changed)
    assert [(each.is_absent, each.boxes) for each in changed.phrases] == [(True, None), (False, BOX)]
    assert replace_phrase(DOG, 1, ("snow",)).text == "a dog and snow"


def test_a_list() -> None:
    made = list_caption([(("dog",), DOG.phrases[0]), (("a", "red", "bus"), None)])
    assert made.text == "dog , a red bus"
    assert consistent(made)
    assert [(each.is_absent, each.boxes) for each in made.phrases] == [(False, BOX), (True, None)]


def mixed(rate: float, seed: int) -> list[Item]:
    return list(AbsentPhrases(EXAMPLES, rate).mixed([(EXAMPLES[0], DOG)], np.random.default_rng(seed)))


def test_what_is_mixed_in() -> None:
    assert mixed(0.0, 0) == [(EXAMPLES[0], DOG)]
    replaced = foreign = listed = 0
    for seed in range(60):
        first, *others = (caption for example, caption in mixed(1.0, seed) if example.image == "dog")
        assert first == DOG
        assert all(map(consistent, others))
        foreign += any(each.text == BUS.text for each in others)
        replaced += any(" and " in each.text and each.text != BUS.text for each in others)
        listed += any(" and " not in each.text for each in others)
        for caption in (first, *others):
            for phrase in caption.phrases:
                assert phrase.is_absent == phrase.text.endswith("bus")
                assert bool(phrase.boxes) <= (not phrase.is_absent)
    assert replaced > 50
    assert foreign > 50
    assert listed > 50


def test_it_follows_from_the_generator_alone() -> None:
    assert mixed(0.5, 3) == mixed(0.5, 3)
    assert any(mixed(0.5, 3) != mixed(0.5, seed) for seed in range(4, 9))
