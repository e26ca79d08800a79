"""Which phrases of a caption a word or their kind relates, and how.

- Clothing and body parts belong to the nearest people phrase before them.
- Any other phrase is related to the one right before it by the preposition right before it ("a man on a bench"), or by
  a verb between the two ("a man rides a horse"): a word in -ing, -s or -ed.

Decided: the paper parses captions; these rules need no parser, and give a phrase at most one relation to an earlier
one, so that relations make a forest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phrasechain.core.schema import CATEGORIES
from phrasechain.model.batch import Batch

# fmt: off
PREPOSITIONS = (
    "in", "on", "with", "at", "of", "near", "behind", "over", "under", "through", "by", "around", "beside", "between",
    "into", "from", "against", "across", "along", "above", "inside", "down", "up", "onto", "to", "for",
)
# fmt: on
BELONGINGS = ("clothing", "bodyparts")
#: What has a classifier of its own.
KINDS = (*BELONGINGS, "verb", *PREPOSITIONS)
#: What has a weight of its own, and which of them each kind counts by.
GROUPS = ("belongings", "verb", "preposition")
GROUP_OF = (0, 0, 1, *[2] * len(PREPOSITIONS))
POSSESSIVES = frozenset({"his", "her", "their"})


class Link(NamedTuple):
    """Two phrases of a caption by their rows in the batch, and a place in ``KINDS``."""

    left: int
    right: int
    kind: int


def find_links(batch: Batch, categories: Sequence[int]) -> list[Link]:
    """All relations of a batch whose phrases have these places in ``CATEGORIES``."""
    people, links = CATEGORIES.index("people"), []
    belongings = {CATEGORIES.index(name): KINDS.index(name) for name in BELONGINGS}
    person: dict[int, int] = {}  # the last people phrase of each caption so far
    spans, captions = batch.token_spans.tolist(), batch.phrase_caption.tolist()
    for row, caption in enumerate(captions):
        kind = belongings.get(categories[row])
        if kind is not None and caption in person:
            links.append(Link(person[caption], row, kind))
        elif row and captions[row - 1] == caption:
            between = batch.tokens[caption][spans[row - 1][1] : spans[row][0]]
            if (word := _relating([token.lower() for token in between])) is not None:
                links.append(Link(row - 1, row, KINDS.index(word)))
        if categories[row] == people:
            person[caption] = row
    return links


def possessive_links(batch: Batch, is_people: Sequence[bool]) -> dict[int, list[tuple[int, int]]]:
    """For each phrase with a possessive, the nearest people phrase before it in the caption: {caption: [(i, j), …]}."""
    links: dict[int, list[tuple[int, int]]] = {}
    person: dict[int, int] = {}
    spans = batch.token_spans.tolist()
    for row, caption in enumerate(batch.phrase_caption.tolist()):
        words = {word.lower() for word in batch.tokens[caption][spans[row][0] : spans[row][1]]}
        if words & POSSESSIVES and caption in person:
            links.setdefault(caption, []).append((person[caption], row))
        if is_people[row]:
            person[caption] = row
    return links


def _relating(words: Sequence[str]) -> str | None:
    if words and words[-1] in PREPOSITIONS:
        return words[-1]
    return "verb" if any(len(word) > 3 and word.endswith(("ing", "s", "ed")) for word in words) else None
