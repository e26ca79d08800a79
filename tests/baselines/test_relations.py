"""Which phrases are related, by captions that say so."""

import numpy as np
import pytest

from builders import make_example
from phrasechain.baselines.relations import GROUP_OF, GROUPS, KINDS, find_links
from phrasechain.core.schema import CATEGORIES, Caption, Phrase, Regions
from phrasechain.model.batch import Batch, collate_annotated


def batch_of(text: str, *phrases: str) -> Batch:
    tokens = tuple(text.split())
    found = []
    for phrase in phrases:
        words = phrase.split()
        first = next(n for n in range(len(tokens)) if list(tokens[n : n + len(words)]) == words)
        start = len(" ".join([*tokens[:first], ""]))
        found.append(Phrase(phrase, start, start + len(phrase), first, first + len(words), None, (), None))
    caption = Caption(0, text, tokens, tuple(found))
    store = {"i": Regions("i", 100, 80, np.ones((1, 4), np.float32), np.ones((1, 1), np.float16))}
    return collate_annotated([(make_example("i", caption), caption)], store, "all")[0]


@pytest.mark.parametrize(
    ("text", "phrases", "kinds", "wanted"),
    [
        ("a man on a bench", ("a man", "a bench"), "people other", [(0, 1, "on")]),
        ("a man rides a horse", ("a man", "a horse"), "people animals", [(0, 1, "verb")]),
        ("a man standing near a dog", ("a man", "a dog"), "people animals", [(0, 1, "near")]),
        ("a man and a dog", ("a man", "a dog"), "people animals", []),
        ("man with dog in hat", ("man", "dog", "hat"), "people animals clothing", [(0, 1, "with"), (0, 2, "clothing")]),
        ("a dog in a hat", ("a dog", "a hat"), "animals clothing", [(0, 1, "in")]),
        ("a man waves one arm", ("a man", "one arm"), "people bodyparts", [(0, 1, "bodyparts")]),
    ],
)  # fmt: skip
def test_relations(text: str, phrases: tuple[str, ...], kinds: str, wanted: list[tuple[int, int, str]]) -> None:
    links = find_links(batch_of(text, *phrases), [CATEGORIES.index(kind) for kind in kinds.split()])
    assert [(link.left, link.right, KINDS[link.kind]) for link in links] == wanted


def test_every_kind_has_a_group() -> None:
    assert len(GROUP_OF) == len(KINDS)
    assert set(GROUP_OF) == set(range(len(GROUPS)))
